"""Mistakes a user makes, each made for real: what they did, and what riverrun said.

docs/reference/errors.md is the table of these; `tests/integration/test_bad_inputs.py` holds the two against each other, and
`script/docs` writes the table anew. A case gets a fresh project (`World`) and gives what the user would read.
"""

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from riverrun.artifacts.lock import read_lock
from riverrun.config import KafkaSettings
from riverrun.errors import RiverrunError
from riverrun.kafka.connection import Connection, client_id
from riverrun.model.event import Event, key
from riverrun.model.topic import Topic


@dataclass
class World:
    """A fresh project for one case, and the clusters there are."""

    root: Path
    bootstrap_servers: str
    secured: Callable[[], str] = lambda: ""
    environ: dict[str, str] = field(default_factory=dict)

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return path

    def attach(self) -> None:
        """Make the project one that uses the test's cluster."""
        self.write("riverrun.toml", f'[kafka]\nbootstrap_servers = "{self.bootstrap_servers}"\n')

    @property
    def connection(self) -> Connection:
        return Connection(KafkaSettings(bootstrap_servers=self.bootstrap_servers))

    def fine_topic(self, name: str) -> None:
        self.fine("topics", "create", name, "--if-not-exists", "--bootstrap-servers", self.bootstrap_servers)

    def riverrun(self, *arguments: str, stdin: str = "") -> str:
        """What the command says when it fails; it must fail, and without a traceback."""
        done = self._call(arguments, stdin)
        assert done.returncode in {1, 2}, f"exit {done.returncode}: {done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr
        assert "INTERNAL" not in done.stderr, done.stderr
        return done.stderr.strip()

    def fine(self, *arguments: str, stdin: str = "") -> None:
        """A step on the way that must work."""
        done = self._call(arguments, stdin)
        assert done.returncode == 0, done.stderr

    def _call(self, arguments: tuple[str, ...], stdin: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "riverrun", *arguments],
            input=stdin,
            cwd=self.root,
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def _environment(self) -> dict[str, str]:
        ours = {name: value for name, value in os.environ.items() if not name.startswith("RIVERRUN_")}
        return ours | self.environ

    def python(self, code: Callable[[], object]) -> str:
        """What the code raises: one of riverrun's own errors."""
        try:
            code()
        except RiverrunError as error:
            return f"{error.code}  {error}"
        raise AssertionError("nothing was raised")

    def plain(self, text: str) -> str:
        """The text without what differs from run to run: folders, ports, times, process ids."""
        for path, name in ((self.root, "PROJECT"), (Path.home() / ".cache/riverrun", "CACHE"), (Path.home(), "~")):
            text = text.replace(str(path), name)
        text = text.replace(self.bootstrap_servers, "HOST:PORT")
        text = re.sub(r"\x1b\[[0-9;]*m", "", text)
        text = re.sub(r"127\.0\.0\.1:\d+", "HOST:PORT", text)
        text = re.sub(r"-[0-9a-f]{8}\b", "", text)
        text = re.sub(r"\b[Pp]ort \d{4,5}\b", "port PORT", text)
        text = re.sub(r"--port \d{4,5}\b", "--port PORT", text)
        text = re.sub(r"\bpid \d+", "pid PID", text)
        # One of several processes of a run of tests is called otherwise.
        text = text.replace(f"by {psutil.Process().name()} (pid PID)", "by pytest (pid PID)")
        text = re.sub(rf"\b{re.escape(client_id())}\b", "CLIENT", text)
        text = re.sub(r"(?<!\")\b\d+(\.\d+)? ?(ms|s|seconds|MB|MiB|GB|GiB)\b", r"N \2", text)
        text = re.sub(r"SHA-256 [0-9a-f]{64}", "SHA-256 …", text)
        text = re.sub(r"(?<![\"0-9])\d{4}-\d\d-\d\d[T ][0-9:]+[.,][0-9]+", "TIME", text)
        text = re.sub(r"(?<![\"0-9])\d{4}-\d\d-\d\dT[0-9:.]+(Z|\+00:00)?", "TIME", text)
        text = re.sub(r"maven2/\S+\.jar", "maven2/….jar", text)
        text = re.sub(r"datetime\.datetime\([^)]*\)", "datetime(…)", text)
        progress = re.compile(r"kafka: |Starting|\[")
        return "\n".join(line.rstrip() for line in text.strip().splitlines() if not progress.match(line))


@dataclass(frozen=True)
class Case:
    """One mistake. `title` says what the user did."""

    title: str
    make: Callable[[World], str]

    @property
    def name(self) -> str:
        return self.make.__name__

    @property
    def heading(self) -> str:
        """The title as a table's cell has it."""
        return self.title.replace("|", "/")


CASES: list[Case] = []


def case(title: str) -> Callable[[Callable[[World], str]], Callable[[World], str]]:
    def register(make: Callable[[World], str]) -> Callable[[World], str]:
        CASES.append(Case(title, make))
        return make

    return register


@contextlib.contextmanager
def listening() -> Iterator[int]:
    """A port that somebody else has."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        yield held.getsockname()[1]


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


READING = """
    from datetime import datetime

    import riverrun as rr

    app = rr.App("meters")


    class Reading(rr.Event):
        house_id: str = rr.key()
        load_kw: float = rr.field(ge=0)
        at: datetime = rr.event_time(late="2 minutes")


    readings = app.topic("readings", Reading)
"""

# --- the command line --------------------------------------------------------------------------------------------------


@case("Type a command that does not exist: `riverrun statsu`")
def unknown_command(world: World) -> str:
    return world.riverrun("statsu")


@case("Give a flag that does not exist: `riverrun topics --alll`")
def unknown_flag(world: World) -> str:
    return world.riverrun("topics", "--alll")


@case("Leave out an argument: `riverrun topics create`")
def missing_argument(world: World) -> str:
    return world.riverrun("topics", "create")


@case("Give a number that is out of range: `riverrun topics create t --partitions 0`")
def partitions_zero(world: World) -> str:
    return world.riverrun("topics", "create", "t", "--partitions", "0")


@case("Use a command that needs a cluster when none runs: `riverrun topics`")
def nothing_runs(world: World) -> str:
    return world.riverrun("topics")


@case("Ask for connectors when no Kafka Connect runs: `riverrun connect`")
def no_connect_runs(world: World) -> str:
    return world.riverrun("connect")


@case("Write a property of a connector without a value: `riverrun connect create log topic`")
def property_without_value(world: World) -> str:
    world.environ["RIVERRUN_CONNECT_URL"] = f"http://127.0.0.1:{closed_port()}"
    return world.riverrun("connect", "create", "log", "topic")


@case("Name a project folder that is not there in `RIVERRUN_PROJECT`")
def project_not_there(world: World) -> str:
    world.environ["RIVERRUN_PROJECT"] = str(world.root / "nowhere")
    return world.riverrun("config")


# --- the configuration -------------------------------------------------------------------------------------------------


@case("Break the TOML of riverrun.toml")
def bad_toml(world: World) -> str:
    world.write("riverrun.toml", "[kafka]\nport = \n")
    return world.riverrun("config")


@case("Misspell a section, a setting and a value, and a variable")
def several_problems(world: World) -> str:
    world.write("riverrun.toml", '[kafak]\nport = 1\n[kafka]\nprot = 1\nbrokers = "three"\n')
    world.environ["RIVERRUN_KAFKA_HEAP"] = "512"
    return world.riverrun("config")


@case("Write a duration, a size, a port, an address, a zone and a Spark master that are none")
def values_of_another_format(world: World) -> str:
    world.write(
        "riverrun.toml",
        '[streams]\nevery = "5 parsecs"\nport = 99999999\n[store]\nmax_size = "20 XB"\n[spark]\nmaster = "flink://x"\n'
        '[profile.prod.druid]\nurl = "druid.example"\n',
    )
    world.environ["RIVERRUN_ALERTS_SMS_BUDGET_ZONE"] = "Europe/Dubln"
    return world.riverrun("config")


@case("Write a password into riverrun.toml")
def secret_in_file(world: World) -> str:
    world.write(
        "riverrun.toml",
        '[kafka]\nsecurity_protocol = "SASL_SSL"\nsasl_mechanism = "PLAIN"\nsasl_username = "u"\n'
        'sasl_password = "hunter2"\n',
    )
    said = world.riverrun("config")
    assert "hunter2" not in said
    return said


@case("Ask for a profile that is not there: `riverrun --profile prod config`")
def unknown_profile(world: World) -> str:
    world.write("riverrun.toml", "[profile.staging.kafka]\nport = 9192\n")
    return world.riverrun("--profile", "prod", "config")


@case("Ask for more copies than brokers: `riverrun up --replication 3`")
def more_copies_than_brokers(world: World) -> str:
    return world.riverrun("up", "--detach", "--replication", "3")


@case("Give a client property that librdkafka does not know, in [kafka.client]")
def unknown_client_property(world: World) -> str:
    world.write(
        "riverrun.toml",
        f'[kafka]\nbootstrap_servers = "{world.bootstrap_servers}"\n[kafka.client]\n"sokcet.timeout.ms" = "1"\n',
    )
    return world.riverrun("topics")


@case("Serve others without TLS: `riverrun serve --host 0.0.0.0`")
def serve_in_clear(world: World) -> str:
    world.attach()
    return world.riverrun("serve", "--name", "meters", "--host", "0.0.0.0")  # noqa: S104


@case("Let in everybody of a login provider: `serve.oidc_issuer` without a list")
def serve_everybody(world: World) -> str:
    world.write("riverrun.toml", '[serve]\noidc_issuer = "https://login.example.org"\noidc_client_id = "riverrun"\n')
    return world.riverrun("serve", "--name", "meters")


# --- starting servers --------------------------------------------------------------------------------------------------


@case("Start on a port that somebody has: `riverrun up --port 9092`")
def port_taken(world: World) -> str:
    with listening() as port:
        said = world.riverrun("up", "--detach", "--port", str(port))
    assert str(port) in said
    return said


@case("Give a broker property with a bad value, in [kafka.broker]")
def broker_dies_at_start(world: World) -> str:
    world.write("riverrun.toml", '[kafka.broker]\n"num.io.threads" = "many"\n')
    return world.riverrun("up", "--detach")


@case("Start where a file stands in place of the data folder")
def data_folder_is_a_file(world: World) -> str:
    world.write(".riverrun", "not a folder")
    return world.riverrun("up", "--detach")


@case("Start on a full disk")
def full_disk(world: World) -> str:
    small = world.root / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)], check=True)
    try:
        return world.riverrun("--project", str(small), "up", "--detach")
    finally:
        subprocess.run(["umount", str(small)], check=True)


@case("Have a jar in the cache that changed by one byte")
def corrupt_jar(world: World) -> str:
    cache = copy_of_cache(world)
    # The broker's own: Spark and Druid bring others of that name.
    wanted = next(artifact for artifact in read_lock("kafka").artifacts if artifact.name == "kafka-clients")
    jar = next(cache.rglob(wanted.file_name))
    content = bytearray(jar.read_bytes())
    content[1000] ^= 1
    jar.unlink()
    jar.write_bytes(content)
    return world.riverrun("up", "--detach").replace(str(cache), "CACHE")


@case("Start offline with an empty cache")
def offline_and_empty(world: World) -> str:
    world.environ |= {
        "RIVERRUN_ARTIFACTS_CACHE_DIR": str(world.root / "empty"),
        "RIVERRUN_ARTIFACTS_OFFLINE": "true",
        "HOME": str(world.root),
    }
    return world.riverrun("up", "--detach")


@case("Fetch from a repository that is not there: `riverrun fetch kafka --maven-url …`")
def repository_not_there(world: World) -> str:
    world.environ |= {"RIVERRUN_ARTIFACTS_CACHE_DIR": str(world.root / "empty"), "HOME": str(world.root)}
    return world.riverrun("fetch", "kafka", "--maven-url", f"http://127.0.0.1:{closed_port()}/maven2")


@case("Name a `java.home` without a Java")
def java_home_without_java(world: World) -> str:
    world.environ["RIVERRUN_JAVA_HOME"] = str(world.root)
    return world.riverrun("up", "--detach")


def copy_of_cache(world: World) -> Path:
    """A cache of the case's own, hard-linked to the user's."""
    from riverrun.artifacts import fetch
    from riverrun.artifacts.cache import cache_folder
    from riverrun.config import ArtifactSettings

    fetch("kafka", ArtifactSettings())
    cache = world.root / "cache"
    shutil.copytree(cache_folder(ArtifactSettings()) / "maven", cache / "maven", copy_function=os.link)
    world.environ["RIVERRUN_ARTIFACTS_CACHE_DIR"] = str(cache)
    return cache


# --- reaching a cluster ------------------------------------------------------------------------------------------------


@case("Attach to an address where no broker is")
def no_broker(world: World) -> str:
    # Shorter than the wait after which a command says what it waits for.
    world.environ["RIVERRUN_KAFKA_REQUEST_TIMEOUT_SECONDS"] = "2"
    return world.riverrun("topics", "--bootstrap-servers", f"127.0.0.1:{closed_port()}")


@case("Attach to an address where no Kafka Connect is: `connect.url`")
def no_connect(world: World) -> str:
    world.environ["RIVERRUN_CONNECT_URL"] = f"http://127.0.0.1:{closed_port()}"
    return world.riverrun("connect", "list")


@case("Log in with a wrong password")
def wrong_password(world: World) -> str:
    world.write("riverrun.toml", world.secured())
    world.environ["PASSWORD"] = "open-barley"
    said = world.riverrun("topics")
    assert "open-barley" not in said
    return said


# --- declarations ------------------------------------------------------------------------------------------------------


@case("Give two fields of an event the key")
def two_keys(world: World) -> str:
    world.attach()
    world.write(
        "app.py",
        """
        import riverrun as rr

        class Reading(rr.Event):
            house: str = rr.key()
            meter: str = rr.key()
        """,
    )
    return world.riverrun("topics", "apply", "--app", "app.py")


@case("Compact a topic whose event has no key")
def compacted_without_key(world: World) -> str:
    world.attach()
    world.write(
        "app.py",
        """
        import riverrun as rr

        app = rr.App("meters")

        class Reading(rr.Event):
            house: str

        readings = app.topic("readings", Reading, compact=True)
        """,
    )
    return world.riverrun("topics", "apply", "--app", "app.py")


@case('Write a retention nobody understands: `retention="7 dayz"`')
def bad_duration(world: World) -> str:
    world.attach()
    world.write("app.py", 'import riverrun as rr\napp = rr.App("meters")\napp.topic("readings", retention="7 dayz")\n')
    return world.riverrun("topics", "apply", "--app", "app.py")


@case("Have a syntax error in the pipeline file")
def syntax_error(world: World) -> str:
    world.attach()
    world.write("app.py", 'import riverrun as rr\napp = rr.App("meters"\n')
    return world.riverrun("topics", "apply", "--app", "app.py")


@case("Have the pipeline file raise an exception")
def app_raises(world: World) -> str:
    world.attach()
    world.write("app.py", 'import riverrun as rr\napp = rr.App("meters")\n\n1 / 0\n')
    return world.riverrun("topics", "apply", "--app", "app.py")


@case("Name a pipeline file that is not there")
def app_not_there(world: World) -> str:
    world.attach()
    return world.riverrun("topics", "apply", "--app", "meters.py")


# --- topics, groups, offsets -------------------------------------------------------------------------------------------


@case("Give a topic a name that Kafka does not allow: `riverrun topics create 'my topic'`")
def bad_topic_name(world: World) -> str:
    world.attach()
    return world.riverrun("topics", "create", "my topic")


@case("Create a topic that is there: `riverrun topics create exists-already`")
def topic_exists(world: World) -> str:
    world.attach()
    world.fine("topics", "create", "exists-already", "--if-not-exists")
    return world.riverrun("topics", "create", "exists-already")


@case("Misspell a topic: `riverrun topics describe speling-test`")
def topic_misspelt(world: World) -> str:
    world.attach()
    world.fine("topics", "create", "spelling-test", "--if-not-exists")
    return world.riverrun("topics", "describe", "speling-test")


@case("Ask for more replicas than there are brokers: `riverrun topics create t --replicas 9`")
def too_many_replicas(world: World) -> str:
    world.attach()
    return world.riverrun("topics", "create", "t", "--replicas", "9")


@case("Declare fewer partitions than the topic has")
def fewer_partitions(world: World) -> str:
    world.attach()
    world.fine("topics", "create", "shrinking", "--partitions", "4", "--if-not-exists")
    world.write("app.py", 'import riverrun as rr\napp = rr.App("meters")\napp.topic("shrinking", partitions=2)\n')
    return world.riverrun("topics", "apply", "--app", "app.py")


@case("Delete a topic from a script without `--yes`")
def delete_without_yes(world: World) -> str:
    world.attach()
    world.fine("topics", "create", "kept", "--if-not-exists")
    return world.riverrun("topics", "delete", "kept")


@case("Ask for a group that does not exist: `riverrun groups describe nobody-reads-this`")
def unknown_group(world: World) -> str:
    world.attach()
    return world.riverrun("groups", "describe", "nobody-reads-this")


@case("Say two places to move to: `riverrun offsets move g --to-earliest --to-latest`")
def two_places(world: World) -> str:
    world.attach()
    return world.riverrun("offsets", "move", "g", "--to-earliest", "--to-latest")


@case("Move to a time nobody understands: `--to-time 'half past'`")
def bad_time(world: World) -> str:
    world.attach()
    world.fine("topics", "create", "timed", "--if-not-exists")
    return world.riverrun("offsets", "move", "g", "--topic", "timed", "--to-time", "half past")


# --- producing and consuming -------------------------------------------------------------------------------------------


def meters(world: World) -> None:
    world.attach()
    world.write("app.py", READING)
    world.fine("topics", "apply", "--app", "app.py")


@case("Produce a line that is not JSON")
def line_is_not_json(world: World) -> str:
    world.attach()
    return world.riverrun("produce", "lines", "--create", stdin='{"n": 1}\n{"n": 2\n')


@case("Produce an event with a field missing")
def missing_field(world: World) -> str:
    meters(world)
    return world.riverrun("produce", "readings", "--app", "app.py", stdin='{"house_id": "h1", "load_kw": 1.0}\n')


@case("Produce an event with a field of the wrong type")
def wrong_type(world: World) -> str:
    meters(world)
    event = '{"house_id": "h1", "load_kw": "high", "at": "2026-07-01T10:00:00Z"}\n'
    return world.riverrun("produce", "readings", "--app", "app.py", stdin=event)


@case("Produce an event that breaks its constraint")
def broken_constraint(world: World) -> str:
    meters(world)
    event = '{"house_id": "h1", "load_kw": -1, "at": "2026-07-01T10:00:00Z"}\n'
    return world.riverrun("produce", "readings", "--app", "app.py", stdin=event)


@case("Send a time without a time zone")
def naive_time(world: World) -> str:
    meters(world)
    event = '{"house_id": "h1", "load_kw": 1, "at": "2026-07-01T10:00:00"}\n'
    return world.riverrun("produce", "readings", "--app", "app.py", stdin=event)


@case("Produce CSV with a row that has too many cells")
def bad_csv(world: World) -> str:
    world.attach()
    return world.riverrun("produce", "cells", "--create", "--csv", stdin="a,b\n1,2\n1,2,3\n")


@case("Produce text that is not UTF-8, from a file")
def not_utf8(world: World) -> str:
    world.attach()
    (world.root / "latin1.jsonl").write_bytes('{"name": "Zoë"}\n'.encode("latin-1"))
    return world.riverrun("produce", "names", "latin1.jsonl", "--create")


@case("Produce from a file that is not there")
def file_not_there(world: World) -> str:
    world.attach()
    return world.riverrun("produce", "names", "nowhere.jsonl", "--create")


@case("Produce a record of 2 MB")
def huge_record(world: World) -> str:
    world.attach()
    return world.riverrun("produce", "huge", "--create", stdin='{"text": "%s"}\n' % ("x" * 2_000_000))


@case("Produce to a topic that is not there: `riverrun produce no-such-topic-yet`")
def produce_to_unknown_topic(world: World) -> str:
    world.attach()
    return world.riverrun("produce", "no-such-topic-yet", stdin="{}\n")


@case("Consume a topic that is not there")
def consume_unknown_topic(world: World) -> str:
    world.attach()
    return world.riverrun("consume", "no-such-topic-yet")


@case("Filter by a condition nobody understands: `riverrun consume t --where 'load is high'`")
def bad_filter(world: World) -> str:
    world.attach()
    return world.riverrun("consume", "t", "--where", "load is high")


@case("Give `producer.send` something else than the topic's event")
def not_an_event(world: World) -> str:
    import riverrun as rr

    readings = meter_topic()
    with rr.Producer(world.connection) as producer:
        world.fine_topic("meter-readings")
        return world.python(lambda: producer.send(readings, {"house_id": "h1"}))


@case("Use a producer after it was closed")
def closed_producer(world: World) -> str:
    import riverrun as rr

    world.fine_topic("meter-readings")
    producer = rr.Producer(world.connection)
    producer.close()
    return world.python(lambda: producer.send("meter-readings", {"n": 1}))


@case("Start a second producer with the same `transactional_id`, and go on with the first")
def fenced(world: World) -> str:
    import riverrun as rr

    world.fine_topic("meter-readings")
    with rr.Producer(world.connection, transactional_id="one-at-a-time") as second:
        first = rr.Producer(world.connection, transactional_id="one-at-a-time")

        def transact(producer: rr.Producer) -> None:
            with producer.transaction() as tx:
                tx.send("meter-readings", {"n": 1})

        transact(first)
        transact(second)
        said = world.python(lambda: transact(first))
        with contextlib.suppress(RiverrunError):
            first.close()
    return said


@case("Move the offsets of a group that has members")
def live_group(world: World) -> str:
    import riverrun as rr

    world.attach()
    world.fine_topic("live-group")
    with rr.Producer(world.connection) as producer:
        producer.send("live-group", {"n": 1})
    with rr.Consumer("live-group", group="live-readers", connection=world.connection) as consumer:
        next(iter(consumer))
        return world.riverrun("offsets", "move", "live-readers", "--to-earliest")


@case('Read with `on_gone="stop"` what retention has removed')
def offset_gone(world: World) -> str:
    import riverrun as rr
    from riverrun.kafka.admin.admin import Admin
    from riverrun.model.cluster_state import TopicPartition

    world.fine_topic("short-lived")
    with rr.Producer(world.connection) as producer:
        producer.send_all("short-lived", ({"n": n} for n in range(100)))
    with rr.Consumer("short-lived", group="slow", connection=world.connection, commit="record") as consumer:
        for record in consumer:
            if record.offset == 9:
                break
    end = Admin(world.connection).offsets([TopicPartition("short-lived", 0)], "latest")[
        TopicPartition("short-lived", 0)
    ]
    Admin(world.connection).delete_records({TopicPartition("short-lived", 0): end - 40})

    def read() -> None:
        with rr.Consumer("short-lived", group="slow", connection=world.connection, on_gone="stop") as again:
            next(iter(again))

    return world.python(read)


@case("Read a record that is not what its topic promises")
def unreadable_record(world: World) -> str:
    import riverrun as rr

    world.fine_topic("meter-readings-raw")
    with rr.Producer(world.connection) as producer:
        producer.send("meter-readings-raw", b'{"house_id": 7}')

    def read() -> None:
        topic = meter_topic("meter-readings-raw")
        with rr.Consumer(topic, connection=world.connection, follow=False) as consumer:
            for record in consumer:
                print(record.value)

    return world.python(read)


def meter_topic(name: str = "meter-readings") -> Topic[Event]:
    class Reading(Event):
        house_id: str = key()
        load_kw: float

    return Topic(name, Reading)


# --- dead letters and tests --------------------------------------------------------------------------------------------


def dead_letter(world: World, topic: str) -> None:
    """A project with one record that could not be read."""
    import riverrun as rr

    world.attach()
    world.fine_topic(topic)
    with rr.Producer(world.connection) as producer:
        producer.send(topic, b'{"house_id": "h1"', key="h1")
    with rr.Consumer(topic, group=f"{topic}-readers", connection=world.connection, follow=False) as consumer:
        assert consumer.run(lambda _: None, on_unreadable="dead-letter").dead == 1


@case("Misspell the topic of dead letters: `riverrun dlq show dead-onse`")
def dlq_misspelt(world: World) -> str:
    world.attach()
    world.fine_topic("dead-ones")
    return world.riverrun("dlq", "show", "dead-onse")


@case("Ask for the bytes of no letter in particular: `riverrun dlq show t --raw`")
def dlq_raw_of_all(world: World) -> str:
    world.attach()
    return world.riverrun("dlq", "show", "t", "--raw")


@case("Ask for a dead letter that is not there: `riverrun dlq show dead-few --offset 7`")
def dlq_no_such_offset(world: World) -> str:
    dead_letter(world, "dead-few")
    return world.riverrun("dlq", "show", "dead-few", "--offset", "7")


@case("Re-drive dead letters from a script without `--yes`")
def dlq_without_yes(world: World) -> str:
    dead_letter(world, "dead-unsaid")
    return world.riverrun("dlq", "redrive", "dead-unsaid")


@case("Name a fix that is not there: `riverrun dlq redrive t --fix mend.py:mend`")
def dlq_no_fix(world: World) -> str:
    world.attach()
    return world.riverrun("dlq", "redrive", "t", "--fix", "mend.py:mend")


@case("Name a function that the fix's file does not have")
def dlq_no_function(world: World) -> str:
    world.attach()
    world.write("mend.py", "def fix(value, letter):\n    return value\n")
    return world.riverrun("dlq", "redrive", "t", "--fix", "mend.py:mend")


@case("Re-drive with a fix that raises on a letter")
def dlq_fix_raises(world: World) -> str:
    dead_letter(world, "dead-fix-raises")
    world.write(
        "mend.py", "import json\n\ndef fix(value, letter):\n    return json.dumps(json.loads(value)).encode()\n"
    )
    return world.riverrun("dlq", "redrive", "dead-fix-raises", "--fix", "mend.py", "--yes")


@case("Re-drive with a fix that gives text instead of bytes")
def dlq_fix_gives_text(world: World) -> str:
    dead_letter(world, "dead-fix-text")
    world.write("mend.py", "def fix(value, letter):\n    return value.decode() + '}'\n")
    return world.riverrun("dlq", "redrive", "dead-fix-text", "--fix", "mend.py", "--yes")


@case("Run `riverrun test` without pytest")
def no_pytest(world: World) -> str:
    world.write("sitecustomize.py", "import sys\nsys.modules['pytest'] = None\n")
    world.environ["PYTHONPATH"] = str(world.root)
    return world.riverrun("test").replace(sys.executable, "PYTHON")
