"""A Maven repository of its own for each test, and a user who fetches from it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.maven import Bench, MavenServer


@pytest.fixture(autouse=True)
def no_system_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this machine's administrator told Maven is nothing to these tests."""
    monkeypatch.setattr("riverrun.artifacts.maven_settings.SYSTEM_FILES", ())


@pytest.fixture
def server() -> Iterator[MavenServer]:
    made = MavenServer()
    yield made
    made.close()


@pytest.fixture
def tls_server() -> Iterator[MavenServer]:
    made = MavenServer(tls=True)
    yield made
    made.close()


@pytest.fixture
def bench(tmp_path: Path, server: MavenServer) -> Bench:
    return Bench(tmp_path, server)


@pytest.fixture
def tls_bench(tmp_path: Path, tls_server: MavenServer) -> Bench:
    return Bench(tmp_path, tls_server)
