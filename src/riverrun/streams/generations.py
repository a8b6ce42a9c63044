"""The generations of a stream: every replay that was swapped in makes a new one.

Each has a checkpoint of its own; which one is the stream's is said by one file, `generations.json`, that is replaced in one
step. So a swap happens or does not, whatever is killed. A stream that was never replayed has no such file: generation 1.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from riverrun.errors import CheckpointError
from riverrun.streams.checkpoint import Offsets, offsets_of


@dataclass(frozen=True)
class Generation:
    """One that a replay made. `topic` has its rows up to the cut, the stream's own topic those after it, from the offsets
    `first` on. It has read its inputs from `begin`; at `cut` it took over from the one before."""

    number: int
    query: str
    before: str
    topic: str
    asked: str
    begin: Offsets
    cut: Offsets
    first: dict[int, int]
    watermark_ms: int
    rows: int
    at: str

    @classmethod
    def of(cls, content: dict[str, Any]) -> "Generation":
        first = {int(part): int(offset) for part, offset in content["first"].items()}
        begin, cut = offsets_of(content["begin"]), offsets_of(content["cut"])
        return cls(**{**content, "first": first, "begin": begin, "cut": cut})


def _file(folder: Path) -> Path:
    return folder / "generations.json"


def read_generations(folder: Path) -> list[Generation]:
    """Those that replays made, oldest first. `folder` is the stream's own."""
    try:
        return [Generation.of(each) for each in json.loads(_file(folder).read_text(encoding="utf-8"))]
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


def current(folder: Path) -> int:
    """The number of the generation that writes the stream's topic."""
    known = read_generations(folder)
    return known[-1].number if known else 1


def checkpoint_name(stream: str, number: int) -> str:
    """The folder of a generation's checkpoint, beside those of the other streams."""
    return stream if number == 1 else f"{stream}.{number}"


def checkpoint_of(checkpoints: str, folder: Path) -> str:
    """Where the checkpoint of a stream's current generation is. `folder` is the stream's own."""
    return f"{checkpoints}/{checkpoint_name(folder.name, current(folder))}"


def write_json(path: Path, content: Any) -> None:
    """Replace a file in one step: a reader sees the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps(content), encoding="utf-8")
    temporary.replace(path)
