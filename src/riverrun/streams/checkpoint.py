"""A stream's checkpoint: its location, its query id, and the offsets it has read from and to. Spark's files are only read,
never changed."""

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
    """Delete a checkpoint, wherever it is. If anything is left the stream would resume from it, so that is an error."""
    folder = local_folder(location)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
        still_there = folder.exists()
    else:
        hadoop_path: Any = spark._jvm.org.apache.hadoop.fs.Path(location)  # type: ignore[union-attr]  # noqa: SLF001
        file_system = hadoop_path.getFileSystem(spark._jsc.hadoopConfiguration())  # noqa: SLF001
        file_system.delete(hadoop_path, True)
        still_there = file_system.exists(hadoop_path)
    if still_there:
        raise CheckpointError(
            "The old checkpoint cannot be removed",
            expected="that we may delete what is there",
            found=location,
            hint="Remove it by hand, or let streams.checkpoints name another place",
        )


@dataclass(frozen=True)
class CheckpointStatus:
    """How far a stream is: after `batch`, it has read from `begin` to `end`. Rows before `watermark_ms` are final."""

    query_id: str
    batch: int
    begin: Offsets
    end: Offsets
    watermark_ms: int
    # The first batch that counts; earlier ones were computed by other code.
    first_batch: int = 0


@dataclass(frozen=True)
class CheckpointOffsets:
    """How far a checkpoint is: the last committed batch, the last planned one, the offsets that one ends at, and the number
    of partitions of its state. A batch that was planned and not committed is computed again."""

    committed_batch: int = -1
    planned_batch: int = -1
    end: Offsets = field(default_factory=dict)
    state_partitions: int = 0


def read_checkpoint_offsets(folder: CheckpointFolder) -> CheckpointOffsets:
    """Read what the files say; for broken ones return the defaults, because Spark itself reports what is wrong with them."""
    try:
        planned = newest_entry(folder / "offsets")
        lines = _read_log(folder / "offsets" / str(planned))
        end: Offsets = {}
        for line in lines[1:]:
            if line != "-":
                end |= parse_offsets(json.loads(line))
        state_partitions = int((json.loads(lines[0]).get("conf") or {}).get("spark.sql.shuffle.partitions") or 0)
        committed = newest_entry(folder / "commits") if (folder / "commits").exists() else -1
        return CheckpointOffsets(committed, planned, end, state_partitions)
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return CheckpointOffsets()


def has_read(folder: CheckpointFolder) -> bool:
    """Whether the stream of a checkpoint has read a record, or may have. False only if no batch was planned, or one that
    ends at the offsets where the stream began."""
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
    """The status after the last committed batch; None if there is none."""
    try:
        query = query_id(folder)
        committed = newest_entry(folder / "commits")
        if committed < 0:
            return None
        lines = _read_log(folder / "offsets" / str(committed))
        begin: Offsets = {}
        for source in sorted((folder / "sources").iterdir(), key=lambda folder: folder.name):
            begin |= parse_offsets(json.loads(_read_log(source / "0")[-1]))
        end: Offsets = {}
        for line in lines[1:]:
            if line != "-":
                end |= parse_offsets(json.loads(line))
        for topic, partitions in end.items():
            # A partition that was added later is read from its first record.
            begin[topic] = {partition: begin.get(topic, {}).get(partition, 0) for partition in partitions}
        return CheckpointStatus(query, committed, begin, end, int(json.loads(lines[0]).get("batchWatermarkMs") or 0))
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
    """The id of the streaming query that a checkpoint belongs to."""
    return str(json.loads((folder / "metadata").read_text(encoding="utf-8"))["id"])


def newest_entry(folder: CheckpointFolder) -> int:
    """The newest batch number in one of Spark's logs; -1 when it is empty."""
    return max((int(entry.name) for entry in folder.iterdir() if entry.name.isdigit()), default=-1)


def _read_log(file: CheckpointFolder) -> list[str]:
    """The lines of one of Spark's log files after the version line."""
    version, *lines = file.read_text(encoding="utf-8").replace("\0", "").strip().splitlines()
    if version.strip() != "v1":
        raise ValueError(f"{file.name} is of version {version!r}")
    return [line.strip() for line in lines]


def parse_offsets(content: Mapping[str, Mapping[str, Any]]) -> Offsets:
    """Offsets by topic and partition, from JSON, whose keys are strings."""
    return {
        topic: {int(partition): int(offset) for partition, offset in partitions.items()}
        for topic, partitions in content.items()
    }
