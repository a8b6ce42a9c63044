"""From a real mosquitto into a real Kafka: typed, keyed, marked, bad ones beside, acknowledged when Kafka has them."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import psutil
import pytest

import riverrun as rr
from riverrun.errors import ConfigError
from riverrun.testing import KafkaUnderTest
from support.connecting import header_of, records_in, running, values_in, wait_until
from support.devices import device, publish_all
from support.mosquitto import PASSWORD, USER, Mosquitto
from support.producing import Fragile, fragile_kafka

pytestmark = pytest.mark.kafka

Topics = Callable[..., str]


class Reading(rr.Event):
    house_id: str = rr.key()
    load_kw: float = rr.field(ge=0)
    at: datetime = rr.event_time()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    with Mosquitto(tmp_path / "mosquitto") as started:
        yield started


def app_of(topic: str, source: rr.Source, event: type[rr.Event] | None = Reading) -> rr.App:
    app = rr.App(f"app-{topic}")
    app.source(app.topic(topic, event), source)
    return app


def readings(first: int, count: int) -> list[bytes]:
    return [
        json.dumps({"load_kw": float(number), "at": "2026-03-01T00:00:00Z"}).encode()
        for number in range(first, first + count)
    ]


def test_devices_messages_are_events_of_a_topic(
    kafka: KafkaUnderTest, kafka_topic: Topics, tmp_path: Path, broker: Mosquitto
) -> None:
    topic = kafka_topic(partitions=2)
    app = app_of(topic, rr.mqtt("meters/+/load", fields={"house_id": 1}, url=broker.url))
    with running(app, kafka.connection, tmp_path) as process:
        wait_until(lambda: process.statuses and process.statuses[0].state == "waiting")
        publish_all(broker.port, "meters/h1/load", readings(0, 50))
        publish_all(broker.port, "meters/h2/load", [b"{", b"", b'{"load_kw": -1}', b'{"load_kw": "much"}', b"7"])
        publish_all(broker.port, "elsewhere/h3/load", readings(0, 1))
        standing = wait_until(lambda: process.statuses[0].records == 55 and process.statuses[0])
        assert standing.dead_letters == 5
    found = records_in(kafka.connection, topic)
    assert [json.loads(each.value() or b"")["load_kw"] for each in found] == [float(number) for number in range(50)]
    assert {each.key() for each in found} == {b"h1"}
    told = {name: header_of(found[0], name) for name in ("mqtt.topic", "mqtt.qos", "mqtt.retain", "mqtt.repeat")}
    assert told == {"mqtt.topic": "meters/h1/load", "mqtt.qos": "1", "mqtt.retain": "false", "mqtt.repeat": "no"}
    dead = records_in(kafka.connection, f"{topic}.dead")
    # With what the topic says, where that could be put in: so they can be mended and sent again.
    filled = [b'{"load_kw":-1,"house_id":"h2"}', b'{"load_kw":"much","house_id":"h2"}']
    assert [each.value() for each in dead] == [b"{", b"", *filled, b"7"]
    assert {header_of(each, "mqtt.topic") for each in dead} == {"meters/h2/load"}
    reasons = [header_of(each, "riverrun.dead.message") for each in dead]
    for reason, part in zip(reasons, ("not JSON", "empty", "at", "at", "no JSON object"), strict=True):
        assert part in reason
    # All were acknowledged: nothing comes again.
    with running(app, kafka.connection, tmp_path) as process:
        publish_all(broker.port, "meters/h1/load", readings(50, 1))
        wait_until(lambda: process.statuses and process.statuses[0].records == 56)
    assert Counter(header_of(each, "mqtt.repeat") for each in records_in(kafka.connection, topic)) == {"no": 51}


def test_what_comes_while_nobody_is_there_is_kept_by_the_broker(
    kafka: KafkaUnderTest, kafka_topic: Topics, tmp_path: Path, broker: Mosquitto
) -> None:
    topic = kafka_topic()
    app = app_of(topic, rr.mqtt("doors/+", key=1, url=broker.url), None)
    with running(app, kafka.connection, tmp_path) as process:
        wait_until(lambda: process.statuses and process.statuses[0].state == "waiting")
        publish_all(broker.port, "doors/a", [b"1"])
        wait_until(lambda: process.statuses[0].records == 1)
    publish_all(broker.port, "doors/b", [b"2", b"3"])
    broker.stop()
    broker.start()
    with running(app, kafka.connection, tmp_path) as process:
        wait_until(lambda: process.statuses and process.statuses[0].records == 3)
    assert [(each.key(), each.value()) for each in records_in(kafka.connection, topic)] == [
        (b"a", b"1"), (b"b", b"2"), (b"b", b"3"),
    ]  # fmt: skip


def test_a_filter_that_is_gone_from_the_file_is_ended_at_the_broker(
    kafka: KafkaUnderTest, kafka_topic: Topics, tmp_path: Path, broker: Mosquitto
) -> None:
    topic = kafka_topic()

    def run(filters: list[str], *, send: str, records: int) -> None:
        app = app_of(topic, rr.mqtt(filters, url=broker.url), None)
        with running(app, kafka.connection, tmp_path) as process:
            publish_all(broker.port, "doors/a", [b"early"])
            wait_until(lambda: process.statuses and process.statuses[0].state == "waiting")
            kept = f"{app.name}.connectors"
            wait_until(lambda: b"doors" in b"".join(each.value() or b"" for each in records_in(kafka.connection, kept)))
            publish_all(broker.port, send, [send.encode()])
            wait_until(lambda: process.statuses[0].records >= records)

    run(["doors/#", "windows/#"], send="windows/w", records=1)
    run(["doors/#"], send="windows/x", records=0)
    run(["doors/#"], send="windows/y", records=0)
    found = [each.value() for each in records_in(kafka.connection, topic)]
    assert b"windows/w" in found
    assert b"windows/y" not in found


def test_the_settings_name_the_broker_and_the_login(kafka: KafkaUnderTest, kafka_topic: Topics, tmp_path: Path) -> None:
    topic = kafka_topic()
    app = app_of(topic, rr.mqtt("meters/+"), None)
    with pytest.raises(ConfigError, match=r"mqtt\.url is not set"), running(app, kafka.connection, tmp_path):
        pass
    with Mosquitto(tmp_path / "m", login=True) as broker:
        (tmp_path / "password").write_text(PASSWORD + "\n")
        (tmp_path / "riverrun.toml").write_text(f'[mqtt]\nurl = "{broker.url}"\nusername = "{USER}"\n')
        app = app_of(topic, rr.mqtt("meters/+", password="file:password"), None)
        with running(app, kafka.connection, tmp_path) as process:
            wait_until(lambda: process.statuses and process.statuses[0].state == "waiting")
            with device(broker.port, "meter", login=(USER, PASSWORD)) as publishing:
                # Until it has subscribed, a message finds nobody.
                def came() -> bool:
                    publishing.publish("meters/h", b"1")
                    return process.statuses[0].records > 0

                wait_until(came)


@pytest.fixture(scope="module")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fragile]:
    with fragile_kafka(tmp_path_factory.mktemp("fragile")) as started:
        yield started


@pytest.mark.slow
def test_a_kafka_that_stands_still_holds_the_broker_back_and_nothing_is_lost(
    fragile: Fragile, tmp_path: Path, broker: Mosquitto
) -> None:
    """20,000 messages of a kilobyte while Kafka is paused for longer than a transaction lasts: they wait at the broker."""
    topic, count = fragile.topic("held-back"), 20_000
    app = app_of(topic, rr.mqtt("meters/+", in_flight=200, url=broker.url), None)
    me = psutil.Process()
    with running(app, fragile.connection, tmp_path) as process:
        wait_until(lambda: process.statuses and process.statuses[0].state == "waiting")
        publish_all(broker.port, "meters/h", [b"first"])
        wait_until(lambda: process.statuses[0].records == 1)
        with fragile.paused():
            before = me.memory_info().rss
            begun = time.monotonic()
            with device(broker.port, "many", in_flight=200) as publishing:
                for number in range(count):
                    publishing.publish("meters/h", b"%06d" % number + b"x" * 1000)
                publishing.settle()
            wait_until(lambda: time.monotonic() - begun > 20)
            assert (process.statuses[0].lag or 0) <= 200
            grown = me.memory_info().rss - before
        wait_until(lambda: process.statuses[0].records >= count + 1, seconds=150)
    found = records_in(fragile.connection, topic)
    numbers = Counter(int((each.value() or b"")[:6]) for each in found[1:])
    assert sorted(numbers) == list(range(count))
    assert grown < 40 * 2**20
    again = [each for each in found if header_of(each, "mqtt.repeat") != "no"]
    assert sum(numbers.values()) - count <= len(again)


def test_the_same_source_for_two_topics_is_refused(kafka: KafkaUnderTest, tmp_path: Path) -> None:
    app, source = rr.App("two"), rr.mqtt("a", url="mqtt://127.0.0.1:1")
    app.source(app.topic("one"), source)
    app.source(app.topic("other"), source)
    with pytest.raises(rr.RiverrunError, match="source of several topics"), running(app, kafka.connection, tmp_path):
        pass


def test_values_stay_as_they_are_in_a_topic_without_a_type(
    kafka: KafkaUnderTest, kafka_topic: Topics, tmp_path: Path, broker: Mosquitto
) -> None:
    topic = kafka_topic()
    app = app_of(topic, rr.mqtt("meters/+", value="load_kw", fields={"house": 1}, url=broker.url), None)
    with running(app, kafka.connection, tmp_path) as process:
        wait_until(lambda: process.statuses and process.statuses[0].state == "waiting")
        publish_all(broker.port, "meters/h1", [b"21.5"])
        wait_until(lambda: process.statuses[0].records == 1)
    assert values_in(kafka.connection, topic) == [{"load_kw": 21.5, "house": "h1"}]
