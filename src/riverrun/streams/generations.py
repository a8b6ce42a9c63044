"""The generations of a stream: every replay that was swapped in makes a new one.

Each has a checkpoint of its own; the file `generations.json` says which one is current, and is replaced atomically. So a
swap happens or does not, whatever is killed. A stream that was never replayed has no such file: it is at generation 1.
"""

import json
from collections.abc import Container, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from riverrun.errors import CheckpointError
from riverrun.model.table import TableGeneration, TableSpec
from riverrun.streams.checkpoint import Offsets, parse_offsets
from riverrun.streams.checkpoint_files import CheckpointFolder


@dataclass(frozen=True)
class Generation:
    """A generation that a replay made. `topic` has its rows up to the cutover, the stream's own topic those after it, from
    the offsets `first` on. It has read its inputs from `begin`; at `cutover` it took over from the generation before.
    Records older than `since_ms` were not read again; 0 means all were."""

    number: int
    query: str
    previous_query: str
    topic: str
    replayed_from: str
    begin: Offsets
    cutover: Offsets
    first: dict[int, int]
    watermark_ms: int
    rows: int
    at: str
    since_ms: int = 0

    @property
    def target(self) -> str:
        """The stream's own topic."""
        return self.topic.rpartition(".")[0]

    def as_table_generation(self) -> TableGeneration:
        """The generation as stores need to know it."""
        return TableGeneration(self.number, self.topic, self.first, self.since_ms)

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "Generation":
        first = {int(partition): int(offset) for partition, offset in content["first"].items()}
        begin, cutover = parse_offsets(content["begin"]), parse_offsets(content["cutover"])
        return cls(**{**content, "first": first, "begin": begin, "cutover": cutover})


def _file(folder: Path) -> Path:
    return folder / "generations.json"


def read_generations(folder: Path) -> list[Generation]:
    """The generations that replays made, oldest first. `folder` is the stream's own."""
    try:
        return [Generation.from_dict(content) for content in json.loads(_file(folder).read_text(encoding="utf-8"))]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"Which generation of {folder.name} is the current one cannot be read",
            found=f"{type(error).__name__}: {error}",
            hint=f"Is {_file(folder)} whole?",
            stream=folder.name,
        ) from error


def add_generation(folder: Path, generation: Generation) -> None:
    """Make it the stream's current one: this is the swap. Doing it again changes nothing."""
    known = read_generations(folder)
    if all(other.number != generation.number for other in known):
        write_json(_file(folder), [asdict(entry) for entry in [*known, generation]])


def with_generations(tables: Iterable[TableSpec], streams: Iterable[Path]) -> list[TableSpec]:
    """The tables with the generations that replays have made of their streams. `streams` are the streams' folders."""
    histories = [read_generations(folder) for folder in streams]
    by_topic = {
        generations[-1].target: tuple(generation.as_table_generation() for generation in generations)
        for generations in histories
        if generations
    }
    return [replace(table, generations=by_topic.get(table.topic, ())) for table in tables]


def current_generation(folder: Path) -> int:
    """The number of the generation that writes the stream's topic."""
    known = read_generations(folder)
    return known[-1].number if known else 1


def checkpoint_name(stream: str, number: int) -> str:
    """The folder of a generation's checkpoint, beside those of the other streams."""
    return stream if number == 1 else f"{stream}.{number}"


def checkpoint_path(checkpoints: str, folder: Path) -> str:
    """Where the checkpoint of a stream's current generation is. `folder` is the stream's own."""
    return f"{checkpoints}/{checkpoint_name(folder.name, current_generation(folder))}"


def newer_generation(checkpoints: CheckpointFolder, folder: Path, streams: Container[str] = ()) -> str:
    """The checkpoint of a generation after the current one that has committed batches; empty when there is none.

    `folder` is the stream's own: on another machine it may not know of a replay that was swapped in. A replay that is under
    way here is not reported. `streams` are the app's: a checkpoint with one of their names is no generation."""
    if not checkpoints.exists() or (folder / "replay").exists():
        return ""
    current_number = current_generation(folder)
    for checkpoint in checkpoints.iterdir():
        stream, _, number = checkpoint.name.rpartition(".")
        if checkpoint.name in streams:
            continue
        if (
            stream == folder.name
            and number.isdigit()
            and int(number) > current_number
            and (checkpoint / "commits").exists()
        ):
            return checkpoint.name
    return ""


def write_json(path: Path, content: Any) -> None:
    """Replace a file atomically: a reader sees the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps(content), encoding="utf-8")
    temporary.replace(path)
