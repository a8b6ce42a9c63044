"""Topics with a schema registry, on a real one: every type there and back, read by others, changed, refused, broken."""

import asyncio
import json
import random
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry import topic_subject_name_strategy as by_topic
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import SparkSession

import riverrun as rr
from riverrun.cluster.registry import LocalRegistry
from riverrun.config import RegistrySettings, Secret
from riverrun.connectors.http.record_parser import RejectedRecord, TopicRecordParser
from riverrun.errors import (
    EventInvalidError,
    RegistryRefusedError,
    RegistryUnavailableError,
    SchemaIncompatibleError,
    SchemaUnknownError,
    TopicNotFoundError,
)
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import Connection
from riverrun.kafka.dead_letters.redrive import Redrive
from riverrun.kafka.registry.client import SCHEMA_TYPES, Registry, registry_of
from riverrun.model.framing import Format, encode_frame, frame_header
from riverrun.model.topic import Topic
from riverrun.testing.pytest_plugin import KafkaUnderTest
from support import connecting
from support.cluster import ProjectDriver
from support.streaming import run_streams

pytestmark = pytest.mark.timeout(420)
FORMATS: tuple[Format, ...] = ("avro", "json-schema")


class Kind(Enum):
    HOUSE = "house"
    SHOP = "shop"


class Where(rr.Event):
    street: str
    number: int | None = None


class Everything(rr.Event):
    """A field of every type that both formats carry."""

    id: str = rr.key()
    load_kw: float = rr.field(ge=0)
    count: int
    good: bool
    at: datetime = rr.event_time(late="1 minute")
    day: date
    price: Decimal
    ref: uuid.UUID
    raw: bytes
    kind: Kind
    state: Literal["on", "off"]
    phase: Literal[1, 3]
    tags: list[str]
    by_hour: dict[str, float]
    where: Where
    others: list[Where]
    note: str | None
    ended: datetime | None = None
    limit: int = 7


FULL = Everything(
    id="h-1",
    load_kw=1.25,
    count=-(2**62),
    good=True,
    at=datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC),
    day=date(1969, 12, 31),
    price=Decimal("-12.345"),
    ref=uuid.UUID(int=5),
    raw=b"\x00\xff",
    kind=Kind.SHOP,
    state="off",
    phase=3,
    tags=["a", "ü"],
    by_hour={"08": 1.5},
    where=Where(street="Main", number=3),
    others=[Where(street="Side")],
    note=None,
    ended=datetime(1960, 1, 1, tzinfo=UTC),
)


class Reading(rr.Event):
    house: str = rr.key()
    load_kw: float


# The same type later: one that all can follow, and two that they cannot.
class More:
    class Reading(rr.Event, version=2):
        house: str = rr.key()
        load_kw: float
        phase: int = 1
        note: str | None = None


class Required:
    class Reading(rr.Event):
        house: str = rr.key()
        load_kw: float
        phase: int


class Retyped:
    class Reading(rr.Event):
        house: str = rr.key()
        load_kw: str


@pytest.fixture(scope="module")
def local(kafka: KafkaUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRegistry]:
    # It shares the machine with other tests.
    settings = RegistrySettings(start_timeout_seconds=300)
    folder = tmp_path_factory.mktemp("registry")
    port = random.randrange(28100, 29000, 10)
    with LocalRegistry(folder, kafka.bootstrap_servers, settings, first_port=port) as running:
        yield running


@pytest.fixture(scope="module")
def connection(kafka: KafkaUnderTest, local: LocalRegistry) -> Connection:
    return Connection(kafka.settings, local.attached)


@pytest.fixture
def registry(connection: Connection) -> Registry:
    return registry_of(connection.registry)


@pytest.fixture
def client(local: LocalRegistry) -> Iterator[SchemaRegistryClient]:
    """Somebody else's."""
    login = f"{local.attached.username}:{local.attached.password.reveal()}"
    with SchemaRegistryClient({"url": local.url, "basic.auth.user.info": login}) as made:
        yield made


def named(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:8]}"


def declared(app_name: str, name: str, event: type[Any], format_: Format) -> tuple[rr.App, Topic[Any]]:
    app = rr.App(app_name)
    return app, app.topic(name, event, format=format_)


def applied(connection: Connection, name: str, event: type[Any], format_: Format) -> Topic[Any]:
    app, topic = declared("made", name, event, format_)
    app.apply(connection)
    return topic


def raw_values(connection: Connection, topic: str) -> list[bytes]:
    with rr.Consumer(topic, connection=connection, follow=False) as consumer:
        return [record.raw or b"" for record in consumer]


def all_of(connection: Connection, topic: Topic[Any] | str) -> list[Any]:
    with rr.Consumer(topic, connection=connection, follow=False) as consumer:
        return [value for batch in consumer.batches() for value in batch.values()]


@pytest.mark.parametrize("format_", FORMATS)
def test_every_type_there_and_back_and_as_others_see_it(
    connection: Connection, client: SchemaRegistryClient, format_: Format
) -> None:
    topic = applied(connection, named("everything"), Everything, format_)
    with rr.Producer(connection) as producer:
        producer.send(topic, FULL)
        assert producer.send_all(topic, [replace_id(FULL, n) for n in range(3)]) == 3
    assert all_of(connection, topic) == [FULL, *(replace_id(FULL, n) for n in range(3))]
    raw = raw_values(connection, topic.name)[0]
    assert raw[0] == 0
    seen = theirs(client, topic, raw)
    assert (seen["id"], seen["load_kw"], seen["count"], seen["where"]) == (
        "h-1", 1.25, -(2**62), {"street": "Main", "number": 3},
    )  # fmt: skip
    if format_ == "avro":
        assert (seen["at"], seen["day"], seen["price"], seen["ref"], seen["raw"]) == (
            FULL.at, FULL.day, FULL.price, FULL.ref, FULL.raw,
        )  # fmt: skip
    else:
        assert seen["at"] == "2026-03-01T12:00:00.123456Z"


def replace_id(event: Everything, number: int) -> Everything:
    values = {name: getattr(event, name) for name in event.__struct_fields__}
    return Everything(**values | {"id": f"h-{number}"})


def theirs(client: SchemaRegistryClient, topic: Topic[Any], raw: bytes) -> dict[str, Any]:
    """What confluent-kafka's own deserializer makes of a value."""
    context = SerializationContext(topic.name, MessageField.VALUE)
    conf = {"subject.name.strategy": by_topic}
    if topic.format == "avro":
        read: Any = AvroDeserializer(client, conf=conf)
    else:
        read = JSONDeserializer(None, schema_registry_client=client, conf=conf)
    return dict(read(raw, context))


def test_what_others_write_is_read(connection: Connection, client: SchemaRegistryClient) -> None:
    topic = applied(connection, named("foreign"), Reading, "avro")
    conf = {"auto.register.schemas": False, "subject.name.strategy": by_topic}
    write = AvroSerializer(client, topic.registry_schema, conf=conf)
    value = write({"house": "h", "load_kw": 2.5}, SerializationContext(topic.name, MessageField.VALUE))
    with rr.Producer(connection) as producer:
        producer.send(topic.name, value, key="h")
    assert all_of(connection, topic) == [Reading(house="h", load_kw=2.5)]
    # Without a type: what the registry says it is.
    assert all_of(connection, topic.name) == [{"house": "h", "load_kw": 2.5}]


@pytest.mark.parametrize("format_", FORMATS)
def test_all_producers_write_it(connection: Connection, format_: Format) -> None:
    topic = applied(connection, named("producers"), Reading, format_)

    async def send() -> None:
        async with rr.AsyncProducer(connection) as producer:
            await producer.send(topic, Reading(house="async", load_kw=1))

    asyncio.run(send())
    with rr.Producer(connection, transactional_id=named("tx")) as producer, producer.transaction() as tx:
        tx.send_soon(topic, Reading(house="tx", load_kw=2))
    with rr.Producer(connection) as producer:
        producer.send_soon(topic, Reading(house="soon", load_kw=3)).result()
        with pytest.raises(EventInvalidError):
            producer.send(topic, Reading(house="bad", load_kw="much"))  # type: ignore[arg-type]
    assert [each.house for each in all_of(connection, topic)] == ["async", "tx", "soon"]


def test_what_avro_cannot_hold_is_refused(connection: Connection) -> None:
    topic = applied(connection, named("large"), Everything, "avro")
    values = {name: getattr(FULL, name) for name in FULL.__struct_fields__}
    with rr.Producer(connection) as producer:
        for name, value in (("count", 2**63), ("price", Decimal("1e-19"))):
            with pytest.raises(EventInvalidError, match="as Avro"):
                producer.send(topic, Everything(**values | {name: value}))


@pytest.mark.parametrize("format_", FORMATS)
def test_a_field_with_a_default_is_taken_and_old_and_new_records_are_read(
    connection: Connection, registry: Registry, format_: Format, spark: SparkSession, tmp_path: Path
) -> None:
    # Streams call it by a name that SQL takes.
    name = named("evolved").replace("-", "_")
    first = applied(connection, name, Reading, format_)
    with rr.Producer(connection) as producer:
        producer.send(first, Reading(house="old", load_kw=1))
    app, second = declared(named("evolving"), name, More.Reading, format_)
    app.apply(connection)
    assert registry.versions(second.subject) == [1, 2]
    with rr.Producer(connection) as producer:
        producer.send(second, More.Reading(house="new", load_kw=2, phase=3))
        # Of nobody's schema, of no schema, of the wrong bytes.
        bad = [encode_frame(999_999, b"{"), b'{"house":"plain","load_kw":1}', frame_header(1) + b"\x02"]
        for each in bad:
            producer.send(name, each, key="bad")
        producer.send(second, More.Reading(house="last", load_kw=3))
    good = [
        More.Reading(house="old", load_kw=1),
        More.Reading(house="new", load_kw=2, phase=3),
        More.Reading(house="last", load_kw=3),
    ]
    reasons: list[str] = []
    with rr.Consumer(second, connection=connection, follow=False) as consumer:
        found = [
            value
            for batch in consumer.batches()
            for value in batch.values(lambda _, error: reasons.append(str(error.fields["reason"])))
        ]
    assert found == good
    assert len(reasons) == 3
    if format_ == "avro":
        assert "schema 999999 is not known" in reasons[0]
    assert "no header of a schema registry" in reasons[1]

    # The type before reads what is written since, too.
    with rr.Consumer(first, connection=connection, follow=False) as consumer:
        old = [v for batch in consumer.batches() for v in batch.values(lambda *_: None)]
    assert [each.house for each in old] == ["old", "new", "last"]

    output = named("loads")
    app.sql("loads", f"select house, load_kw, phase from `{name}`", key="house", topic=output)  # noqa: S608
    progress = run_streams(spark, app, connection, tmp_path)
    assert progress["loads"].record_counts.dead_letters == 3
    rows = [json.loads(raw_value) for raw_value in raw_values(connection, output)]
    mine = {row["house"]: (row["load_kw"], row["phase"]) for row in rows}
    assert mine == {"old": (1.0, 1), "new": (2.0, 3), "last": (3.0, 1)}
    with rr.Consumer(f"{name}.dead", connection=connection, follow=False) as consumer:
        letters = [rr.DeadLetter.from_record(record) for record in consumer]
    assert [letter.offset for letter in letters if letter is not None] == [2, 3, 4]


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize(
    ("event", "why"),
    [
        (Required.Reading, "phase is new and has no default"),
        (Retyped.Reading, "load_kw was "),
    ],
)
def test_a_change_that_readers_cannot_follow_is_refused_before_anything_is_changed(
    connection: Connection, registry: Registry, format_: Format, event: type[Any], why: str
) -> None:
    before = applied(connection, named("refused"), Reading, format_)
    app, _ = declared("refusing", before.name, event, format_)
    beside = app.topic(named("beside"), Reading)
    with pytest.raises(SchemaIncompatibleError) as raised:
        app.apply(connection)
    assert why in str(raised.value)
    assert before.name in raised.value.what
    assert raised.value.exit_code == 2
    assert registry.versions(before.subject) == [1]
    with pytest.raises(TopicNotFoundError):
        Admin(connection).topic(beside.name)
    # And who would send it all the same is told how to go on.
    with rr.Producer(connection) as producer, pytest.raises(SchemaUnknownError, match="topics apply"):
        producer.send(app.topics[before.name], event(house="h", load_kw=1, **({"phase": 1} if "new" in why else {})))


def test_another_format_of_the_same_topic_is_refused(connection: Connection) -> None:
    before = applied(connection, named("other"), Reading, "json-schema")
    with pytest.raises(SchemaIncompatibleError, match="were json-schema and would be avro"):
        applied(connection, before.name, Reading, "avro")


def test_it_keeps_what_it_has_when_it_is_killed(connection: Connection, local: LocalRegistry) -> None:
    topic = applied(connection, named("kept"), Reading, "avro")
    with Registry(local.attached) as registry:
        before = registry.latest(topic.subject)
        local.node.kill()
        with pytest.raises(RegistryUnavailableError, match="did not answer"):
            registry.subjects()
        local.node.restart()
        assert before is not None
        assert registry.latest(topic.subject) == before
        assert registry.compatibility_level() == "BACKWARD"


def test_a_registry_that_is_away_wrong_or_closed_ends_in_one_message(connection: Connection) -> None:
    app, _ = declared("broken", named("broken"), Reading, "avro")
    own = connection.registry
    cases: list[tuple[RegistrySettings, type[Exception], str]] = [
        (RegistrySettings(), RegistryUnavailableError, "No schema registry is known"),
        (replace(own, url="http://127.0.0.1:9"), RegistryUnavailableError, "did not answer"),
        (replace(own, password=Secret("wrong")), RegistryRefusedError, "refused the login"),
        (replace(own, url=own.url.replace("/ccompat/v7", "/none")), RegistryRefusedError, "no schema registry"),
    ]
    for settings, kind, words in cases:
        with pytest.raises(kind, match=words):
            app.apply(replace(connection, registry=settings))


def test_a_source_writes_it(connection: Connection, tmp_path: Path) -> None:
    app, topic = declared(named("sourced"), named("sourced"), connecting.Reading, "avro")
    app.source(topic, connecting.Numbers(3))
    app.apply(connection)
    with connecting.running(app, connection, tmp_path):
        connecting.wait_until(lambda: len(raw_values(connection, topic.name)) == 3, "three records")
    assert [each.house_id for each in all_of(connection, topic)] == ["all-0", "all-1", "all-2"]


def test_posted_records_are_written_in_it(connection: Connection) -> None:
    topic = applied(connection, named("posted"), Reading, "json-schema")
    taker = TopicRecordParser(topic, rr.http(), 1_000_000, connection.registry)
    _, (values,) = taker.split(b'[{"house":"h","load_kw":1,"more":2},{"house":"h"}]', "json", None, 10)
    good, bad = taker.records(values, None)
    assert isinstance(bad, RejectedRecord)
    assert not isinstance(good, RejectedRecord)
    # The schema is closed: what the type does not know is not written.
    assert good[1][5:] == b'{"house":"h","load_kw":1.0}'


APP = """
import riverrun as rr

app = rr.App("shell")


class Reading(rr.Event):
    house: str = rr.key()
    load_kw: {kind}


readings = app.topic("{topic}", Reading, format="{format}")
"""


@pytest.mark.parametrize("format_", FORMATS)
def test_at_the_command_line(kafka: KafkaUnderTest, local: LocalRegistry, tmp_path: Path, format_: Format) -> None:
    driver, topic = ProjectDriver(tmp_path, {"SECRET": local.attached.password.reveal()}), named("shell")
    driver.configure(
        f'[project]\napp = "app.py"\n[kafka]\nbootstrap_servers = "{kafka.bootstrap_servers}"\n[registry]\n'
        f'url = "{local.url}"\nusername = "riverrun"\npassword = {{ env = "SECRET" }}\n'
    )
    app = tmp_path / "app.py"
    app.write_text(APP.format(kind="float", topic=topic, format=format_), encoding="utf-8")
    checked = driver.run("registry", "check", "--json")
    assert (checked.code, json.loads(checked.out)[0]["state"]) == (0, "new")
    assert driver.run("topics", "apply").code == 0
    (tmp_path / "lines").write_text('{"house":"h1","load_kw":1.5}\n{"house":"h2","load_kw":2}\n', encoding="utf-8")
    sent = driver.run("produce", topic, "lines")
    assert sent.code == 0, sent.err
    shown = driver.run("consume", topic)
    assert [json.loads(line) for line in shown.out.splitlines()] == [
        {"house": "h1", "load_kw": 1.5},
        {"house": "h2", "load_kw": 2.0},
    ]
    assert driver.run("consume", topic, "--where", "load_kw>1.7", "--json").out.count(topic) == 1
    listed = driver.run("registry", "list", "--json")
    assert "at the level BACKWARD" in listed.err
    mine = next(load for load in json.loads(listed.out) if load["subject"] == f"{topic}-value")
    assert (mine["version"], mine["kind"]) == (1, SCHEMA_TYPES[format_])
    assert "load_kw" in driver.run("registry", "show", topic).out
    app.write_text(APP.format(kind="str", topic=topic, format=format_), encoding="utf-8")
    for command in (("registry", "check"), ("topics", "apply"), ("topics", "apply", "--dry-run")):
        refused = driver.run(*command)
        assert refused.code == 2
        assert "SCHEMA_INCOMPATIBLE" in refused.err
        assert "load_kw was" in refused.err
    assert driver.run("registry", "show", named("nothing")).code == 1


def test_dead_letters_are_mended_as_json_and_sent_back(connection: Connection) -> None:
    topic = applied(connection, named("mended"), Reading, "avro")
    with rr.Producer(connection) as producer:
        producer.send(topic.name, b'{"house":"h","load_kw":1}', key="h")
    with rr.Consumer(topic, group=named("g"), connection=connection, follow=False) as consumer:
        consumer.run(lambda _: None, on_unreadable="dead-letter")
    made = Redrive(Admin(connection), f"{topic.name}.dead", topics={topic.name: topic})
    assert made.run().sent[topic.name] == 1
    with rr.Consumer(topic, connection=connection, follow=False) as consumer:
        last = list(consumer)[-1]
        assert last.value == Reading(house="h", load_kw=1)
        assert last.raw is not None
        assert last.raw[0] == 0
