"""`riverrun init`: creates the files of a new project."""

import shlex
import unicodedata
from pathlib import Path

import click

from riverrun.cli.output import json_option, print_json, say
from riverrun.errors import UsageError

APP, TEST = "app.py", "test_app.py"
MAX_NAME = 100
NEXT_STEPS = """Next:
  {cd}riverrun run    # Kafka, Spark, tables and a live dashboard, whose address it prints; Ctrl-C ends it
  riverrun test       # the test of its stream; no Kafka needed
Then change app.py to what you have. Larger projects to read and change: `riverrun demo` lists them,
`riverrun new FOLDER --from NAME` makes one; every part with an example: docs/guide.md in riverrun's repository."""


@click.command(epilog="Example: riverrun init sensors")
@click.argument("directory", default=".", type=click.Path(file_okay=False, path_type=Path))
@click.option("--all-settings", is_flag=True, help="Write every common setting into riverrun.toml, explained.")
@json_option
def init(directory: Path, all_settings: bool, as_json: bool) -> None:
    """Make a project in DIRECTORY (here, by default): app.py with a source, a stream and a dashboard that work at once, its
    test, riverrun.toml, and a line in .gitignore.

    Overwrites nothing: it refuses where one of the files is there already.
    """
    from riverrun.cli import project_template
    from riverrun.config.project import CONFIG_FILE
    from riverrun.config.sample import minimal_toml, sample_toml

    files = {
        directory / APP: project_template.APP.format(name=_app_name(directory)),
        directory / TEST: project_template.TEST,
        directory / CONFIG_FILE: sample_toml(APP) if all_settings else minimal_toml(APP),
    }
    existing = [str(path) for path in files if path.exists()]
    if existing:
        raise UsageError(
            f"There is a project in {directory.resolve()} already",
            found=", ".join(existing),
            hint="Nothing was written. Choose another folder, or take what you need from `riverrun config sample`",
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for path, text in files.items():
            path.write_text(text, encoding="utf-8")
        written = [*files, *_ignore(directory / ".gitignore")]
    except OSError as error:
        raise UsageError(f"{error.filename or directory} cannot be written: {error.strerror}") from error
    if as_json:
        print_json({"project": str(directory.resolve()), "files": [str(path) for path in written]})
        return
    for path in written:
        say(f"wrote {path}")
    say(NEXT_STEPS.format(cd="" if directory == Path() else f"cd {shlex.quote(str(directory))} && "))


def _app_name(directory: Path) -> str:
    """A valid app name, since topics and groups contain it, with room for the rest of their names."""
    plain = unicodedata.normalize("NFKD", directory.resolve().name)
    # Accents are separate characters by now: they are dropped, and their letters stay.
    letters = (c for c in plain if not unicodedata.combining(c))
    name = "".join(c if (c.isascii() and c.isalnum()) or c in "-_" else "-" for c in letters)
    return name[:MAX_NAME].strip("-") or "app"


def _ignore(path: Path) -> list[Path]:
    """Keep riverrun's own files out of the repository; existing lines stay."""
    from riverrun.config.project import STATE_FOLDER

    line = f"{STATE_FOLDER}/"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    if line in text.splitlines():
        return []
    gap = "" if not text or text.endswith("\n") else "\n"
    path.write_text(f"{text}{gap}{line}\n", encoding="utf-8")
    return [path]
