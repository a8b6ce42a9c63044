"""The function that opens Avro in Spark's workers, without Spark: on what it gets, and after the way there."""

import pickle
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pytest
from pyspark import cloudpickle

from riverrun.config import RegistrySettings, Secret
from riverrun.errors import RegistryUnavailableError
from riverrun.kafka.registry import wire_format
from riverrun.kafka.registry.wire_format import wire_format_of
from riverrun.model.event import Event, key
from riverrun.model.framing import encode_frame
from riverrun.model.topic import Topic
from riverrun.streams.compile import registry_decoding


class Reading(Event):
    house: str = key()
    load: float


TOPIC = Topic("t", Reading, format="avro")


class StandIn:
    url = "http://registry"

    def find_schema_id(self, *_: str) -> int:
        return 1

    def schema(self, schema_id: int) -> tuple[str, str]:
        if schema_id == 1:
            return "AVRO", TOPIC.registry_schema
        raise RegistryUnavailableError("away")


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> RegistrySettings:
    monkeypatch.setattr(wire_format, "registry_of", lambda _: StandIn())
    registry_decoding._reader.cache_clear()
    return RegistrySettings(url="http://registry", username="u", password=Secret("p"))


def test_values_are_opened_and_bad_ones_are_empty(settings: RegistrySettings) -> None:
    good = wire_format_of(TOPIC, settings).encode(Reading(house="h", load=1.5))
    function: Any = pickle.loads(cloudpickle.dumps(registry_decoding._avro_udf(settings, "Reading").func))  # type: ignore[no-untyped-call]  # noqa: S301
    found = function(pd.Series([good, None, b"", b"{}", encode_frame(1, b"\x02")]))
    # Null stays null, because it deletes a key; what is bad must not.
    assert list(found) == [b'{"house":"h","load":1.5}', None, b"", b"", b""]


def test_a_registry_that_is_away_is_no_fault_of_the_record(settings: RegistrySettings) -> None:
    function = registry_decoding._avro_udf(settings, "Reading").func
    with pytest.raises(RegistryUnavailableError):
        function(pd.Series([encode_frame(2, b"")]))
