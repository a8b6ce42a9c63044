"""Errors of Spark or Python about a stream's code, before it runs, in plain words: the line, the name, what to do."""

import traceback
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from riverrun.model.pipeline import FileSource, Stream, Table
from riverrun.model.suggest import nearest
from riverrun.streams.compile.graph import Problem
from riverrun.streams.compile.query_analysis import readable_message

if TYPE_CHECKING:
    from pyspark.errors import PySparkException

# What a stream cannot do, by text in Spark's message, and what to do instead.
_REFUSALS = {
    "Sorting is not supported": (
        "sorts its rows, and a stream has no last row to sort before",
        "For the largest few as they are now, leave the sorting to the page: riverrun.leaderboard(…, limit=3) over the "
        "stream; for those of each window, aggregate with max_by(…, …, n)",
    ),
    "Window function is not supported": (
        "uses a window function (OVER), and a stream has no last row to rank before",
        "For the largest few as they are now, leave the ranking to the page: riverrun.leaderboard(…, limit=3) over the "
        "stream; for those of each window, group by it and aggregate with max_by(…, …, n)",
    ),
}
_ACTION_ERROR = "writeStream.start"
# For the joined rows of two streams: Spark cannot know which of the two times decides when they are final.
TWO_EVENT_TIMES = (
    "keeps state over rows with two event times, and Spark can follow only one",
    'Leave one out before the state: join, then .drop("the other time"), then the window',
)


class StreamProblemError(Exception):
    """A problem of one stream or table; raised to be collected with all others."""

    def __init__(self, location: object, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.problem = Problem(str(location), text, hint)


def explain_build_error(stream: Stream, error: Exception, columns: Collection[str]) -> StreamProblemError:
    """Why the code of a stream could not be built. `columns` are those of its inputs."""
    from pyspark.errors import ParseException, PySparkException

    if isinstance(error, StreamProblemError):
        return error
    location = _source_line(stream, error)
    if not isinstance(error, PySparkException):
        return StreamProblemError(
            location, f"{stream.name}: {type(error).__name__}: {error}", "The stream's function raised this"
        )
    where = _sql_line(stream, error)
    if isinstance(error, ParseException):
        return StreamProblemError(
            location, f"The SQL of {stream.name} cannot be read{where}: {readable_message(str(error))}"
        )
    text, hint = _describe(error, columns)
    return StreamProblemError(location, f"{stream.name}: {text}{where}", hint)


def _describe(error: "PySparkException", columns: Collection[str]) -> tuple[str, str]:
    from pyspark.sql import DataFrame, functions

    condition, details = error.getCondition() or "", error.getMessageParameters() or {}
    if condition.startswith("UNRESOLVED_COLUMN"):
        column = details.get("objectName", "").replace("`", "")
        known = [name.strip().replace("`", "") for name in details.get("proposal", "").split(",") if name.strip()]
        return f"there is no column {column}", did_you_mean(column, known or columns)
    if condition == "ATTRIBUTE_NOT_SUPPORTED":
        name = details.get("attr_name", "")
        suggestion = nearest(name, columns) or nearest(name, [member for member in dir(DataFrame) if member[0] != "_"])
        return f"there is no column {name}", f"Did you mean {suggestion}?" if suggestion else did_you_mean(
            name, columns
        )
    if condition == "UNRESOLVED_ROUTINE":
        name = details.get("routineName", "").replace("`", "")
        suggestion = nearest(name, [function for function in dir(functions) if function.islower()])
        return (
            f"there is no function {name}",
            f"Did you mean {suggestion}?" if suggestion else "It must be one of Spark's",
        )
    if _ACTION_ERROR in str(error):
        return (
            "it asks for the rows of a stream, which come only when it runs",
            "Say what is to be computed, without count(), collect(), show() or write",
        )
    return readable_message(str(error)), ""


def unsupported_query_error(stream: Stream, reason: str) -> StreamProblemError:
    """Why Spark cannot run a query that can be built; in Spark's own words if we have none."""
    for words, (text, hint) in _REFUSALS.items():
        if words in reason:
            return StreamProblemError(stream.line, f"{stream.name} {text}", hint)
    return StreamProblemError(stream.line, f"{stream.name} cannot run on a stream: {reason}")


def unreadable_table_error(table: Table, error: "PySparkException", folder: Path) -> StreamProblemError:
    """Why the file of a table cannot be read."""
    if isinstance(table.source, FileSource) and error.getCondition() == "PATH_NOT_FOUND":
        path = folder / Path(table.source.path).expanduser()
        suggestion = nearest(path.name, [file.name for file in path.parent.iterdir()]) if path.parent.is_dir() else None
        hint = (
            f"Did you mean {suggestion}?" if suggestion else "A path is looked up from the folder of the pipeline file"
        )
        return StreamProblemError(table.line, f"The table {table.name} reads {path}, which is not there", hint)
    hint = 'Columns are given as in "house_id string, floors int"' if "type" in str(error).lower() else ""
    return StreamProblemError(
        table.line, f"The table {table.name} cannot be read: {readable_message(str(error))}", hint
    )


def did_you_mean(name: str, known: Collection[str]) -> str:
    """The hint for a name that does not exist."""
    suggestion = nearest(name, known)
    return f"Did you mean {suggestion}?" if suggestion else f"There are {', '.join(known)}" if known else ""


def _source_line(stream: Stream, error: Exception) -> str:
    """The line of the user's file that raised the error; for SQL, the line of its declaration."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == stream.line.file]
    if not frames or stream.function is None:
        return str(stream.line)
    return f"{Path(stream.line.file).name}:{frames[-1].lineno}"


def _sql_line(stream: Stream, error: "PySparkException") -> str:
    """The line within a SQL text of several lines that an error refers to."""
    contexts = error.getQueryContext() if stream.sql.strip().count("\n") else []
    if not contexts or contexts[0].fragment() not in stream.sql:
        return ""
    return f", line {stream.sql[: contexts[0].startIndex()].count(chr(10)) + 1} of the SQL"
