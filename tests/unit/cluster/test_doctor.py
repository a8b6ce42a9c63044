"""What `riverrun doctor` says of a machine that is not fit."""

import random
import socket
import tomllib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from riverrun.cluster import doctor
from riverrun.cluster.doctor import Finding, run_checks
from riverrun.config import LoadedSettings, Project, load


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "project").mkdir()
    return Project(tmp_path / "project")


@pytest.fixture
def loading(project: Project, tmp_path: Path) -> Callable[..., LoadedSettings]:
    """Settings of a project with an empty cache, that stays offline."""

    def make(**environ: str) -> LoadedSettings:
        settings = {"RIVERRUN_ARTIFACTS_CACHE_DIR": str(tmp_path / "cache"), "RIVERRUN_ARTIFACTS_OFFLINE": "true"}
        given = {f"RIVERRUN_{name}": value for name, value in environ.items()}
        return load(project, environ=settings | given)

    return make


def findings(loading: Callable[[], LoadedSettings]) -> dict[str, Finding]:
    return {each.check: each for each in run_checks(loading)}


def test_every_line_is_ok_or_says_what_to_do(loading: Callable[..., LoadedSettings]) -> None:
    found = findings(loading)
    assert {"python", "riverrun", "kafka client", "java", "spark", "memory", "disk", "port", "cluster"} <= set(found)
    for each in found.values():
        assert each.state in ("ok", "warn", "fail")
        assert each.found
        assert each.state == "ok" or each.todo


def test_missing_jars_are_a_failure_only_when_they_may_not_be_fetched(loading: Callable[..., LoadedSettings]) -> None:
    offline = findings(loading)["kafka jars"]
    assert (offline.state, "46 of 46 files are missing" in offline.found) == ("fail", True)
    # An address nobody listens on: nothing is fetched, and that is said.
    online = findings(lambda: loading(ARTIFACTS_OFFLINE="false", ARTIFACTS_MAVEN_URL="http://127.0.0.1:9/maven"))
    assert online["kafka jars"].state == "warn"
    assert online["repository"].state == "fail"
    assert "DOWNLOAD_FAILED" in online["repository"].found


def test_a_corrupt_jar(loading: Callable[..., LoadedSettings], tmp_path: Path) -> None:
    jar = tmp_path / "cache/maven/org/apache/kafka/kafka-clients/4.3.1/kafka-clients-4.3.1.jar"
    jar.parent.mkdir(parents=True)
    jar.write_bytes(b"not this")
    found = findings(loading)["kafka jars"]
    assert found.state == "fail"
    assert "kafka-clients-4.3.1.jar" in found.found
    assert "--repair" in found.todo


def test_a_configuration_with_problems_ends_the_examination(
    project: Project, loading: Callable[..., LoadedSettings]
) -> None:
    project.config_file.write_text("[kafka]\nheap_bm = 300\n")
    found = findings(loading)
    assert found["configuration"].state == "fail"
    assert "did you mean heap_mb" in found["configuration"].found
    assert "java" not in found


def test_a_java_that_is_none(loading: Callable[..., LoadedSettings], tmp_path: Path) -> None:
    found = findings(lambda: loading(JAVA_HOME=str(tmp_path)))["java"]
    assert (found.state, found.found.split(":")[0]) == ("fail", "JAVA_NOT_FOUND")


def test_a_java_that_looks_right_and_does_not_start(loading: Callable[..., LoadedSettings], tmp_path: Path) -> None:
    executable = tmp_path / "jre/bin/java"
    executable.parent.mkdir(parents=True)
    (tmp_path / "jre/release").write_text('JAVA_VERSION="21.0.8"\n')
    executable.write_text("#!/bin/sh\necho no >&2; exit 1\n")
    executable.chmod(0o755)
    found = findings(lambda: loading(JAVA_HOME=str(tmp_path / "jre")))["java"]
    assert found.state == "fail"
    assert "does not start" in found.found


def pyspark(monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    """Let this version of PySpark be installed, or none."""

    def told(name: str) -> str:
        assert name == "pyspark"
        if version is None:
            raise metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(metadata, "version", told)


def pinned() -> str:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = [each for each in project["optional-dependencies"]["spark"] if each.startswith("pyspark==")]
    return str(named[0]).removeprefix("pyspark==")


def test_the_spark_that_the_package_pins(
    loading: Callable[..., LoadedSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    pyspark(monkeypatch, pinned())
    found = findings(loading)["spark"]
    assert (found.state, found.todo) == ("ok", "")
    assert found.found.startswith(f"PySpark {pinned()}")


def test_no_spark_is_only_a_warning(loading: Callable[..., LoadedSettings], monkeypatch: pytest.MonkeyPatch) -> None:
    pyspark(monkeypatch, None)
    found = findings(loading)["spark"]
    assert (found.state, found.found.split(":")[0]) == ("warn", "PySpark is not installed")
    assert 'pip install "riverrun[spark]"' in found.todo


@pytest.mark.parametrize(("last", "state"), [("99", "warn"), ("", "fail")])
def test_another_spark(
    loading: Callable[..., LoadedSettings], monkeypatch: pytest.MonkeyPatch, last: str, state: str
) -> None:
    other = f"{pinned().rpartition('.')[0]}.{last}" if last else "3.5.1"
    pyspark(monkeypatch, other)
    found = findings(loading)["spark"]
    assert found.state == state
    assert other in found.found
    assert pinned() in found.found
    assert found.todo.endswith(f"pip install pyspark=={pinned()}")


def test_spark_without_a_java(
    loading: Callable[..., LoadedSettings], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pyspark(monkeypatch, pinned())
    found = findings(lambda: loading(JAVA_HOME=str(tmp_path)))["spark"]
    assert (found.state, found.todo) == ("fail", "See java above")
    assert "no Java 17 or newer" in found.found


def test_a_heap_larger_than_the_machine(loading: Callable[..., LoadedSettings]) -> None:
    found = findings(lambda: loading(KAFKA_HEAP_MB="1000000"))["memory"]
    assert found.state == "fail"
    assert "kafka.heap_mb" in found.todo


def test_a_disk_that_is_nearly_full(loading: Callable[..., LoadedSettings], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "COMFORTABLE_FREE_MB", 1 << 40)
    assert findings(loading)["disk"].state == "warn"
    monkeypatch.setattr(doctor, "MIN_FREE_MB", 1 << 40)
    assert findings(loading)["disk"].state == "fail"


def test_a_port_that_is_taken(loading: Callable[..., LoadedSettings]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        found = findings(lambda: loading(KAFKA_PORT=str(port)))["port"]
    assert found.state == "fail"
    assert f"{port} is taken by" in found.found


def test_a_cluster_that_does_not_answer(loading: Callable[..., LoadedSettings]) -> None:
    address = f"127.0.0.1:{random.randrange(1, 1000)}"
    found = findings(lambda: loading(KAFKA_BOOTSTRAP_SERVERS=address, KAFKA_REQUEST_TIMEOUT_SECONDS="1"))
    assert found["cluster"].state == "fail"
    assert address in found["cluster"].found
    assert "port" not in found


def test_druid_is_looked_at_where_it_is_the_store(loading: Callable[..., LoadedSettings]) -> None:
    assert not {"druid", "druid jars"} & set(findings(loading))
    found = findings(lambda: loading(STORE_KIND="druid"))
    assert (found["druid jars"].state, "files are missing" in found["druid jars"].found) == ("fail", True)
    assert found["druid"].found.startswith("it")
    assert "Druid about" in found["memory"].found
    elsewhere = findings(lambda: loading(STORE_KIND="druid", DRUID_URL="http://druid.example:8888"))
    assert "druid jars" not in elsewhere


def test_a_druid_port_that_is_taken(loading: Callable[..., LoadedSettings]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        found = findings(lambda: loading(STORE_KIND="druid", DRUID_PORT=str(taken.getsockname()[1])))["druid"]
    assert (found.state, "druid.port" in found.todo) == ("fail", True)


def test_an_attached_connect_that_does_not_answer(loading: Callable[..., LoadedSettings]) -> None:
    assert "connect" not in findings(loading)
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    found = findings(lambda: loading(CONNECT_URL=f"http://127.0.0.1:{port}"))
    assert (found["connect"].state, "connect.url" in found["connect"].todo) == ("fail", True)
    assert "connect jars" not in found
