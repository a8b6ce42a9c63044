"""Every mistake with streams in docs/reference/errors.md gives the message the table says it gives."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.bad_streams import CASES, StreamCase, StreamWorld
from support.errors_page import row, rows_of_page, write_row

# A busy machine takes its time.
pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("spark")]

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from riverrun.testing.pytest_plugin import KafkaUnderTest


@pytest.fixture
def make_world(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[], StreamWorld]:
    """A world whose Spark and Kafka start when the first case asks for them."""

    def session() -> "SparkSession":
        found: SparkSession = request.getfixturevalue("spark")
        return found

    def cluster() -> str:
        kafka: KafkaUnderTest = request.getfixturevalue("kafka")
        return kafka.bootstrap_servers

    return lambda: StreamWorld(tmp_path, "no cluster", session=session, cluster=cluster)


@pytest.mark.parametrize(
    "case", [pytest.param(each, id=each.name, marks=[pytest.mark.kafka] if each.kafka else []) for each in CASES]
)
def test_a_mistake_says_what_the_table_says(
    case: StreamCase, make_world: Callable[[], StreamWorld], request: pytest.FixtureRequest
) -> None:
    world = make_world()
    made = row(case, world.plain(case.make(world)))
    assert "Traceback" not in made
    if request.config.getoption("--write-docs"):
        write_row(case, made)
    else:
        assert made == rows_of_page().get(case.heading), "see script/docs"


def test_there_are_at_least_twenty_mistakes_with_streams() -> None:
    assert len(CASES) >= 20
