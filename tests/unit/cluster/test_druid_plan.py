"""What a Druid is to be: sizes, properties, ports, the data it may use."""

import json
import stat
from pathlib import Path

import pytest

from riverrun.cluster.druid.plan import MIN_MEMORY_MB, SMALLEST_ROLES, DruidManifest, DruidPlan, RolePlan, scale_roles
from riverrun.cluster.druid.properties import DERBY, EXTENSIONS, common, role_properties, zookeeper_properties
from riverrun.config import DruidSettings
from riverrun.config.private_files import write_private
from riverrun.errors import ConfigError, DataDirectoryError

PORTS = {name: 20000 + number for number, name in enumerate([*DruidPlan().names, DERBY])}


def plan(**settings: object) -> DruidPlan:
    return DruidPlan.of(DruidSettings(**settings))  # type: ignore[arg-type]


def properties(role: str, **settings: object) -> dict[str, str]:
    made = plan(**settings)
    return role_properties(next(each for each in made.roles if each.role == role), made, PORTS, "/cache/extensions")


# --- sizes ---


def test_names_are_those_users_see() -> None:
    assert plan().names == [
        "zookeeper",
        "druid-coordinator",
        "druid-broker",
        "druid-historical",
        "druid-indexer",
        "druid-router",
    ]


@pytest.mark.parametrize("memory_mb", [0, 1, MIN_MEMORY_MB])
def test_the_least_is_what_was_measured(memory_mb: int) -> None:
    assert scale_roles(memory_mb) == SMALLEST_ROLES
    assert (RolePlan("indexer", 256, 112) in SMALLEST_ROLES, MIN_MEMORY_MB) == (True, 944)


@pytest.mark.parametrize("memory_mb", [1000, 4096, 65536])
def test_more_memory_goes_to_those_who_use_it(memory_mb: int) -> None:
    roles = {role.role: role for role in scale_roles(memory_mb)}
    assert memory_mb - 2 * len(roles) < sum(role.memory_mb for role in roles.values()) <= memory_mb
    assert roles["router"] == RolePlan("router", 64, 16)
    assert roles["indexer"].heap_mb > 256


# --- properties ---


@pytest.mark.parametrize("role", [role.role for role in SMALLEST_ROLES])
def test_every_role_stays_on_the_loopback_and_in_its_folder(role: str) -> None:
    found = properties(role)
    assert (found["druid.host"], found["druid.bindOnHost"]) == ("127.0.0.1", "true")
    assert found["druid.plaintextPort"] == str(PORTS[f"druid-{role}"])
    assert found["druid.service"] == f"druid/{role}"
    assert found["druid.zk.service.host"] == f"127.0.0.1:{PORTS['zookeeper']}"
    # A `;` or a `:` in the project's path would end up in a JDBC address: paths are relative, but for the cache's.
    assert [key for key, value in found.items() if value.startswith("/")] == [
        "druid.extensions.directory",
        "druid.zk.paths.base",
    ]


def test_both_extensions_are_loaded() -> None:
    assert json.loads(common(PORTS, "/x")["druid.extensions.loadList"]) == list(EXTENSIONS)


def test_tasks_are_not_restored_by_the_indexer() -> None:
    """With true, a row was twice in a published segment after a kill."""
    assert properties("indexer")["druid.indexer.task.restoreTasksOnRestart"] == "false"


def test_a_larger_indexer_has_more_memory_for_rows_and_more_tasks() -> None:
    small, large = properties("indexer"), properties("indexer", memory_mb=4096)
    assert small["druid.worker.capacity"] == "6"
    for name in ("druid.worker.globalIngestionHeapLimitBytes", "druid.worker.capacity"):
        assert int(large[name]) > 4 * int(small[name])


def test_properties_of_the_user_win() -> None:
    found = properties("broker", config={"druid.processing.numThreads": "4", "druid.my.own": "x"})
    assert (found["druid.processing.numThreads"], found["druid.my.own"]) == ("4", "x")


def test_properties_that_are_ours_are_refused_all_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        plan(config={"druid.host": "0.0.0.0", "druid.indexer.task.restoreTasksOnRestart": "true", "druid.my.own": "x"})  # noqa: S104
    assert len(caught.value.problems) == 2


def test_zookeeper_listens_on_the_loopback_only() -> None:
    found = zookeeper_properties(2181)
    assert (found["clientPortAddress"], found["clientPort"]) == ("127.0.0.1", "2181")
    assert found["admin.enableServer"] == "false"


def test_a_file_of_properties_is_for_its_user_only(tmp_path: Path) -> None:
    path = tmp_path / "a.properties"
    path.write_text("an earlier one, longer than the next\n")
    path.chmod(0o644)
    write_private(path, "a=b\n")
    assert path.read_text() == "a=b\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


# --- the record beside the data ---


def test_a_record_survives_writing_and_reading(tmp_path: Path) -> None:
    path = tmp_path / "druid.json"
    assert DruidManifest.read(path) is None
    record = DruidManifest("33.0.0", str(tmp_path), {"druid-router": 8888})
    record.write(path)
    assert DruidManifest.read(path) == record


def test_a_record_that_cannot_be_read_is_not_taken_for_none(tmp_path: Path) -> None:
    path = tmp_path / "druid.json"
    path.write_text("{")
    with pytest.raises(DataDirectoryError, match="cannot be read"):
        DruidManifest.read(path)


def test_data_of_a_newer_druid_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataDirectoryError, match="newer Druid"):
        DruidManifest("34.0.0", str(tmp_path)).check("33.0.0", tmp_path)


def test_data_that_was_moved_is_refused_once_it_has_segments(tmp_path: Path) -> None:
    record = DruidManifest("33.0.0", "/elsewhere")
    record.check("33.0.0", tmp_path)
    assert record.folder == str(tmp_path)
    segment = tmp_path / "segments/t/2026/index.zip"
    segment.parent.mkdir(parents=True)
    segment.touch()
    with pytest.raises(DataDirectoryError, match="another folder") as caught:
        DruidManifest("33.0.0", "/elsewhere").check("33.0.0", tmp_path)
    assert caught.value.expected == "/elsewhere"
