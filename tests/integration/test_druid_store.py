"""The Druid store on a real Druid and a real Kafka: rows in equal records in, whatever is killed."""

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import httpx
import pytest

from riverrun.cluster.druid.local import LocalDruid
from riverrun.cluster.server import Deadline
from riverrun.config import DruidSettings, Secret
from riverrun.errors import (
    QueryCancelledError,
    QueryError,
    QueryTimeoutError,
    StoreError,
    StoreTableError,
    StoreUnavailableError,
)
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.producer.producer import Producer
from riverrun.model.cluster_state import TopicPartition
from riverrun.model.table import RECORD_TIME, Column, TableSpec
from riverrun.store.contract import QueryLimits, TableStatus
from riverrun.store.druid import DruidStore
from riverrun.testing.pytest_plugin import KafkaUnderTest
from support.cluster import wait_for
from support.gate import gate
from support.maven import CERTIFICATE

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
AT, HOUSE, LOAD = (
    Column("at", "timestamp", ("at",)),
    Column("house", "text", ("house",)),
    Column("load", "double", ("load",)),
)
NUMBER = Column("number", "bigint", ("number",))
SETTLED_SECONDS = 240.0


@pytest.fixture(scope="module")
def druid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalDruid]:
    with LocalDruid(tmp_path_factory.mktemp("druid"), DruidSettings(), first_port=14_200) as running:
        yield running


@pytest.fixture
def store(druid: LocalDruid, kafka: KafkaUnderTest) -> Iterator[DruidStore]:
    with DruidStore("meters", DruidSettings(), kafka.connection, url=druid.url) as opened:
        yield opened
        # A table holds one of Druid's task slots for as long as it is there.
        for name in opened.tables:
            opened._client.terminate(f"meters.{name}")
            opened._client.stop_tasks(f"meters.{name}")


def table(name: str, *columns: Column, **more: Any) -> TableSpec:
    return TableSpec(name, f"meters.{name}", columns, time=more.pop("time", "at"), **more)


def make_topic(kafka: KafkaUnderTest, declared: TableSpec, partitions: int = 2) -> None:
    config = {"retention.ms": "-1"}
    Admin(kafka.connection).create_topic(declared.topic, partitions=partitions, replicas=0, config=config)


def send(kafka: KafkaUnderTest, topic: str, rows: Sequence[tuple[str, Any]], **headers: str) -> None:
    """Records in order, in one transaction, as the sink of a stream writes them."""
    given = {name.replace("_", "-"): value.encode() for name, value in headers.items()}
    with Producer(kafka.connection, transactional_id=f"test-{topic}") as producer, producer.transaction() as tx:
        for key, value in rows:
            raw = value if isinstance(value, bytes) else json.dumps(value).encode()
            tx.send_soon(topic, raw, key=key, headers=given)


def reading(second: int, house: str = "", load: float | None = None, **more: Any) -> dict[str, Any]:
    at = (NOON + timedelta(seconds=second % 600, microseconds=second % 1000)).isoformat()
    return {"at": at, "house": house or f"house-{second % 7}", "load": second / 8 if load is None else load, **more}


def standing(store: DruidStore, name: str) -> TableStatus:
    return next(each for each in store.table_statuses() if each.table == name)


def settled(store: DruidStore, name: str, rows: int) -> TableStatus:
    """Where a table stands once it has read everything."""
    last: list[TableStatus] = []

    def is_there() -> bool:
        last[:] = [standing(store, name)]
        return last[0].state == "following" and last[0].lag == 0 and last[0].rows == rows

    try:
        wait_for(is_there, SETTLED_SECONDS, f"{name} has not its {rows} rows")
    except AssertionError as error:
        raise AssertionError(f"{error}: {last[0]}") from error
    return last[0]


def rows_of(store: DruidStore, sql: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = store.query(sql).rows.to_pylist()
    return found


# --- rows -------------------------------------------------------------------------------------------------------------


TYPES = table(
    "types", AT, HOUSE, LOAD,
    Column("big", "bigint", ("big",)), Column("price", "decimal(10,2)", ("price",)),
    Column("open", "boolean", ("open",)), Column("seen", "timestamp", ("seen",)), Column("day", "date", ("day",)),
    Column("tags", "json", ("tags",)), Column("minute", "timestamp", ("minute", "start")),
)  # fmt: skip
LATEST = table("latest", AT, HOUSE, LOAD, NUMBER, key=("house",), upserts=True)
TOTAL = table("total", NUMBER, Column(RECORD_TIME, "timestamp", ()), upserts=True, time=RECORD_TIME)
AGAIN = table("again", AT, HOUSE, LOAD)
ROLLED = table("rolled", AT, HOUSE, LOAD, NUMBER, rollup={"load": "sum", "number": "count"}, query_granularity="hour")
FULL = reading(
    3, "Zürich 東京 \"a'b", 0.1, big=2**63 - 1, price="19.99", open=True, seen="2026-01-02T03:04:05.678901Z",
    day="2026-01-02", tags=[1, "a", {"b": None, "c": [1.5]}], minute={"start": "2026-01-02T03:04:00Z", "end": None},
)  # fmt: skip


@pytest.fixture(scope="module")
def rows(druid: LocalDruid, kafka: KafkaUnderTest) -> Iterator[DruidStore]:
    """A store with these five tables and what is in their topics: Druid starts their tasks side by side."""
    tables = [TYPES, LATEST, TOTAL, AGAIN, ROLLED]
    with DruidStore("rows", DruidSettings(), kafka.connection, url=druid.url) as opened:
        for each in tables:
            make_topic(kafka, each, partitions=1 if each is TOTAL else 2)
        assert opened.apply(tables)[0] == "types: made; Druid reads the topic meters.types"
        # Before Druid has a row of it, a table is there and empty.
        assert all(opened.query(f"FROM {each.name}").rows.num_rows == 0 for each in tables)
        empty = {"at": "2026-01-02T00:00:00.000001+00:00"}
        send(kafka, TYPES.topic, [("a", FULL), ("b", empty), ("c", {**FULL, "open": False, "price": 0.5})])
        # All of a house within a millisecond or two; the newest is not the largest, and has a null where others have none.
        many = [(f"house-{at % 5}", reading(0, f"house-{at % 5}", float(500 - at), number=at)) for at in range(500)]
        last = [(f"house-{at}", {**reading(1, f"house-{at}"), "load": None, "number": 1000 + at}) for at in range(2)]
        send(kafka, LATEST.topic, [*many, *last])
        send(kafka, TOTAL.topic, [("", {"number": at}) for at in range(200)])
        for at in (0, 1, 2, 1):
            send(kafka, AGAIN.topic, [("a", reading(at))], riverrun_id=f"{at + 0xFFFFFFFFFFFFFF00:X}")
        send(kafka, AGAIN.topic, [("a", reading(9))], riverrun_id="A")
        # Whatever a writer says is an identity, a number or not.
        for _ in range(2):
            send(kafka, AGAIN.topic, [("a", reading(7))], riverrun_id="kein Schlüssel")
        # Without an identity, equal records are rows of their own.
        send(kafka, AGAIN.topic, [("a", reading(8)), ("a", reading(8))])
        send(kafka, ROLLED.topic, [("a", reading(at, "a" if at % 2 else "b", 1.0)) for at in range(100)])
        yield opened
        for each in tables:
            opened._client.terminate(f"rows.{each.name}")


def test_every_type_is_kept_and_every_record_is_a_row_once(rows: DruidStore) -> None:
    seen = settled(rows, "types", 3)
    assert sum(seen.positions.values()) >= 3
    assert seen.newest == pytest.approx(NOON.timestamp() + 3.0, abs=0.01)
    found = rows_of(rows, "SELECT * FROM types ORDER BY price DESC NULLS LAST")
    assert len(found) == 3
    first = found[0]
    assert first["house"] == FULL["house"]
    assert (first["big"], first["price"], first["load"]) == (2**63 - 1, Decimal("19.99"), 0.1)
    assert (first["open"], found[1]["open"]) == (True, False)
    assert first["seen"] == datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
    assert first["minute"] == datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
    assert str(first["day"]) == "2026-01-02"
    assert json.loads(first["tags"]) == FULL["tags"]
    assert {name: value for name, value in found[2].items() if value is not None} == {
        "at": datetime(2026, 1, 2, tzinfo=UTC)
    }


def test_of_a_key_the_record_with_the_highest_offset_counts(rows: DruidStore) -> None:
    settled(rows, "latest", 5)
    found = rows_of(rows, "SELECT house, number, load FROM latest ORDER BY house")
    newest = [1000, 1001, 497, 498, 499]
    assert [(each["house"], each["number"]) for each in found] == [(f"house-{at}", newest[at]) for at in range(5)]
    assert [each["load"] for each in found] == [None, None, 3.0, 2.0, 1.0]
    assert rows_of(rows, "SELECT COUNT(*) AS n FROM latest WHERE number < 1000") == [{"n": 3}]


def test_an_aggregate_over_everything_is_one_row(rows: DruidStore) -> None:
    found = settled(rows, "total", 1)
    assert rows_of(rows, "SELECT number FROM total") == [{"number": 199}]
    assert abs(found.newest - time.time()) < 600


def test_a_record_that_was_sent_again_is_one_row(rows: DruidStore) -> None:
    settled(rows, "again", 7)
    found = rows_of(rows, "SELECT COUNT(*) AS n, SUM(load) AS l FROM again")
    assert found == [{"n": 7, "l": (0 + 1 + 2 + 9 + 7 + 8 + 8) / 8}]


def test_rows_that_are_equal_are_rolled_up_where_that_is_asked_for(rows: DruidStore) -> None:
    settled(rows, "rolled", 2)
    found = rows_of(rows, "SELECT house, load, number FROM rolled ORDER BY house")
    assert found == [{"house": "a", "load": 50.0, "number": 50}, {"house": "b", "load": 50.0, "number": 50}]


def test_a_druid_without_offsets_says_where_the_newest_is_not_known(druid: LocalDruid, kafka: KafkaUnderTest) -> None:
    declared = table("tied", AT, HOUSE, NUMBER, key=("house",), upserts=True)
    make_topic(kafka, declared)
    with DruidStore("attached", DruidSettings(url=druid.url), kafka.connection, url=druid.url) as store:
        store.apply([declared])
        with Producer(kafka.connection) as producer:
            for number, stamp in enumerate([1000, 1000, 2000, 3000, 3000]):
                house = "tied" if number > 2 else "clear"
                value = json.dumps(reading(0, house, number=number)).encode()
                producer.send(declared.topic, value, key=house, timestamp=1_700_000_000_000 + stamp)
        found = settled(store, "tied", 2)
        assert "1 key has two newest records of one millisecond" in found.detail
        assert rows_of(store, "SELECT number FROM tied WHERE house = 'clear'") == [{"number": 2}]
        store.remove("tied")


# --- change -----------------------------------------------------------------------------------------------------------


def test_a_table_without_rows_can_be_asked(store: DruidStore, kafka: KafkaUnderTest) -> None:
    declared = table("silent", Column("at", "timestamp", ("at",)))
    make_topic(kafka, declared)
    store.apply([declared])
    assert rows_of(store, "SELECT COUNT(*) AS n FROM silent WHERE at = latest") == [{"n": 0}]
    assert rows_of(store, "SELECT max(at) AS last FROM silent") == [{"last": None}]


def test_a_new_column_appears_and_no_record_is_lost(store: DruidStore, kafka: KafkaUnderTest) -> None:
    declared = table("grows", AT, HOUSE, LOAD)
    make_topic(kafka, declared)
    store.apply([declared])
    send(kafka, declared.topic, [("a", reading(at)) for at in range(100)])
    settled(store, "grows", 100)
    assert store.apply([declared]) == []
    wider = replace(declared, columns=(*declared.columns, Column("street", "text", ("street",))))
    assert store.apply([wider]) == ["grows: new column street"]
    assert store.tables["grows"] == wider
    # Rows that came before the column have none.
    assert rows_of(store, "SELECT DISTINCT street FROM grows") == [{"street": None}]
    send(kafka, declared.topic, [("a", reading(at, street="Elm")) for at in range(50)])
    settled(store, "grows", 150)
    found = rows_of(store, "SELECT street, COUNT(*) AS n FROM grows GROUP BY street ORDER BY n")
    assert found == [{"street": "Elm", "n": 50}, {"street": None, "n": 100}]


def test_a_changed_type_is_refused_and_nothing_is_changed(store: DruidStore, kafka: KafkaUnderTest) -> None:
    declared = table("fixed", AT, HOUSE, LOAD)
    make_topic(kafka, declared)
    store.apply([declared])
    other = table("untouched", AT, HOUSE)
    with pytest.raises(StoreTableError) as caught:
        store.apply([other, replace(declared, columns=(AT, HOUSE, Column("load", "text", ("load",))))])
    assert "fixed.load: its type was double and is to be text" in str(caught.value)
    assert "riverrun tables remove" in str(caught.value)
    assert store.tables["fixed"] == declared
    assert "untouched" not in store.tables


def test_another_process_knows_the_tables_and_an_edited_spec_is_noticed(
    store: DruidStore, druid: LocalDruid, kafka: KafkaUnderTest
) -> None:
    declared = table("edited", AT, HOUSE, retention_ms=30 * 86_400_000)
    make_topic(kafka, declared)
    store.apply([declared])
    with DruidStore("meters", DruidSettings(), kafka.connection, url=druid.url) as other:
        assert other.tables["edited"] == declared
        assert other.apply([declared]) == []
    with DruidStore("elsewhere", DruidSettings(), kafka.connection, url=druid.url) as other:
        assert other.tables == {}
    place = f"{druid.url}/druid/indexer/v1/supervisor/meters.edited"
    spec = httpx.get(place, trust_env=False).json()
    spec["spec"]["ioConfig"]["taskDuration"] = "PT77S"
    httpx.post(place.rpartition("/")[0], json=spec, trust_env=False).raise_for_status()
    (said,) = store.apply([declared])
    assert "taskDuration" in said
    assert store.apply([declared]) == []
    httpx.post(f"{place}/suspend", trust_env=False).raise_for_status()
    assert "suspended" in standing(store, "edited").detail
    assert standing(store, "edited").state == "failing"
    (said,) = store.apply([declared])
    assert "suspended" in said
    httpx.post(f"{place}/resume", trust_env=False).raise_for_status()
    rules = httpx.get(f"{druid.url}/druid/coordinator/v1/rules/meters.edited", trust_env=False).json()
    assert [rule["type"] for rule in rules] == ["loadByPeriod", "dropForever"]
    compaction = f"{druid.url}/druid/coordinator/v1/config/compaction/meters.edited"
    assert httpx.get(compaction, trust_env=False).status_code == 200


def test_a_removed_table_is_gone_and_reads_its_topic_again(store: DruidStore, kafka: KafkaUnderTest) -> None:
    declared = table("removed", AT, HOUSE, LOAD)
    make_topic(kafka, declared)
    store.apply([declared])
    send(kafka, declared.topic, [("a", reading(at)) for at in range(20)])
    settled(store, "removed", 20)
    store.remove("removed")
    assert "removed" not in store.tables
    with pytest.raises(StoreTableError, match="no table nothing"):
        store.remove("nothing")
    narrower = replace(declared, columns=(AT, Column("load", "text", ("load",))))
    store.apply([narrower])
    settled(store, "removed", 20)
    assert rows_of(store, "SELECT COUNT(DISTINCT load) AS n FROM removed") == [{"n": 20}]


# --- failures ---------------------------------------------------------------------------------------------------------


def test_records_that_cannot_be_read_are_counted_and_shown(store: DruidStore, kafka: KafkaUnderTest) -> None:
    declared = table("broken", AT, HOUSE, LOAD)
    make_topic(kafka, declared)
    store.apply([declared])
    bad: list[tuple[str, Any]] = [("a", b"not JSON"), ("a", {"house": "no time"}), ("a", {"at": "yesterday"})]
    send(kafka, declared.topic, [*bad, ("a", reading(1))])
    settled(store, "broken", 1)
    wait_for(
        lambda: "3 records could not be read" in standing(store, "broken").detail, 60, "bad records are not counted"
    )
    assert standing(store, "broken").state == "following"


def test_offsets_that_are_gone_are_a_failure_with_its_reason(store: DruidStore, kafka: KafkaUnderTest) -> None:
    declared = table("expired", AT, HOUSE, LOAD)
    make_topic(kafka, declared, partitions=1)
    store.apply([declared])
    send(kafka, declared.topic, [("a", reading(at)) for at in range(10)])
    settled(store, "expired", 10)
    # While it is suspended, records come and go that it has not read.
    place = f"{store._client.url}/druid/indexer/v1/supervisor/meters.expired"
    httpx.post(f"{place}/suspend", trust_env=False).raise_for_status()
    wait_for(lambda: not store._has_tasks("meters.expired"), 120, "the task did not publish")
    send(kafka, declared.topic, [("a", reading(at)) for at in range(10)])
    Admin(kafka.connection).delete_records({TopicPartition(declared.topic, 0): 20})
    httpx.post(f"{place}/resume", trust_env=False).raise_for_status()
    wait_for(lambda: standing(store, "expired").state == "failing", 120, "it does not fail")
    assert "removed from the topic" in standing(store, "expired").detail


def test_a_druid_that_is_not_there_is_said(kafka: KafkaUnderTest) -> None:
    store = DruidStore("meters", DruidSettings(), kafka.connection, url="http://127.0.0.1:9")
    with pytest.raises(StoreUnavailableError, match=r"http://127.0.0.1:9 does not answer"):
        store.open()
    store.close()


# --- questions --------------------------------------------------------------------------------------------------------


def test_a_druid_behind_a_login_and_tls(
    druid: LocalDruid, kafka: KafkaUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    guarded = table("guarded", AT, HOUSE, LOAD)
    make_topic(kafka, guarded)
    send(kafka, guarded.topic, [("a", reading(at)) for at in range(100)])
    with gate(druid.url, "riverrun", "let me in") as url:
        settings = DruidSettings(url=url, username="riverrun", password=Secret("let me in"))
        with (
            closing(DruidStore("gated", settings, kafka.connection, url=url)) as store,
            pytest.raises(StoreError, match=r"The certificate of Druid at .* is not trusted") as caught,
        ):
            store.open()
        assert "SSL_CERT_FILE" in caught.value.hint
        monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
        wrong = replace(settings, password=Secret("let me out"))
        with (
            closing(DruidStore("gated", wrong, kafka.connection, url=url)) as store,
            pytest.raises(StoreError, match="does not know the user or the password") as caught,
        ):
            store.open()
        assert "druid.password" in caught.value.hint
        assert "let me out" not in str(caught.value)
        with DruidStore("gated", settings, kafka.connection, url=url) as store:
            store.apply([guarded])
            settled(store, "guarded", 100)
            assert rows_of(store, "SELECT count(*) AS n, max(load) AS most FROM guarded") == [
                {"n": 100, "most": 99 / 8}
            ]
            store.remove("guarded")


def test_a_question_is_bounded_and_can_be_cancelled(store: DruidStore, kafka: KafkaUnderTest) -> None:
    declared = table("asked", AT, HOUSE, LOAD)
    make_topic(kafka, declared)
    store.apply([declared])
    send(kafka, declared.topic, [("a", reading(at)) for at in range(1000)])
    settled(store, "asked", 1000)
    answer = store.query("SELECT load FROM asked GROUP BY load ORDER BY load DESC", QueryLimits(rows=10))
    assert (answer.rows.num_rows, answer.more) == (10, True)
    assert answer.rows["load"][0].as_py() == 999 / 8
    assert store.query("SELECT house FROM asked GROUP BY 1", QueryLimits(rows=7)).more is False
    with pytest.raises(QueryError, match="nothing"):
        store.query("SELECT nothing FROM asked")
    slow = "SELECT COUNT(*) FROM asked a, asked b, asked c WHERE a.load + b.load + c.load < 0"
    with pytest.raises(QueryTimeoutError):
        store.query(slow, QueryLimits(seconds=1))
    ended: list[BaseException] = []

    def ask() -> None:
        try:
            store.query(slow, QueryLimits(seconds=60), name="slow")
        except QueryCancelledError as error:
            ended.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    wait_for(lambda: "slow" in store._running, 10, "the question did not begin")
    assert store.cancel("slow") is True
    # Druid looks whether it is to end between two pieces of work, and such a join has large ones.
    thread.join(120)
    assert ended
    assert store.cancel("slow") is False


# --- kills ------------------------------------------------------------------------------------------------------------


def test_a_million_records_with_the_indexer_killed_and_the_broker_restarted(
    store: DruidStore, druid: LocalDruid, kafka: KafkaUnderTest
) -> None:
    assert kafka.local is not None
    declared = table("million", AT, HOUSE, LOAD, NUMBER)
    latest = table("newest", AT, HOUSE, NUMBER, key=("house",), upserts=True)
    many = 1_000_000
    make_topic(kafka, declared, partitions=4)
    make_topic(kafka, latest)
    store.apply([declared, latest])
    values = (json.dumps(reading(at, load=1.0, number=at)).encode() for at in range(many))
    with Producer(kafka.connection) as producer:
        sent = threading.Thread(target=lambda: producer.send_all(declared.topic, values, key=lambda _: None))
        sent.start()
        wait_for(lambda: standing(store, "million").rows > 50_000, SETTLED_SECONDS, "it does not read")
        druid.indexer.kill()
        druid.indexer.restart()
        druid.ready(Deadline(240))
        sent.join()
    send(kafka, latest.topic, [("a", reading(0, f"h{at % 3}", number=at)) for at in range(3000)])
    wait_for(lambda: standing(store, "million").rows > 200_000, SETTLED_SECONDS, "it does not read again")
    broker = kafka.local.brokers[0]
    broker.restart()
    kafka.local.ready(Deadline(90))
    settled(store, "million", many)
    found = rows_of(store, "SELECT house, COUNT(*) AS n, SUM(number) AS s, SUM(load) AS l FROM million GROUP BY house")
    of_house = {f"house-{at}": range(at, many, 7) for at in range(7)}
    assert {each["house"]: (each["n"], each["s"], each["l"]) for each in found} == {
        house: (len(numbers), sum(numbers), float(len(numbers))) for house, numbers in of_house.items()
    }
    settled(store, "newest", 3)
    assert rows_of(store, "SELECT house, number FROM newest ORDER BY house") == [
        {"house": "h0", "number": 2997}, {"house": "h1", "number": 2998}, {"house": "h2", "number": 2999},
    ]  # fmt: skip
