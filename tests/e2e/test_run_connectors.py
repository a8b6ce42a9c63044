"""`riverrun run` with a log, a stream and a sink of one's own: the whole way, to the end; `riverrun connectors` after it."""

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cluster import ProjectDriver

PIPELINE = """
import sqlite3

import riverrun as rr

app = rr.App("web")


class Line(rr.Event):
    n: int = rr.key()
    text: str = ""


lines = app.topic("lines", Line, partitions=2)
app.source(lines, rr.tail("app.log", format="json"), name="log")
errors = app.sql("errors", "select n, text from lines where text = 'error'")


class Table(rr.Sink):
    def write(self, records):
        with sqlite3.connect("errors.db") as database:
            database.execute("create table if not exists errors (n integer primary key)")
            database.executemany("insert or replace into errors values (?)", [(each.value["n"],) for each in records])


app.sink(errors, Table(), name="table")
"""

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(1500)]


@pytest.fixture
def project(tmp_path: Path) -> Iterator[ProjectDriver]:
    found = ProjectDriver(tmp_path)
    found.configure('[project]\napp = "app.py"\n[spark]\ndriver_memory_mb = 1024\n[store]\nkind = "none"\n')
    (tmp_path / "app.py").write_text(PIPELINE)
    yield found
    found.run("down")


def write(project: ProjectDriver, begin: int, end: int) -> None:
    with (project.root / "app.log").open("a") as log:
        log.writelines(
            json.dumps({"n": n, "text": "error" if n % 10 == 0 else "fine"}) + "\n" for n in range(begin, end)
        )


def in_table(project: ProjectDriver) -> list[int]:
    with sqlite3.connect(project.root / "errors.db") as database:
        return [n for (n,) in database.execute("select n from errors order by n")]


def test_from_a_log_through_a_stream_to_a_sink_until_caught_up(project: ProjectDriver) -> None:
    write(project, 0, 1000)
    with (project.root / "app.log").open("a") as log:
        log.write("no json\n")
    assert project.run("up", "--detach").code == 0
    done = project.run("run", "--until-caught-up", "--speed", "near-real-time", timeout=540)
    assert done.code == 0, done.err
    assert in_table(project) == list(range(0, 1000, 10))

    write(project, 1000, 1500)
    done = project.run("run", "--until-caught-up", "--speed", "near-real-time", timeout=540)
    assert done.code == 0, done.err
    assert in_table(project) == list(range(0, 1500, 10))

    listed = {load["connector"]: load for load in json.loads(project.run("connectors", "list", "--json").out)}
    assert (listed["log"]["records"], listed["log"]["dead"], listed["log"]["state"]) == (1501, 1, "stopped")
    assert listed["log"]["lag"] == "0 bytes"
    assert json.loads(listed["log"]["position"])["offset"] == (project.root / "app.log").stat().st_size
    assert listed["table"]["kind"] == "sink"

    refused = project.run("connectors", "forget", "nothing", "--yes")
    assert refused.code == 2
    assert "No source nothing has a position" in refused.err
    assert project.run("connectors", "forget", "log", "--yes").code == 0
