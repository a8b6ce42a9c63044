"""Every mistake in docs/reference/errors.md gives the message the table says it gives, and exits as it should."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from riverrun.testing.pytest_plugin import KafkaUnderTest
from support.bad_inputs import CASES, Case, World
from support.errors_page import headings, row, rows_of_page, write_row
from support.secured import USER, Secured, secured_kafka


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Secured]]:
    """A cluster that wants a login, started when the first case asks for it."""
    started: list[Secured] = []
    contexts = []

    def start() -> Secured:
        if not started:
            context = secured_kafka(tmp_path_factory.mktemp("secured"), random.randrange(12000, 28000, 200))
            started.append(context.__enter__())
            contexts.append(context)
        return started[0]

    yield start
    for context in contexts:
        context.__exit__(None, None, None)


@pytest.fixture
def world(tmp_path: Path, kafka: KafkaUnderTest, secured: Callable[[], Secured]) -> World:
    def configuration() -> str:
        cluster = secured()
        return (
            f'[kafka]\nbootstrap_servers = "{cluster.login}"\nsecurity_protocol = "SASL_SSL"\n'
            f'sasl_mechanism = "SCRAM-SHA-512"\nsasl_username = "{USER}"\nsasl_password = {{ env = "PASSWORD" }}\n'
            f'ssl_ca_file = "{cluster.ca_file}"\n'
        )

    return World(tmp_path, kafka.bootstrap_servers, configuration)


@pytest.mark.kafka
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_mistake_says_what_the_table_says(case: Case, world: World, request: pytest.FixtureRequest) -> None:
    made = row(case, world.plain(case.make(world)))
    if request.config.getoption("--write-docs"):
        write_row(case, made)
    else:
        assert made == rows_of_page().get(case.heading), "see script/docs"


def test_the_table_has_every_case_and_no_other() -> None:
    assert list(rows_of_page()) == headings()
    assert len(CASES) >= 25
