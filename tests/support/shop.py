"""A source application on Postgres that never stops writing, its changes followed into Kafka, and a judge.

The application inserts, updates and deletes rows of two tables. A trigger writes down every change in the same transaction,
so the database itself knows what must have arrived: the judge compares that with the topics, change by change. Run as a
program it is the kill suite of the way from Postgres to Kafka (`script/kill-postgres`).
"""

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import psycopg
from confluent_kafka import Consumer, TopicPartition

import riverrun
from riverrun.app import App
from riverrun.cluster.connect.local import LocalConnect
from riverrun.config import KafkaSettings, Project, Secret
from riverrun.config.spec import PostgresSettings
from riverrun.connectors.kafka_connect import ConnectClient
from riverrun.connectors.postgres.connector_configs import cdc_connectors, source_configs
from riverrun.kafka.connection import Connection
from support.postgres import TestPostgres

PARTITIONS = 3
WAIT_SECONDS = 180.0
TABLES = """
    create table accounts(id text primary key, owner text, balance numeric(14,2) not null, version int not null, note text);
    create table entries(id bigint primary key, account text not null, amount numeric(14,2) not null, version int not null);
    alter table entries replica identity full;
    create table audit(seq bigserial primary key, tab text, id text, op text, version int);
    create function audited() returns trigger language plpgsql as $$ begin
      if tg_op = 'DELETE' then
        insert into audit(tab, id, op, version) values (tg_table_name, old.id::text, 'd', old.version); return old;
      end if;
      insert into audit(tab, id, op, version)
        values (tg_table_name, new.id::text, case tg_op when 'INSERT' then 'c' else 'u' end, new.version);
      return new;
    end $$;
    create trigger accounts_audit after insert or update or delete on accounts for each row execute function audited();
    create trigger entries_audit after insert or update or delete on entries for each row execute function audited();
"""


class Entry(riverrun.Event):
    """A change of an entry, as a stream sees it."""

    id: int = riverrun.key()
    account: str
    amount: float
    version: int
    change: str
    lsn: int


def shop_app(name: str) -> App:
    """Accounts as a table, entries as a stream of changes."""
    app = App(name)
    topic = app.topic(f"{name}-entries", Entry, partitions=PARTITIONS)
    app.table("accounts", riverrun.postgres("accounts", partitions=PARTITIONS))
    app.source(topic, riverrun.postgres("public.entries"), name="entries")
    return app


class SourceApplication:
    """Writes rows until it is told to stop; a database that goes away is waited for."""

    def __init__(self, url: str, *, rate: float, keys: int = 200, seed: int = 1) -> None:
        self._url = url
        self._pause = 1 / rate
        self._keys = keys
        self._random = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.transactions = 0
        self.interruptions = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(WAIT_SECONDS)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with psycopg.connect(self._url, connect_timeout=5) as connection:
                    while not self._stop.wait(self._pause):
                        self._transaction(connection)
                        connection.commit()
                        self.transactions += 1
            except psycopg.OperationalError:
                # Whether the last one counted, the database knows.
                self.interruptions += 1
                self._stop.wait(0.2)

    def _transaction(self, connection: "psycopg.Connection[Any]") -> None:
        """A few rows of both tables, in one transaction, as applications do."""
        chance = self._random
        account, amount = f"a{chance.randrange(self._keys)}", chance.randrange(-9999, 9999) / 100
        connection.execute(
            "insert into accounts values (%s, %s, %s, 1, null) on conflict (id) do update "
            "set balance = accounts.balance + excluded.balance, version = accounts.version + 1",
            (account, f"owner of {account}", amount),
        )
        entry = chance.randrange(self._keys * 5)
        connection.execute(
            "insert into entries values (%s, %s, %s, 1) on conflict (id) do update "
            "set amount = excluded.amount, version = entries.version + 1",
            (entry, account, amount),
        )
        if chance.random() < 0.1:
            connection.execute("delete from accounts where id = %s", (f"a{chance.randrange(self._keys)}",))
            connection.execute("delete from entries where id = %s", (chance.randrange(self._keys * 5),))


@dataclass
class Verdict:
    """What the topics have, against what the database wrote down."""

    changes: int = 0
    lost: int = 0
    twice: int = 0
    disordered: int = 0
    rows: int = 0
    rows_differ: int = 0
    rows_expected: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not (self.lost or self.twice or self.disordered or self.rows_differ)


class Shop:
    """The database, Connect and the app, on a Kafka that runs."""

    def __init__(self, root: Path, name: str, kafka: KafkaSettings, *, rows: int = 0) -> None:
        self.root = root
        self.name = name
        self.app = shop_app(name)
        self.postgres = TestPostgres()
        self.connection = Connection(kafka)
        self.connect = LocalConnect(
            root / "connect", kafka.bootstrap_servers, first_port=random.randrange(12000, 28000, 10)
        )
        self._rows = rows
        # The last change that is not judged.
        self.since = 0

    def __enter__(self) -> Self:
        self.postgres.__enter__()
        url = self.postgres.shop("shop", TABLES, "alter table accounts owner to cdc; alter table entries owner to cdc")
        if self._rows:
            self.postgres.run(
                f"insert into accounts select 'old' || n, 'x', n, 1, null from generate_series(1, {self._rows}) n",  # noqa: S608
                database="shop",
            )
        self.settings = PostgresSettings(url=url, password=Secret("cdc"))
        self.connect.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.connect.__exit__(None, None, None)
        finally:
            self.postgres.close()

    @property
    def url(self) -> str:
        return self.postgres.url("shop")

    def follow(self) -> None:
        """Check, make the topics, and tell Connect."""
        project = Project(self.root)
        followings = cdc_connectors(self.app, self.settings, project)
        configs = source_configs(followings, self.settings, project)
        self.app.apply(self.connection)
        self.tell(configs)

    def tell(self, configs: Mapping[str, Mapping[str, str | Secret]]) -> None:
        """Give Connect these connectors."""
        with ConnectClient(self.connect.attached) as client:
            for name, config in configs.items():
                client.put(
                    name, {key: each.reveal() if isinstance(each, Secret) else each for key, each in config.items()}
                )

    def records(self, topic: str, partitions: int = PARTITIONS) -> list[tuple[str, dict[str, Any] | None]]:
        """All committed records of a topic, key and value, in the order of each partition."""
        consumer = Consumer(self.connection.properties({
            "group.id": f"judge-{random.getrandbits(40)}", "enable.auto.commit": False,
            "isolation.level": "read_committed", "enable.partition.eof": False,
        }))  # fmt: skip
        try:
            found: list[tuple[str, dict[str, Any] | None]] = []
            places = [TopicPartition(topic, each, 0) for each in range(partitions)]
            ends = {place.partition: consumer.get_watermark_offsets(place, timeout=30)[1] for place in places}
            consumer.assign(places)
            deadline = time.monotonic() + WAIT_SECONDS
            while time.monotonic() < deadline:
                for message in consumer.consume(5000, timeout=0.5):
                    if message.error() is None:
                        value = message.value()
                        found.append(
                            ((message.key() or b"").decode(), json.loads(value) if value is not None else None)
                        )
                at = {each.partition: each.offset for each in consumer.position(places)}
                if all(at[end] >= ends[end] for end in ends):
                    return found
            raise AssertionError(f"{topic} could not be read to its end: {ends}")
        finally:
            consumer.close()

    def truth(self) -> tuple[dict[str, list[tuple[str, int]]], dict[str, dict[str, Any]]]:
        """Every change of each entry in order, since `self.since`, and the accounts as they are."""
        changes: dict[str, list[tuple[str, int]]] = defaultdict(list)
        for seq, key, kind, version in self.postgres.run(
            "select seq, id, op, version from audit where tab = 'entries' order by seq", database="shop"
        ):
            if seq > self.since:
                changes[key].append((kind, version))
        rows = {
            row[0]: {"id": row[0], "owner": row[1], "balance": str(row[2]), "version": row[3], "note": row[4]}
            for row in self.postgres.run("select * from accounts", database="shop")
        }
        return changes, rows

    def require_caught_up(self) -> None:
        """Wait until the last change of all is in the topics: one that nobody else makes, written for this."""
        mark = random.getrandbits(60) + (1 << 60)
        self.postgres.run(f"insert into entries values ({mark}, 'mark', 0, 1)", database="shop")  # noqa: S608
        deadline = time.monotonic() + WAIT_SECONDS
        consumer = Consumer(self.connection.properties({
            "group.id": f"mark-{mark}", "enable.auto.commit": False, "isolation.level": "read_committed",
        }))  # fmt: skip
        try:
            topic = f"{self.name}-entries"
            consumer.assign([TopicPartition(topic, each, 0) for each in range(PARTITIONS)])
            while time.monotonic() < deadline:
                for message in consumer.consume(5000, timeout=0.5):
                    if message.error() is None and message.key() == str(mark).encode():
                        return
        finally:
            consumer.close()
        raise AssertionError(f"a change did not arrive in {WAIT_SECONDS:g} s: {self.states()}")

    def states(self) -> str:
        """What Connect says of its connectors, for a test that failed."""
        with ConnectClient(self.connect.attached) as client:
            return "; ".join(f"{name} is {each.overall} {each.reason}" for name, each in client.states().items())

    def wait(self, condition: Callable[[], object], complaint: str) -> None:
        """Wait until a condition holds; what Connect says stands in the complaint."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"{complaint} after {WAIT_SECONDS:g} s: {self.states()}"
            time.sleep(0.2)

    def begin_here(self) -> None:
        """Judge what comes after now: what was before came as rows that were there, or more than once (a snapshot that was
        killed is taken again)."""
        ((self.since,),) = self.postgres.run("select coalesce(max(seq), 0) from audit", database="shop")

    def judge(self) -> Verdict:
        """Compare change by change."""
        changes, rows = self.truth()
        verdict = Verdict(rows_expected=len(rows))
        arrived: dict[str, list[tuple[str, int]]] = defaultdict(list)
        for key, value in self.records(f"{self.name}-entries"):
            assert value is not None
            assert str(value["id"]) == key
            arrived[key].append((value["change"], value["version"]))
        for key in {*changes, *arrived}:
            want, got = changes.get(key, []), arrived.get(key, [])
            if got and got[0][0] == "r":
                # It was there just before the first rows were read.
                got = [("c", got[0][1]), *got[1:]]
            if self.since:
                got = got[max(0, len(got) - len(want)) :] if want else []
            verdict.changes += len(want)
            if want == got:
                continue
            missing, more = _minus(want, got), _minus(got, want)
            verdict.lost += len(missing)
            verdict.twice += len(more)
            verdict.disordered += not missing and not more
            verdict.notes.append(f"{key}: want {want[-6:]}, got {got[-6:]}")
        table: dict[str, dict[str, Any]] = {}
        for key, value in self.records(f"{self.name}.accounts"):
            if value is None:
                table.pop(key, None)
            else:
                table[key] = value
        verdict.rows = len(table)
        differ = [key for key in {*table, *rows} if table.get(key) != rows.get(key)]
        verdict.rows_differ = len(differ)
        verdict.notes += [f"{key}: table {rows.get(key)}, topic {table.get(key)}" for key in differ[:5]]
        return verdict


def _minus(some: list[tuple[str, int]], others: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """What of the first is not in the second, each as often as it is there."""
    left = list(others)
    found = []
    for each in some:
        if each in left:
            left.remove(each)
        else:
            found.append(each)
    return found


def kill_under_load(
    shop: Shop,
    *,
    kills: int,
    restarts: int = 1,
    rate: float = 100.0,
    between: tuple[float, float] = (4.0, 10.0),
    seed: int = 1,
    in_snapshot: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Verdict:
    """Kill Connect, and restart Postgres in between, while the application writes; then let it catch up and judge.

    `in_snapshot`: the first kill is while the rows that were there are read. Then they are read again, and what changed
    meanwhile may come twice: the tables are judged, and each change from then on.
    """
    chance = random.Random(seed)
    steps = ["kill"] * kills
    for number in range(restarts):
        steps.insert(min(len(steps), 1 + number * 2 + kills // 2), "restart")
    if in_snapshot:
        with SourceApplication(shop.url, rate=rate, seed=seed + 1) as application:
            shop.follow()
            time.sleep(chance.uniform(0.5, 3.0))
            shop.connect.node.kill()
            shop.connect.node.restart()
            say(f"Connect killed while it took the snapshot, after {application.transactions} transactions")
            shop.require_caught_up()
        shop.require_caught_up()
        shop.begin_here()
    else:
        shop.follow()
        shop.require_caught_up()
    with SourceApplication(shop.url, rate=rate, seed=seed) as application:
        for step in steps:
            # Also while it is only coming back.
            time.sleep(chance.uniform(*between))
            if step == "kill":
                shop.connect.node.kill()
                say(f"Connect killed after {application.transactions} transactions")
                shop.connect.node.restart()
            else:
                shop.postgres.restart()
                say(f"Postgres restarted after {application.transactions} transactions")
        time.sleep(chance.uniform(*between))
    say(f"{application.transactions} transactions, {application.interruptions} interruptions of the application")
    shop.require_caught_up()
    return shop.judge()


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill Connect and restart Postgres under load; judge what arrived.")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--restarts", type=int, default=1)
    parser.add_argument("--rate", type=float, default=100.0, help="transactions per second of the source application")
    parser.add_argument("--rows", type=int, default=20_000, help="rows that are there before the first start")
    parser.add_argument("--seed", type=int, default=random.randrange(10_000))
    parser.add_argument("--in-snapshot", action="store_true", help="kill once more, while the first rows are read")
    options = parser.parse_args()
    from riverrun.testing.pytest_plugin import local_kafka

    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="riverrun-kill-postgres-") as folder:
        root = Path(folder)
        with local_kafka(root / "kafka", KafkaSettings()) as kafka:
            settings = replace(kafka.settings, bootstrap_servers=kafka.bootstrap_servers)
            with Shop(root, "shop", settings, rows=options.rows) as shop:
                verdict = kill_under_load(
                    shop, kills=options.kills, restarts=options.restarts, rate=options.rate, seed=options.seed, say=print,
                    between=(4.0, 20.0), in_snapshot=options.in_snapshot,
                )  # fmt: skip
    for line in verdict.notes[:20]:
        print(line)
    told: Mapping[str, Any] = {name: each for name, each in vars(verdict).items() if name != "notes"}
    print(json.dumps({"seed": options.seed, "kills": options.kills, "restarts": options.restarts, **told}))
    print(f"{time.monotonic() - begun:.0f} s: {'nothing lost, nothing twice' if verdict.good else 'NOT EQUAL'}")
    sys.exit(0 if verdict.good else 1)


if __name__ == "__main__":
    main()
