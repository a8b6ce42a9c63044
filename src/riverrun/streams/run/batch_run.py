"""One run of a stream at the speed batch: over which records. Written down before it begins, so that a run that a crash cut
off goes on over the same ones, and what it wrote is known (sink.py)."""

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
        """The run that is not over; None when there is none, or its file says nothing that makes sense."""
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
        """The offsets of each topic, from and to, as Spark takes them."""
        return {topic: (_string_keys(self.begin[topic]), _string_keys(self.end[topic])) for topic in self.end}

    @property
    def digest(self) -> str:
        return digest([self.topics, self.begin, self.end])

    def stale_reason(self, code: str, topics: Mapping[str, str], begin: Offsets, end: Offsets) -> str:
        """Why it must not be gone on with, where code, ids of topics and offsets are these by now; empty when it may: its
        parts would hold other rows, of which some would be lost and others be there twice."""
        if self.code != code:
            return "its code has changed since"
        for topic, known_id in self.topics.items():
            if topics.get(topic) != known_id:
                return f"{topic}, which it reads, was deleted and made again since"
        for topic, parts in self.end.items():
            for part, last in parts.items():
                if begin[topic][part] > self.begin[topic][part] or end[topic][part] < last:
                    return f"records of {topic}[{part}] that it was over are gone since"
        return ""

    def finish(self) -> None:
        self.file.unlink(missing_ok=True)


Records = tuple[dict[str, str], Offsets, Offsets]


def go_on_or_begin(
    file: Path, code: str, records: Records, last: Claim | None, notice: Callable[[str], None]
) -> BatchRun:
    """The run that a crash cut off, or a new one over all `records`. `file` is in the stream's own folder, `last` the
    stream's newest claim. CheckpointError where another host's run was cut off: what it was over is known there only."""
    name, (ids, begin, end) = file.parent.name, records
    cut_off = BatchRun.read(file)
    if last is not None and last.ended is False and _is_of_another(last, cut_off):
        raise CheckpointError(
            f"A batch of {name} was cut off, and over which records it was is not known here",
            found=f"the run {last.generation} of {last.host}, process {last.pid}; no such run in {file}",
            hint=f"Copy the folder {file.parent} from the project on {last.host} and run it again; or `--fresh {name}` "
            "begins a new one, which sends all its rows again",
            stream=name,
        )
    if cut_off is not None and (why := cut_off.stale_reason(code, ids, begin, end)):
        notice(f"{name} was cut off in a batch, and {why}: it begins a new one over all records")
    elif cut_off is not None:
        notice(f"{name} goes on with a batch that was cut off; what it wrote is not written again")
        return cut_off
    return BatchRun.create(file, code, ids, begin, end)


def _is_of_another(last: Claim, cut_off: BatchRun | None) -> bool:
    """Whether the newest claim is of a batch run of which this project knows nothing. One that it knew and gave up may be
    followed by one that has not claimed the stream yet."""
    if not last.generation.startswith(_ID):
        return False
    return cut_off is None or (last.generation != cut_off.id and last.host != socket.gethostname())


def read_topic_ranges(admin: Admin, topics: list[str]) -> Records:
    """The ids of topics, and from where and to where their committed records are now."""
    topic_states = admin.topics(topics, config=False)
    places = [
        TopicPartition(name, part) for name, state in topic_states.items() for part in range(len(state.partitions))
    ]
    first_offsets, last_offsets = (
        admin.offsets(places, "earliest"),
        admin.offsets(places, "latest", committed_only=True),
    )
    return (
        {name: state.topic_id for name, state in topic_states.items()},
        _by_topic(first_offsets),
        _by_topic(last_offsets),
    )


def _by_topic(offsets: Mapping[TopicPartition, int]) -> Offsets:
    by_topic: Offsets = {}
    for place, offset in offsets.items():
        by_topic.setdefault(place.topic, {})[place.partition] = offset
    return by_topic


def _string_keys(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(part): offset for part, offset in offsets.items()}
