"""Records that retention removed before they were read."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from riverrun.errors import OffsetOutOfRangeError
from riverrun.model.cluster_state import TopicPartition


class OffsetGap(NamedTuple):
    """A partition was to be read from offset `first`, and its log begins at `next` and ends at `end`."""

    topic_partition: TopicPartition
    first: int
    next: int
    end: int

    @property
    def missing(self) -> int:
        """How many offsets are missing."""
        return max(0, self.next - self.first)

    @property
    def log_recreated(self) -> bool:
        """Whether the position is behind the end: the log is not the one that was read."""
        return self.first > self.end

    def __str__(self) -> str:
        if self.log_recreated:
            return f"{self.topic_partition} was to be read from {self.first} and ends at {self.end}"
        return f"{self.topic_partition} from {self.first} to {self.next - 1}"


def offset_gap_error(gaps: Sequence[OffsetGap], group: str, *, stops: bool = False) -> OffsetOutOfRangeError:
    """One error for all partitions that were out of range together. `stops` says that the reader ends with it."""
    consequence = "Reading goes on at the oldest record there is"
    if stops:
        move = f" (riverrun offsets move {group} --to-earliest)" if group else ""
        consequence = f'Nothing was skipped yet: move the reader{move}, or read with on_gone="continue"'
    count = sum(gap.missing for gap in gaps)
    topics = ", ".join(sorted({gap.topic_partition.topic for gap in gaps}))
    fields: dict[str, Any] = {
        "count": count,
        "group": group,
        "gaps": tuple(gaps),
        **(
            {"topic": gaps[0].topic_partition.topic, "partition": gaps[0].topic_partition.partition}
            if len(gaps) == 1
            else {}
        ),
    }
    gap_texts = "; ".join(str(gap) for gap in gaps)
    if any(gap.log_recreated for gap in gaps):
        return OffsetOutOfRangeError(
            f"What was to be read of {topics} is not there: the topic was deleted and made anew, or lost its end",
            found=gap_texts,
            hint=consequence,
            **fields,
        )
    return OffsetOutOfRangeError(
        f"{count} record{'s' if count != 1 else ''} of {topics} {'are' if count != 1 else 'is'} gone: retention removed "
        f"{'them' if count != 1 else 'it'} before {'they were' if count != 1 else 'it was'} read",
        found=gap_texts,
        hint=f"{consequence}; keep records longer (retention), or read faster",
        **fields,
    )
