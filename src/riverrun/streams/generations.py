"""The generations of a stream: every replay that was swapped in makes a new one.

Each has a checkpoint of its own; which one is the stream's is said by one file, `generations.json`, that is replaced in one
step. So a swap happens or does not, whatever is killed. A stream that was never replayed has no such file: generation 1.
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
    """One that a replay made. `topic` has its rows up to the cut, the stream's own topic those after it, from the offsets
    `first` on. It has read its inputs from `begin`; at `cutover` it took over from the one before. The records that it has
    not read again are older than `since_ms`; 0: it has read all."""

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
        """What stores need to know of it."""
        return TableGeneration(self.number, self.topic, self.first, self.since_ms)

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "Generation":
        first = {int(part): int(offset) for part, offset in content["first"].items()}
        begin, cutover = parse_offsets(content["begin"]), parse_offsets(content["cutover"])
        return cls(**{**content, "first": first, "begin": begin, "cutover": cutover})


def _file(folder: Path) -> Path:
    return folder / "generations.json"


def read_generations(folder: Path) -> list[Generation]:
    """Those that replays made, oldest first. `folder` is the stream's own."""
    try:
        return [Generation.from_dict(load) for load in json.loads(_file(folder).read_text(encoding="utf-8"))]
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
    if all(each.number != generation.number for each in known):
        write_json(_file(folder), [asdict(each) for each in [*known, generation]])


def with_generations(tables: Iterable[TableSpec], streams: Iterable[Path]) -> list[TableSpec]:
    """The tables as stores are to know them, with what replays have made of their streams. `streams` are their folders."""
    generations = [read_generations(folder) for folder in streams]
    by_topic = {each[-1].target: tuple(one.as_table_generation() for one in each) for each in generations if each}
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
    """The checkpoint of a generation after the current one that has ended batches; empty when there is none.

    `folder` is the stream's own: on another machine it may not know of a replay that was swapped in, while of one that is
    under way it does. `streams` are those of the app, whatever they are called."""
    if not checkpoints.exists() or (folder / "replay").exists():
        return ""
    current_number = current_generation(folder)
    for each in checkpoints.iterdir():
        stream, _, number = each.name.rpartition(".")
        if each.name in streams:
            continue
        if stream == folder.name and number.isdigit() and int(number) > current_number and (each / "commits").exists():
            return each.name
    return ""


def write_json(path: Path, content: Any) -> None:
    """Replace a file in one step: a reader sees the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps(content), encoding="utf-8")
    temporary.replace(path)
