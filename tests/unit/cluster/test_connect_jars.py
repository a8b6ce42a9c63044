"""Which plugins of Connect are fetched."""

from pathlib import Path
from typing import Any

import pytest

from riverrun.cluster.connect import jars
from riverrun.cluster.connect.jars import ConnectRuntime
from riverrun.config import ArtifactSettings, Settings


@pytest.mark.parametrize(
    ("plugins", "cached", "fetched"),
    [
        (("debezium-postgres",), (), ["kafka", "connect", "debezium-postgres"]),
        (("debezium-postgres",), ("debezium-jdbc",), ["kafka", "connect", "debezium-postgres", "debezium-jdbc"]),
        (jars.PLUGIN_SETS, (), ["kafka", "connect", "debezium-postgres", "debezium-jdbc"]),
    ],
)
def test_those_that_are_needed_or_here_anyway(
    plugins: tuple[str, ...],
    cached: tuple[str, ...],
    fetched: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str] = []

    def fetch(name: str, *_: Any, **__: Any) -> list[Path]:
        seen.append(name)
        return [tmp_path / f"{name}-4.3.1.jar"]

    monkeypatch.setattr(jars, "fetch", fetch)
    monkeypatch.setattr(jars, "unpack_archive", lambda archive, *_, **__: archive)
    monkeypatch.setattr(jars, "find_java", lambda _: None)
    monkeypatch.setattr(jars, "is_cached", lambda name, _: name in cached)
    settings = Settings(artifacts=ArtifactSettings(cache_dir=str(tmp_path)))
    assert list(ConnectRuntime.prepare(settings, plugins=plugins).plugins) == fetched[2:]
    assert seen == fetched
