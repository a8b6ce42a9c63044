"""Files and logs as sources: `riverrun.tail(…)`, `riverrun.folder(…)`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from riverrun.errors import DeclarationError
from riverrun.model.connector import Source, option

LineFormat = Literal["text", "json", "csv", "common", "combined"]
FolderFormat = Literal["json", "csv", "parquet", "text"]
Lost = Literal["stop", "continue"]


@dataclass(frozen=True)
class tail(Source):
    """Follow a file that grows, such as a log: each line once, across restarts and rotations."""

    factory: ClassVar[str] = "riverrun.connectors.files.tail:TailSource"
    lag_unit: ClassVar[str] = "bytes"

    path: str = option(
        help="The file, from the pipeline file's folder. With `*` or `?` each file that matches is a part of its own, read "
        "beside the others; rotated files must not match.",
        example="/var/log/nginx/access.log",
    )
    format: LineFormat = option(
        "text",
        help="What a line is: `text` (one field), `json`, `csv`, or an access log of a web server, `common` or `combined`.",
        example="combined",
    )
    field: str = option("line", help="The name of the field that has the line, for `text`.")
    columns: Sequence[str] = option(
        (),
        help="The names of the columns, for `csv`. Without them each file's first line has them.",
        example='("id", "kw")',
    )
    delimiter: str = option(",", help="What is between columns, for `csv`.")
    key: str = option("", help="The field that is the record's key, where the topic has no event class to say it.")
    begin: Literal["beginning", "end"] = option(
        "beginning", help="Where to begin in a file that was never read. Whole lines only."
    )
    settle_seconds: float = option(
        2.0,
        help="How long a rotated file must have been left alone before the one after it is begun: its writer may not have "
        "noticed yet.",
    )
    max_line_bytes: int = option(1_000_000, help="A longer line goes to the dead letters, in pieces of this size.")
    lost: Lost = option(
        "stop",
        help="What to do when the file that was being read is not there any more: `stop` with POSITION_UNKNOWN, or "
        "`continue` with the oldest file there is, and say so.",
    )

    def __post_init__(self) -> None:
        check_choice("tail", "format", self.format, get_args(LineFormat))
        check_choice("tail", "begin", self.begin, ("beginning", "end"))
        check_choice("tail", "lost", self.lost, get_args(Lost))
        check_minimum("tail", "settle_seconds", self.settle_seconds, 0)
        check_minimum("tail", "max_line_bytes", self.max_line_bytes, 1)


@dataclass(frozen=True)
class folder(Source):
    """Read each file of a folder once, as it appears: every row once, across restarts."""

    factory: ClassVar[str] = "riverrun.connectors.files.folder:FolderSource"
    lag_unit: ClassVar[str] = "files"

    path: str = option(help="The folder, from the pipeline file's.", example="drop/")
    format: FolderFormat = option(
        help="What the files are: `csv`, `json` (a line each), `parquet` or `text`.", example="csv"
    )
    pattern: str = option(
        "",
        help="Which files: a pattern such as `*.csv`; `**/*.csv` looks below, too. Without one, the format's own ending.",
    )
    field: str = option("line", help="The name of the field that has the line, for `text`.")
    columns: Sequence[str] = option(
        (),
        help="The names of the columns, for `csv`. Without them each file's first line has them.",
        example='("id", "kw")',
    )
    delimiter: str = option(",", help="What is between columns, for `csv`.")
    key: str = option("", help="The field that is the record's key, where the topic has no event class to say it.")
    stable_seconds: float = option(
        2.0,
        help="A file is taken as complete when it was last changed so long ago. Best, write it elsewhere on the same disk "
        "and rename it into the folder.",
    )
    max_line_bytes: int = option(1_000_000, help="A longer line goes to the dead letters, in pieces of this size.")
    lost: Lost = option(
        "stop",
        help="What to do when a file was changed or removed while it was being read: `stop` with POSITION_UNKNOWN, or "
        "`continue` with the next one, and say so.",
    )

    def __post_init__(self) -> None:
        check_choice("folder", "format", self.format, get_args(FolderFormat))
        check_choice("folder", "lost", self.lost, get_args(Lost))
        check_minimum("folder", "stable_seconds", self.stable_seconds, 0)
        check_minimum("folder", "max_line_bytes", self.max_line_bytes, 1)


def check_choice(connector: str, name: str, value: object, allowed: Sequence[str]) -> None:
    """DeclarationError for an option that is none of those allowed."""
    if value not in allowed:
        raise DeclarationError(
            f"riverrun.{connector} cannot have {name}={value!r}", expected=", ".join(allowed), option=name
        )


def check_minimum(connector: str, name: str, value: float, minimum: float) -> None:
    if value < minimum:
        raise DeclarationError(
            f"riverrun.{connector} cannot have {name}={value}", expected=f"at least {minimum:g}", option=name
        )
