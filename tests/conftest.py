"""Options of our own suite."""

import os
import random
import signal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xdist.remote import Producer
    from xdist.scheduler import LoadScopeScheduling

    from riverrun.cluster.druid import LocalDruid

# The first test that uses Druid starts it.
DRUID_TEST_SECONDS = 480
BRIEF_EVENTS = 100_000
DRUID_FILES = ("tests/integration/test_druid_",)

# A shell that starts us in the background makes us ignore Ctrl-C, and our children inherit that; tests send it to them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def spark_slots() -> int:
    """Enough for a real-time stream or two, whatever the machine has."""
    return 24


@pytest.fixture(scope="session")
def spark_brief() -> bool:
    """With a million events (RIVERRUN_TEST_EVENTS) Java's second compiler is worth its time."""
    return int(os.environ.get("RIVERRUN_TEST_EVENTS", "0")) <= BRIEF_EVENTS


@pytest.fixture(scope="session")
def druid(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[LocalDruid]":
    """One Druid for the whole run. It reads any Kafka on this machine; a test that kills a role starts it again."""
    from riverrun.cluster.druid import LocalDruid
    from riverrun.config import DruidSettings

    root = tmp_path_factory.mktemp("druid")
    with LocalDruid(root, DruidSettings(), first_port=random.randrange(12000, 28000, 10)) as running:
        yield running


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "druid" in getattr(item, "fixturenames", ()) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(DRUID_TEST_SECONDS))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: "Producer") -> "LoadScopeScheduling":
    """Several processes take whole files, in their order: the long ones come first. Who uses Druid is one file to them, so
    that there is one Druid."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file, _, name = nodeid.partition("::")
            return "druid" if file.startswith(DRUID_FILES) or "[druid" in name else file

    config.option.loadscopereorder = False
    return ByFile(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-docs",
        action="store_true",
        help="Write the pages of docs/reference that tests make, instead of comparing them.",
    )
