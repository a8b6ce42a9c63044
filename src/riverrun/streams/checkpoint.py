"""A stream's checkpoint: where it is, and what it says: which life of it, how far it is, and from where. Spark's files are
read, never changed."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from riverrun.errors import CheckpointError
from riverrun.streams.checkpoint_files import CheckpointFolder, local_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Offsets = dict[str, dict[int, int]]


def remove_checkpoint(spark: "SparkSession", location: str) -> None:
    """Wherever it is. What is still there afterwards would be gone on with, so that is an error."""
    folder = local_folder(location)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
        still_there = folder.exists()
    else:
        hadoop: Any = spark._jvm.org.apache.hadoop.fs.Path(location)  # type: ignore[union-attr]  # noqa: SLF001
        files = hadoop.getFileSystem(spark._jsc.hadoopConfiguration())  # noqa: SLF001
        files.delete(hadoop, True)
        still_there = files.exists(hadoop)
    if still_there:
        raise CheckpointError(
            "The old checkpoint cannot be removed",
            expected="that we may delete what is there",
            found=location,
            hint="Remove it by hand, or let streams.checkpoints name another place",
        )


@dataclass(frozen=True)
class CheckpointStatus:
    """Where a stream stands: after `batch`, having read from `begin` to `end`. Rows before `watermark_ms` are final."""

    query_id: str
    batch: int
    begin: Offsets
    end: Offsets
    watermark_ms: int
    # The first batch that counts, where those before were made by other code.
    first_batch: int = 0


@dataclass(frozen=True)
class CheckpointOffsets:
    """How far a checkpoint is: the last batch that ended, the last that was begun, up to where that one reads, and into how
    many parts its state is split. A batch that was begun and did not end is computed again."""

    committed_batch: int = -1
    planned_batch: int = -1
    end: Offsets = field(default_factory=dict)
    state_partitions: int = 0


def read_checkpoint_offsets(folder: CheckpointFolder) -> CheckpointOffsets:
    """Nothing is asked of the files but what is there: Spark itself says what is wrong with them."""
    try:
        begun = newest_entry(folder / "offsets")
        lines = _read_log(folder / "offsets" / str(begun))
        end: Offsets = {}
        for line in lines[1:]:
            if line != "-":
                end |= parse_offsets(json.loads(line))
        parts = int((json.loads(lines[0]).get("conf") or {}).get("spark.sql.shuffle.partitions") or 0)
        ended = newest_entry(folder / "commits") if (folder / "commits").exists() else -1
        return CheckpointOffsets(ended, begun, end, parts)
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return CheckpointOffsets()


def has_read(folder: CheckpointFolder) -> bool:
    """Whether the stream of a checkpoint has read a record, or may have. False only when it has begun no batch, or one that
    reads up to where the stream began."""
    if not (folder / "offsets").exists() or newest_entry(folder / "offsets") < 0:
        return False
    try:
        begin: Offsets = {}
        for source in (folder / "sources").iterdir():
            begin |= parse_offsets(json.loads(_read_log(source / "0")[-1]))
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return True
    return read_checkpoint_offsets(folder).end != begin


def read_checkpoint_status(folder: CheckpointFolder, stream: str) -> CheckpointStatus | None:
    """What the last batch that ended left; None when none has."""
    try:
        generation = query_id(folder)
        ended = newest_entry(folder / "commits")
        if ended < 0:
            return None
        lines = _read_log(folder / "offsets" / str(ended))
        begin: Offsets = {}
        for source in sorted((folder / "sources").iterdir(), key=lambda each: each.name):
            begin |= parse_offsets(json.loads(_read_log(source / "0")[-1]))
        end: Offsets = {}
        for line in lines[1:]:
            if line != "-":
                end |= parse_offsets(json.loads(line))
        for topic, parts in end.items():
            # A partition that came later is read from its first record.
            begin[topic] = {part: begin.get(topic, {}).get(part, 0) for part in parts}
        return CheckpointStatus(generation, ended, begin, end, int(json.loads(lines[0]).get("batchWatermarkMs") or 0))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise CheckpointError(
            f"The checkpoint of {stream} cannot be read",
            found=f"{type(error).__name__}: {error}",
            hint=f"Is {folder} whole?",
            stream=stream,
        ) from error


def query_id(folder: CheckpointFolder) -> str:
    """Which life of a stream a checkpoint is of."""
    return str(json.loads((folder / "metadata").read_text(encoding="utf-8"))["id"])


def newest_entry(folder: CheckpointFolder) -> int:
    """The newest number in one of Spark's logs; -1 when it is empty."""
    return max((int(each.name) for each in folder.iterdir() if each.name.isdigit()), default=-1)


def _read_log(file: CheckpointFolder) -> list[str]:
    """The lines of one of Spark's log files below its version."""
    version, *lines = file.read_text(encoding="utf-8").replace("\0", "").strip().splitlines()
    if version.strip() != "v1":
        raise ValueError(f"{file.name} is of version {version!r}")
    return [line.strip() for line in lines]


def parse_offsets(content: Mapping[str, Mapping[str, Any]]) -> Offsets:
    """Offsets by topic and partition, of JSON, which has no numbers for names."""
    return {topic: {int(part): int(offset) for part, offset in parts.items()} for topic, parts in content.items()}
