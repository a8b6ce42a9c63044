"""A pipeline whose Kafka is gone says so, once, and that it is back."""

from typing import Any

from riverrun.errors import AuthorizationError, BrokerUnreachableError, RiverrunError
from riverrun.streams.pipeline import Pipeline


class Cluster:
    """Answers, or raises."""

    error: RiverrunError | None = None

    def offsets(self, places: Any, at: str, *, committed_only: bool) -> dict[Any, int]:
        assert at == "latest"
        assert committed_only
        if self.error is not None:
            raise self.error
        return dict.fromkeys(places, 1)


def test_it_is_said_once_and_again_when_it_is_back() -> None:
    cluster, said = Cluster(), list[str]()
    pipeline: Any = Pipeline.__new__(Pipeline)
    pipeline._admin, pipeline._notice, pipeline._partitions, pipeline._kafka_away = cluster, said.append, [], False
    pipeline._read_end_offsets(force=True)
    assert not said
    cluster.error = BrokerUnreachableError("No broker answered")
    for _ in range(3):
        pipeline._read_end_offsets(force=True)
    assert said == ["Kafka does not answer; the streams wait for it, and go on when it is back"]
    cluster.error = None
    for _ in range(3):
        pipeline._read_end_offsets(force=True)
    assert said[1:] == ["Kafka answers again"]
    cluster.error = AuthorizationError("no right")
    pipeline._read_end_offsets(force=True)
    assert len(said) == 2, "the streams themselves say what else is wrong"
