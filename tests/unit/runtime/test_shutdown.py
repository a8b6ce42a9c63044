"""The end of what runs beside: all are asked at once, and without Kafka they are not waited for."""

from typing import Any

from riverrun.runtime.shutdown import STOP_SECONDS_WITHOUT_KAFKA, stop_supervisors


class Beside:
    def __init__(self, said: list[Any]) -> None:
        self._said = said

    def ask_to_stop(self) -> None:
        self._said.append("asked")

    def limit_stop_time(self, seconds: float) -> None:
        self._said.append(seconds)


def test_they_are_hurried_when_kafka_is_gone_and_after_all_are_asked() -> None:
    said: list[Any] = []
    stop_supervisors([Beside(said), Beside(said)], lambda: False)
    assert said == ["asked", "asked"]
    said.clear()

    def gone() -> bool:
        assert said == ["asked", "asked"], "to find out may take seconds"
        return True

    stop_supervisors([Beside(said), Beside(said)], gone)
    assert said == ["asked", "asked", STOP_SECONDS_WITHOUT_KAFKA, STOP_SECONDS_WITHOUT_KAFKA]
