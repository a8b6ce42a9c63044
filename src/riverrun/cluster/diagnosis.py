"""Explains why a server ended: the end of its log, and for known causes an error that names them and what to do."""

import re
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from riverrun.cluster.ports import holder_of
from riverrun.errors import (
    ClusterError,
    DataDirectoryError,
    DiskFullError,
    PortTakenError,
    ServerDiedError,
)

TAIL_LINES = 12
# Enough for the last errors with their stack traces.
TAIL_BYTES = 64 * 1024
FULL_MB = 8
SIGKILL_EXIT_CODE = 128 + signal.SIGKILL

_BIND = re.compile(r"failed to bind to \S*?:(?P<port>\d+)[^\n]*Address already in use")
_STACK = re.compile(r"\s+at |\s*\.\.\. \d+ more")
_STAMP = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[.,]\d{3} (\w+) +")


@dataclass(frozen=True)
class Product:
    """A server product, and the settings of ours that concern it."""

    name: str
    section: str
    more_memory: str
    less_memory: str
    java_options: str
    properties: str


KAFKA = Product(
    name="Kafka",
    section="kafka",
    more_memory="kafka.heap_mb or `riverrun up --heap-mb`",
    less_memory="kafka.heap_mb",
    java_options="kafka.jvm_options, and the variables",
    properties="[kafka.broker]",
)
DRUID = Product(
    name="Druid",
    section="druid",
    more_memory="druid.memory_mb",
    less_memory="druid.memory_mb",
    java_options="the variables",
    properties="[druid.config]",
)

CONNECT = Product(
    name="Connect",
    section="connect",
    more_memory="connect.heap_mb",
    less_memory="connect.heap_mb",
    java_options="the variables",
    properties="[connect.config]",
)
REGISTRY = Product(
    name="the registry",
    section="registry",
    more_memory="registry.heap_mb",
    less_memory="registry.heap_mb",
    java_options="the variables",
    properties="[registry]",
)


@dataclass(frozen=True)
class ServerExit:
    """What is known of a server that ended."""

    name: str
    exit_code: int
    seconds: float
    text: str
    ports: tuple[int, ...]
    folder: Path
    heap_mb: int
    product: Product = KAFKA

    @property
    def description(self) -> str:
        return f"{self.name} {describe_exit(self.exit_code)} after {self.seconds:.1f} s"


def explain(
    name: str,
    *,
    exit_code: int,
    seconds: float,
    log: Path,
    log_start: int,
    output: Path,
    output_start: int,
    ports: tuple[int, ...],
    folder: Path,
    heap_mb: int,
    product: Product = KAFKA,
) -> ClusterError:
    """The error for a server that ended, derived from its log since it was started."""
    logged = read_from(log, log_start)
    printed = read_from(output, output_start)
    server_exit = ServerExit(name, exit_code, seconds, f"{logged}\n{printed}", ports, folder, heap_mb, product)
    # A Java that does not start logs nothing; its own output is then all there is.
    shown, lines = (log, tail(logged)) if logged.strip() else (output, tail(printed))
    details: dict[str, Any] = {
        "server": name,
        "exit_code": exit_code,
        "seconds": round(seconds, 1),
        "log": shown,
        "lines": (f"{shown} ends with:", *(f"  {line}" for line in lines)) if lines else (f"{shown} is empty",),
    }
    # A process killed by -9 had no time to log it; its earlier log is about something else.
    for pattern, make in _CAUSES if exit_code != SIGKILL_EXIT_CODE else ():
        if match := pattern.search(server_exit.text):
            return make(server_exit, _line_of(server_exit.text, match), details)
    # A full disk has no room for a log that says so.
    if _free_mb(folder) < FULL_MB:
        return _disk_full(server_exit, about=details)
    return _from_exit_code(server_exit, details)


def _port_taken(death: ServerExit, found: str, about: dict[str, Any]) -> ClusterError:
    bind_match = _BIND.search(found)
    port = int(bind_match["port"]) if bind_match else 0
    holders = [(candidate, holder_of(candidate)) for candidate in ([port] if port else death.ports)]
    port, holder = next(((candidate, by) for candidate, by in holders if by), (port, None))
    return PortTakenError(
        f"{death.description}: port {port or death.ports[0]} is taken by {holder or 'another process'}",
        hint=f"Stop that process, or choose another {death.product.section}.port; 0 takes a free one",
        port=port,
        pid=holder.pid if holder else 0,
        **about,
    )


def _free_mb(folder: Path) -> int:
    try:
        return shutil.disk_usage(folder).free >> 20
    except OSError:
        return FULL_MB


def _disk_full(death: ServerExit, _: str = "", about: dict[str, Any] | None = None) -> ClusterError:
    return DiskFullError(
        f"{death.description}: the disk of {death.folder} is full",
        hint="Free some space, or put the project on another disk",
        path=death.folder,
        **(about or {}),
    )


def _not_permitted(death: ServerExit, _: str, about: dict[str, Any]) -> ClusterError:
    return DataDirectoryError(
        f"{death.description}: a file in {death.folder} may not be read or written",
        hint="Give the folder and all in it to the user who runs riverrun",
        path=death.folder,
        **about,
    )


def _foreign_data(death: ServerExit, found: str, about: dict[str, Any]) -> ClusterError:
    return DataDirectoryError(
        f"{death.description}: its data in {death.folder} cannot be used",
        found=_shorten(found),
        hint="Put the right data back, or delete all of it with `riverrun down --delete-data`",
        path=death.folder,
        **about,
    )


def _in_use(death: ServerExit, _: str, about: dict[str, Any]) -> ClusterError:
    return DataDirectoryError(
        f"{death.description}: another {death.product.name} process uses {death.folder}",
        hint="Stop that process",
        path=death.folder,
        **about,
    )


def _heap_too_small(death: ServerExit, found: str, about: dict[str, Any]) -> ClusterError:
    return ServerDiedError(
        f"{death.description}: its heap of {death.heap_mb} MiB is too small",
        found=_shorten(found),
        hint=f"Give it more with {death.product.more_memory}",
        heap_mb=death.heap_mb,
        **about,
    )


def _machine_out_of_memory(death: ServerExit, found: str, about: dict[str, Any]) -> ClusterError:
    return ServerDiedError(
        f"{death.description}: this machine cannot give it a heap of {death.heap_mb} MiB",
        found=_shorten(found),
        hint=f"Give it less with {death.product.less_memory}, or end other programs",
        heap_mb=death.heap_mb,
        **about,
    )


def _bad_option(death: ServerExit, found: str, about: dict[str, Any]) -> ClusterError:
    return ServerDiedError(
        f"{death.description}: Java refuses an option",
        found=_shorten(found),
        hint=f"Check {death.product.java_options} JAVA_TOOL_OPTIONS and JDK_JAVA_OPTIONS",
        **about,
    )


def _wrong_java(death: ServerExit, found: str, about: dict[str, Any]) -> ClusterError:
    return ServerDiedError(
        f"{death.description}: this Java is not one that {death.product.name} runs on",
        found=_shorten(found),
        hint="Set java.home to a Java 17 or newer; `riverrun doctor` shows which one is used",
        **about,
    )


def _bad_property(death: ServerExit, found: str, about: dict[str, Any]) -> ClusterError:
    return ServerDiedError(
        f"{death.description}: {death.product.name} refuses its configuration",
        found=_shorten(found),
        hint=f"Check {death.product.properties} in riverrun.toml",
        **about,
    )


def _missing_class(death: ServerExit, found: str, about: dict[str, Any]) -> ClusterError:
    return ServerDiedError(
        f"{death.description}: a jar is missing or broken",
        found=_shorten(found),
        hint="Fetch the jars again with `riverrun fetch`",
        **about,
    )


def _from_exit_code(death: ServerExit, about: dict[str, Any]) -> ClusterError:
    hint = "See its log"
    if death.exit_code == 137:
        hint = "Somebody killed it, or the kernel did for want of memory (`dmesg` tells)"
    elif death.exit_code in (134, 139):
        hint = "Java itself crashed; a .crash file beside the log says where"
    return ServerDiedError(death.description, hint=hint, **about)


def _any_of(*words: str) -> re.Pattern[str]:
    return re.compile("|".join(words))


def _line_of(text: str, found: re.Match[str]) -> str:
    """The whole line of a match. Not by the pattern: a server logs its class path, a line of 20 kB, and a pattern that
    begins with a wildcard takes minutes for it."""
    end = text.find("\n", found.end())
    return text[text.rfind("\n", 0, found.start()) + 1 : end if end >= 0 else len(text)]


# First match wins: the narrow ones come before the wide ones.
_CAUSES: Sequence[tuple[re.Pattern[str], Callable[[ServerExit, str, dict[str, Any]], ClusterError]]] = (
    (_BIND, _port_taken),
    (_any_of("Address already in use", r"java\.net\.BindException"), _port_taken),
    (_any_of("No space left on device", "Disk quota exceeded"), _disk_full),
    (_any_of("Failed to acquire lock on file", "ERROR XSDB6", "Another instance of Derby"), _in_use),
    (_any_of("OutOfMemoryError", "Too small maximum heap", "Not enough direct memory"), _heap_too_small),
    (
        _any_of(
            "Could not reserve enough space",
            "Cannot allocate memory",
            "exceeds the maximum representable size",
            "insufficient memory for the Java",
        ),
        _machine_out_of_memory,
    ),
    (
        _any_of(
            "Unrecognized VM option",
            "Unrecognized option",
            "Invalid (?:maximum |initial )?heap size",
            "Improperly specified VM option",
            "Conflicting collector",
            "Initial heap size set to a larger",
        ),
        _bad_option,
    ),
    (_any_of("UnsupportedClassVersionError"), _wrong_java),
    (
        _any_of(
            "InconsistentClusterIdException",
            "InconsistentMetaPropertiesException",
            r"Invalid cluster\.id",
            "No MetadataVersion with",
            "InconsistentVoterSetException",
            "different from the voter set",
            r"Corrupt\w*Exception",
            # Derby's: a file of another version, a damaged page or log.
            "ERROR XCW00",
            "ERROR XSLA",
            "ERROR XSDB",
            "ERROR XSDG",
            "ERROR XBM0I",
            # ZooKeeper's.
            "Unable to load database on disk",
            "No snapshot found, but there are log entries",
            "CRC check failed",
        ),
        _foreign_data,
    ),
    (_any_of("AccessDeniedException", "Permission denied", "Read-only file system"), _not_permitted),
    (
        _any_of(
            r"\w*ConfigException",
            r"IllegalArgumentException: requirement failed",
            "Problem parsing object at prefix",
            "Unable to provision",
            "Unknown provider",
        ),
        _bad_property,
    ),
    (
        _any_of("NoClassDefFoundError", "ClassNotFoundException", "NoSuchMethodError", "find or load main class"),
        _missing_class,
    ),
)


def describe_exit(exit_code: int) -> str:
    if exit_code > 128:
        return f"was ended by signal {exit_code - 128}"
    return f"exited with code {exit_code}"


def read_from(path: Path, start: int) -> str:
    """The end of what was written to a file since `start`; all of it when the file was rolled since."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, 2)
            file.seek(max(start if start <= end else 0, end - TAIL_BYTES))
            return file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""


def tail(text: str, lines: int = TAIL_LINES) -> list[str]:
    """The last informative lines: stack frames and empty lines left out, the last error among them.

    A server that fails goes on to log at length how it closes its components. So when the last lines have no error, the
    last errors are shown instead.
    """
    lines_with_text = [line.rstrip() for line in text.splitlines() if line.strip() and not _STACK.match(line)]
    last = lines_with_text[-lines:]
    if any(_level(line) in ("ERROR", "FATAL") for line in last) or not any(
        _STAMP.match(line) for line in lines_with_text
    ):
        return [_shorten(line) for line in last]
    errors = [index for index, line in enumerate(lines_with_text) if _level(line) in ("ERROR", "FATAL")]
    if not errors:
        return [_shorten(line) for line in last]
    first = max(errors[0], errors[-1] - lines + 1)
    return [_shorten(line) for line in lines_with_text[first : first + lines]]


def _level(line: str) -> str:
    match = _STAMP.match(line)
    return match[1] if match else ""


def _shorten(line: str, width: int = 400) -> str:
    line = line.strip()
    return line if len(line) <= width else line[: width - 1] + "…"
