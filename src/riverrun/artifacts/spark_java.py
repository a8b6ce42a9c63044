"""A JAVA_HOME that Spark's launcher can use.

Spark starts Java with `--add-modules=jdk.incubator.vector`. A JRE without that module, such as the one from PyPI, exits at
once. Spark uses the module only if it is there, so for such a JRE there is a second home: the same files by links, and a
`bin/java` that drops that one argument.
"""

import hashlib
import os
import shlex
import subprocess
import tempfile
from pathlib import Path

from riverrun.artifacts.java import ASK_TIMEOUT_SECONDS, Java, read_release_file
from riverrun.errors import CacheError, JavaError

VECTOR_MODULE = "jdk.incubator.vector"

_WRAPPER = """\
#!/bin/sh
# Made by riverrun: this Java has no module {module}, and Spark's launcher asks for it.
for argument do
  shift
  case $argument in
    --add-modules={module}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {executable} "$@"
"""


def spark_java_home(java: Java, cache: Path) -> Path:
    """The folder to give Spark as JAVA_HOME: the Java's own, or one below `cache` (made when it is not there)."""
    if has_module(java, VECTOR_MODULE):
        return java.home
    wrapper = _WRAPPER.format(module=VECTOR_MODULE, executable=shlex.quote(str(java.executable.absolute())))
    # The folder's name covers everything that determines its content: an existing folder is right and is never changed.
    identity = f"{java.home.absolute()}\n{java.full_version}\n{wrapper}"
    folder = cache / "java" / f"spark-{java.version}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
    try:
        if not _is_valid(folder, wrapper):
            _make(folder, java.home.absolute(), wrapper)
    except OSError as error:
        raise CacheError(
            f"The folder {folder} could not be made: {error.strerror or error}",
            hint="Correct the rights of the cache, or name another folder with artifacts.cache_dir",
            path=folder,
        ) from error
    return folder


def has_module(java: Java, module: str) -> bool:
    """Whether a Java has a module: from its `release` file, else by asking it."""
    listed = read_release_file(java.home).get("MODULES", "").split()
    return module in (listed or _list_modules(java))


def _list_modules(java: Java) -> list[str]:
    command = [str(java.executable), "--list-modules"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=ASK_TIMEOUT_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        raise JavaError(f"{java.executable} does not answer --list-modules", hint="Is this Java whole?") from error
    return [line.partition("@")[0].strip() for line in done.stdout.splitlines()]


def _is_valid(folder: Path, wrapper: str) -> bool:
    executable = folder / "bin" / "java"
    try:
        return executable.read_text(encoding="utf-8") == wrapper and os.access(executable, os.X_OK)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _make(folder: Path, home: Path, wrapper: str) -> None:
    """Build it in a temporary folder and rename it; if another process was faster, its folder is the same."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".new-") as temporary:
        new = Path(temporary) / folder.name
        (new / "bin").mkdir(parents=True)
        for entry in home.iterdir():
            if entry.name != "bin":
                (new / entry.name).symlink_to(entry)
        for entry in (home / "bin").iterdir():
            if entry.name != "java":
                (new / "bin" / entry.name).symlink_to(entry)
        executable = new / "bin" / "java"
        executable.write_text(wrapper, encoding="utf-8")
        executable.chmod(0o755)
        try:
            new.rename(folder)
        except OSError:
            if not _is_valid(folder, wrapper):
                # Somebody changed the folder: only its one real file can be wrong.
                (folder / "bin").mkdir(parents=True, exist_ok=True)
                executable.replace(folder / "bin" / "java")
