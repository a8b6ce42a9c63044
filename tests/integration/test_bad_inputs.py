"""Every mistake in docs/reference/errors.md gives the message the table says it gives, and exits as it should."""

import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from riverrun.testing.pytest_plugin import KafkaUnderTest
from support.bad_inputs import CASES, Case, World
from support.secured import USER, Secured, secured_kafka

PAGE = Path(__file__).parents[2] / "docs/reference/errors.md"
HEADER = """# What each mistake says

Each row was made for real by `tests/integration/test_bad_inputs.py`, which compares what it got with this table;
`script/docs` writes the table. What differs from run to run stands as a word in capitals (`PROJECT`, `HOST:PORT`).
The first word of a message is its stable code; the exit code is 2 where the command or configuration was wrong, 1
where it failed.

| what you did | what it says |
| --- | --- |
"""


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


def row(case: Case, message: str) -> str:
    shown = "<br>".join(
        f"`{line.strip()}`" for line in message.replace("`", "'").replace("|", "\\|").splitlines() if line
    )
    return f"| {case.title.replace('|', '/')} | {shown} |"


def rows_of_page() -> dict[str, str]:
    text = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    return {found[1].strip(): line for line in text.splitlines() if (found := re.match(r"\| (.+?) \| `", line))}


@pytest.mark.kafka
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_mistake_says_what_the_table_says(case: Case, world: World, request: pytest.FixtureRequest) -> None:
    made = row(case, world.plain(case.make(world)))
    if request.config.getoption("--write-docs"):
        rows = rows_of_page() | {case.title.replace("|", "/"): made}
        order = [each.title.replace("|", "/") for each in CASES]
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(HEADER + "\n".join(rows[title] for title in order if title in rows) + "\n", encoding="utf-8")
    else:
        assert made == rows_of_page().get(case.title.replace("|", "/")), "see script/docs"


def test_the_table_has_every_case_and_no_other() -> None:
    assert list(rows_of_page()) == [case.title.replace("|", "/") for case in CASES]
    assert len(CASES) >= 25
