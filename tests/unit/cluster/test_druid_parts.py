"""Druid's extension folders, the questions it is asked, and why one of its servers ended."""

import http.server
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from riverrun.cluster.diagnosis import DRUID, explain
from riverrun.cluster.druid.jars import extension_folder
from riverrun.cluster.druid.local import LocalDruid
from riverrun.cluster.druid.plan import DruidPlan
from riverrun.cluster.druid.probe import answers_sql, is_healthy, is_zookeeper_ready, request_json
from riverrun.config import DruidSettings
from riverrun.errors import ClusterError, DataDirectoryError, NotRunningError, PortTakenError, ServerDiedError

# --- extensions ---


@pytest.fixture
def jars(tmp_path: Path) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for extension, jar in (("one", "a-1.jar"), ("one", "b-1.jar"), ("two", "c-1.jar")):
        path = tmp_path / "cache/maven/org/x" / jar
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(jar)
        found.setdefault(extension, []).append(path)
    return found


def test_an_extension_is_a_folder_of_links(jars: dict[str, list[Path]], tmp_path: Path) -> None:
    folder = extension_folder(jars, tmp_path / "cache")
    assert {f"{path.parent.name}/{path.name}": path.read_text() for path in folder.rglob("*.jar")} == {
        "one/a-1.jar": "a-1.jar",
        "one/b-1.jar": "b-1.jar",
        "two/c-1.jar": "c-1.jar",
    }
    assert all(path.is_symlink() for path in folder.rglob("*.jar"))
    assert extension_folder(jars, tmp_path / "cache") == folder
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_other_jars_are_another_folder(jars: dict[str, list[Path]], tmp_path: Path) -> None:
    first = extension_folder(jars, tmp_path / "cache")
    assert extension_folder({"one": jars["one"]}, tmp_path / "cache") != first


def test_a_damaged_folder_is_made_again(jars: dict[str, list[Path]], tmp_path: Path) -> None:
    folder = extension_folder(jars, tmp_path / "cache")
    (folder / "one/a-1.jar").unlink()
    assert extension_folder(jars, tmp_path / "cache") == folder
    assert (folder / "one/a-1.jar").read_text() == "a-1.jar"


def test_the_cache_may_be_moved(jars: dict[str, list[Path]], tmp_path: Path) -> None:
    folder = extension_folder(jars, tmp_path / "cache")
    (tmp_path / "cache").rename(tmp_path / "moved")
    assert (tmp_path / "moved" / folder.relative_to(tmp_path / "cache") / "two/c-1.jar").read_text() == "c-1.jar"


# --- questions ---


class Answers(http.server.BaseHTTPRequestHandler):
    """Somebody else's web server, which answers everything with `body`."""

    body = b"true"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def log_message(self, format: str, *_: object) -> None:  # noqa: A002
        pass


@pytest.fixture
def web() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def test_nobody_is_there() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        assert request_json(port, "/", 1) == (0, None)
        assert not is_healthy(port, 1)
        assert not answers_sql(port, 1)
        assert not is_zookeeper_ready(port, 1)


def test_somebody_who_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        assert request_json(port, "/", 0.05) == (0, None)
        assert not is_zookeeper_ready(port, 0.05)


def test_an_answer_must_be_the_right_one(web: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_healthy(web, 5)
    assert not answers_sql(web, 5)
    assert not is_zookeeper_ready(web, 0.2)
    monkeypatch.setattr(Answers, "body", b"<html>")
    assert request_json(web, "/", 5) == (200, None)
    assert not is_healthy(web, 5)
    monkeypatch.setattr(Answers, "body", b"[[1]]")
    assert answers_sql(web, 5)


# --- ports ---


def ports(druid: LocalDruid, before: dict[str, int] | None = None) -> dict[str, int]:
    from riverrun.cluster.druid.plan import DruidManifest

    record = DruidManifest("33.0.0", "", dict(before or {}))
    druid._choose_ports(record)
    druid._claims.close()
    return record.ports


def test_ports_are_remembered_and_the_router_has_the_first(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        other = taken.getsockname()[1]
        druid = LocalDruid(tmp_path, DruidSettings(), first_port=24800)
        chosen = ports(druid)
        assert len(set(chosen.values())) == len(DruidPlan().names) + 1
        assert 24800 <= chosen["druid-router"] < min(set(chosen.values()) - {chosen["druid-router"]})
        assert all(port < 32768 for port in chosen.values())
        assert ports(druid, chosen) == chosen
        assert ports(druid, {**chosen, "zookeeper": other})["zookeeper"] != other


def test_a_port_that_was_asked_for_and_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        druid = LocalDruid(tmp_path, DruidSettings(port=taken.getsockname()[1]))
        with pytest.raises(PortTakenError, match="for druid-router") as caught:
            ports(druid)
    assert "druid.port" in caught.value.hint


def test_a_druid_that_was_not_started_has_no_address(tmp_path: Path) -> None:
    druid = LocalDruid(tmp_path, DruidSettings())
    with pytest.raises(NotRunningError):
        _ = druid.url
    druid.stop()
    druid.kill()


# --- why one ended ---


def died(tmp_path: Path, log: str = "", output: str = "", code: int = 1, ports: tuple[int, ...] = (1,)) -> ClusterError:
    (tmp_path / "druid-broker.log").write_text(log)
    (tmp_path / "druid-broker.out").write_text(output)
    return explain(
        "druid-broker",
        exit_code=code,
        seconds=4.24,
        log=tmp_path / "druid-broker.log",
        log_start=0,
        output=tmp_path / "druid-broker.out",
        output_start=0,
        ports=ports,
        folder=tmp_path,
        heap_mb=112,
        product=DRUID,
    )


def test_a_port_that_is_taken_names_its_holder(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error = died(tmp_path, "java.io.IOException: Failed to bind to /127.0.0.1:1\n"
                               "Caused by: java.net.BindException: Address already in use", ports=(1, port))  # fmt: skip
    assert isinstance(error, PortTakenError)
    assert (error.fields["port"], error.fields["pid"]) == (port, os.getpid())
    assert "druid.port" in error.hint


def test_too_little_memory_names_the_setting(tmp_path: Path) -> None:
    error = died(tmp_path, output="Terminating due to java.lang.OutOfMemoryError: Java heap space", code=3)
    assert type(error) is ServerDiedError
    assert "heap of 112 MiB is too small" in error.what
    assert "druid.memory_mb" in error.hint


@pytest.mark.parametrize(
    "line",
    [
        "java.io.IOException: No snapshot found, but there are log entries. Something is broken!",
        "ERROR XSLAN: Database at metadata.db has an incompatible format with the current version of the software.",
    ],
)
def test_data_of_another_version(line: str, tmp_path: Path) -> None:
    error = died(tmp_path, line)
    assert type(error) is DataDirectoryError
    assert error.found == line


def test_a_property_that_druid_refuses(tmp_path: Path) -> None:
    line = "1) Problem parsing object at prefix[druid.processing]: Cannot deserialize value of type `int` from String"
    error = died(tmp_path, line)
    assert "Druid refuses its configuration" in error.what
    assert "[druid.config]" in error.hint
