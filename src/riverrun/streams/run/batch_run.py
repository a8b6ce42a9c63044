"""One run of a stream at speed batch, and the records it covers. Saved before it begins, so that a run that a crash
interrupted resumes over the same records, and what it wrote is known (sink.py)."""

import json
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from riverrun.errors import CheckpointError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.commit_markers import Claim
from riverrun.model.cluster_state import TopicPartition
from riverrun.streams.checkpoint import Offsets, parse_offsets
from riverrun.streams.run.batch_layout import digest

# How the ids of runs begin.
_ID = "batch-"


@dataclass(frozen=True)
class BatchRun:
    """A run under an id of its own, from and to these offsets of topics with these ids, by code with this fingerprint."""

    id: str
    code: str
    topics: dict[str, str]
    begin: Offsets
    end: Offsets
    file: Path

    @classmethod
    def read(cls, file: Path) -> "BatchRun | None":
        """The unfinished run; None if there is none, or its file cannot be read."""
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            topics = {str(topic): str(id_) for topic, id_ in content["topics"].items()}
            begin, end = parse_offsets(content["begin"]), parse_offsets(content["end"])
            return cls(str(content["id"]), str(content["code"]), topics, begin, end, file)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    @classmethod
    def create(cls, file: Path, code: str, topics: Mapping[str, str], begin: Offsets, end: Offsets) -> "BatchRun":
        run = cls(f"{_ID}{uuid4()}", code, dict(topics), begin, end, file)
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_suffix(".tmp")
        content = {"id": run.id, "code": code, "topics": run.topics, "begin": begin, "end": end}
        temporary.write_text(json.dumps(content), encoding="utf-8")
        temporary.replace(file)
        return run

    @property
    def ranges(self) -> dict[str, tuple[dict[str, int], dict[str, int]]]:
        """The offsets of each topic, from and to, in the form Spark expects."""
        return {topic: (_string_keys(self.begin[topic]), _string_keys(self.end[topic])) for topic in self.end}

    @property
    def digest(self) -> str:
        return digest([self.topics, self.begin, self.end])

    def stale_reason(self, code: str, topics: Mapping[str, str], begin: Offsets, end: Offsets) -> str:
        """Why the run must not be resumed with this code, these topic ids and offsets; empty if it may. Its tasks would have
        other rows: some would be lost and others written twice."""
        if self.code != code:
            return "its code has changed since"
        for topic, known_id in self.topics.items():
            if topics.get(topic) != known_id:
                return f"{topic}, which it reads, was deleted and made again since"
        for topic, partitions in self.end.items():
            for partition, last in partitions.items():
                if begin[topic][partition] > self.begin[topic][partition] or end[topic][partition] < last:
                    return f"records of {topic}[{partition}] that it was over are gone since"
        return ""

    def finish(self) -> None:
        self.file.unlink(missing_ok=True)


Records = tuple[dict[str, str], Offsets, Offsets]


def go_on_or_begin(
    file: Path, code: str, records: Records, last: Claim | None, notice: Callable[[str], None]
) -> BatchRun:
    """The run that a crash interrupted, or a new one over all `records`. `file` is in the stream's own folder, `last` is the
    stream's newest claim. CheckpointError if another host's run was interrupted: only that host knows its records."""
    name, (ids, begin, end) = file.parent.name, records
    interrupted = BatchRun.read(file)
    if last is not None and last.ended is False and _is_of_another(last, interrupted):
        raise CheckpointError(
            f"A batch of {name} was cut off, and over which records it was is not known here",
            found=f"the run {last.generation} of {last.host}, process {last.pid}; no such run in {file}",
            hint=f"Copy the folder {file.parent} from the project on {last.host} and run it again; or `--fresh {name}` "
            "begins a new one, which sends all its rows again",
            stream=name,
        )
    if interrupted is not None and (why := interrupted.stale_reason(code, ids, begin, end)):
        notice(f"{name} was cut off in a batch, and {why}: it begins a new one over all records")
    elif interrupted is not None:
        notice(f"{name} goes on with a batch that was cut off; what it wrote is not written again")
        return interrupted
    return BatchRun.create(file, code, ids, begin, end)


def _is_of_another(last: Claim, interrupted: BatchRun | None) -> bool:
    """Whether the newest claim is of a batch run that this project does not know. After a run it knew and gave up, its
    next run may not have claimed the stream yet."""
    if not last.generation.startswith(_ID):
        return False
    return interrupted is None or (last.generation != interrupted.id and last.host != socket.gethostname())


def read_topic_ranges(admin: Admin, topics: list[str]) -> Records:
    """The ids of topics, and the first and last offsets of their committed records."""
    topic_states = admin.topics(topics, config=False)
    partitions = [
        TopicPartition(name, partition)
        for name, state in topic_states.items()
        for partition in range(len(state.partitions))
    ]
    first_offsets, last_offsets = (
        admin.offsets(partitions, "earliest"),
        admin.offsets(partitions, "latest", committed_only=True),
    )
    return (
        {name: state.topic_id for name, state in topic_states.items()},
        _by_topic(first_offsets),
        _by_topic(last_offsets),
    )


def _by_topic(offsets: Mapping[TopicPartition, int]) -> Offsets:
    by_topic: Offsets = {}
    for partition, offset in offsets.items():
        by_topic.setdefault(partition.topic, {})[partition.partition] = offset
    return by_topic


def _string_keys(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): offset for partition, offset in offsets.items()}
