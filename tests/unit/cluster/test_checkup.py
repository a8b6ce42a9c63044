"""What `riverrun doctor` says of a machine that is not fit."""

import random
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from riverrun.cluster import checkup
from riverrun.cluster.checkup import Finding, examine
from riverrun.config import Loaded, Project, load


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "project").mkdir()
    return Project(tmp_path / "project")


@pytest.fixture
def loading(project: Project, tmp_path: Path) -> Callable[..., Loaded]:
    """Settings of a project with an empty cache, that stays offline."""

    def make(**environ: str) -> Loaded:
        settings = {"RIVERRUN_ARTIFACTS_CACHE_DIR": str(tmp_path / "cache"), "RIVERRUN_ARTIFACTS_OFFLINE": "true"}
        given = {f"RIVERRUN_{name}": value for name, value in environ.items()}
        return load(project, environ=settings | given)

    return make


def findings(loading: Callable[[], Loaded]) -> dict[str, Finding]:
    return {each.check: each for each in examine(loading)}


def test_every_line_is_ok_or_says_what_to_do(loading: Callable[..., Loaded]) -> None:
    found = findings(loading)
    assert {"python", "riverrun", "kafka client", "java", "memory", "disk", "port", "cluster"} <= set(found)
    for each in found.values():
        assert each.state in ("ok", "warn", "fail")
        assert each.found
        assert each.state == "ok" or each.todo


def test_missing_jars_are_a_failure_only_when_they_may_not_be_fetched(loading: Callable[..., Loaded]) -> None:
    offline = findings(loading)["kafka jars"]
    assert (offline.state, "46 of 46 files are missing" in offline.found) == ("fail", True)
    # An address nobody listens on: nothing is fetched, and that is said.
    online = findings(lambda: loading(ARTIFACTS_OFFLINE="false", ARTIFACTS_MAVEN_URL="http://127.0.0.1:9/maven"))
    assert online["kafka jars"].state == "warn"
    assert online["repository"].state == "fail"
    assert "DOWNLOAD_FAILED" in online["repository"].found


def test_a_corrupt_jar(loading: Callable[..., Loaded], tmp_path: Path) -> None:
    jar = tmp_path / "cache/maven/org/apache/kafka/kafka-clients/4.3.1/kafka-clients-4.3.1.jar"
    jar.parent.mkdir(parents=True)
    jar.write_bytes(b"not this")
    found = findings(loading)["kafka jars"]
    assert found.state == "fail"
    assert "kafka-clients-4.3.1.jar" in found.found
    assert "--repair" in found.todo


def test_a_configuration_with_problems_ends_the_examination(project: Project, loading: Callable[..., Loaded]) -> None:
    project.config_file.write_text("[kafka]\nheap_bm = 300\n")
    found = findings(loading)
    assert found["configuration"].state == "fail"
    assert "did you mean heap_mb" in found["configuration"].found
    assert "java" not in found


def test_a_java_that_is_none(loading: Callable[..., Loaded], tmp_path: Path) -> None:
    found = findings(lambda: loading(JAVA_HOME=str(tmp_path)))["java"]
    assert (found.state, found.found.split(":")[0]) == ("fail", "JAVA_NOT_FOUND")


def test_a_java_that_looks_right_and_does_not_start(loading: Callable[..., Loaded], tmp_path: Path) -> None:
    executable = tmp_path / "jre/bin/java"
    executable.parent.mkdir(parents=True)
    (tmp_path / "jre/release").write_text('JAVA_VERSION="21.0.8"\n')
    executable.write_text("#!/bin/sh\necho no >&2; exit 1\n")
    executable.chmod(0o755)
    found = findings(lambda: loading(JAVA_HOME=str(tmp_path / "jre")))["java"]
    assert found.state == "fail"
    assert "does not start" in found.found


def test_a_heap_larger_than_the_machine(loading: Callable[..., Loaded]) -> None:
    found = findings(lambda: loading(KAFKA_HEAP_MB="100000000"))["memory"]
    assert found.state == "fail"
    assert "kafka.heap_mb" in found.todo


def test_a_disk_that_is_nearly_full(loading: Callable[..., Loaded], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup, "COMFORTABLE_FREE_MB", 1 << 40)
    assert findings(loading)["disk"].state == "warn"
    monkeypatch.setattr(checkup, "LEAST_FREE_MB", 1 << 40)
    assert findings(loading)["disk"].state == "fail"


def test_a_port_that_is_taken(loading: Callable[..., Loaded]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        found = findings(lambda: loading(KAFKA_PORT=str(port)))["port"]
    assert found.state == "fail"
    assert f"{port} is taken by" in found.found


def test_a_cluster_that_does_not_answer(loading: Callable[..., Loaded]) -> None:
    address = f"127.0.0.1:{random.randrange(1, 1000)}"
    found = findings(lambda: loading(KAFKA_BOOTSTRAP_SERVERS=address, KAFKA_REQUEST_TIMEOUT_SECONDS="1"))
    assert found["cluster"].state == "fail"
    assert address in found["cluster"].found
    assert "port" not in found
