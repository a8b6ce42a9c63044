"""One run of a stream at the speed batch: over which records. Written down before it begins, so that a run that a crash cut
off goes on over the same ones, and what it wrote is known (sink.py)."""

import json
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from riverrun.streams.checkpoint import Offsets, offsets_of


@dataclass(frozen=True)
class BatchRun:
    """A run under an id of its own, from and to these offsets of topics, by code with this fingerprint."""

    id: str
    code: str
    begin: Offsets
    end: Offsets
    file: Path

    @classmethod
    def read(cls, file: Path) -> "BatchRun | None":
        """The run that is not over; None when there is none, or its file says nothing that makes sense."""
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            return cls(
                str(content["id"]), str(content["code"]), offsets_of(content["begin"]), offsets_of(content["end"]), file
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    @classmethod
    def begin_over(cls, file: Path, code: str, begin: Offsets, end: Offsets) -> "BatchRun":
        run = cls(f"batch-{uuid4()}", code, begin, end, file)
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_suffix(".tmp")
        temporary.write_text(json.dumps({"id": run.id, "code": code, "begin": begin, "end": end}), encoding="utf-8")
        temporary.replace(file)
        return run

    def over(self) -> None:
        self.file.unlink(missing_ok=True)
