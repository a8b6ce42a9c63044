"""A name is written as the pipeline file writes it, also where a sentence begins with it."""

import io
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import riverrun as rr
from riverrun.app import declared_names
from riverrun.cli.alert_supervisor import AlertSupervisor
from riverrun.cli.progress import StepProgress
from riverrun.model.notices import notice_text, phrase_of
from riverrun.runtime.connector_supervisor import ConnectorSupervisor

if TYPE_CHECKING:
    from riverrun.model.topic import Topic


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("house_load runs near-real-time", "house_load runs near-real-time."),
        ("episodes: 3 rows are late", "episodes: 3 rows are late."),
        ("metrics at http://127.0.0.1:9404/metrics", "Metrics at http://127.0.0.1:9404/metrics."),
        ("it failed. Check the log.", "It failed. Check the log."),
    ],
)
def test_a_name_is_written_as_it_is(text: str, said: str) -> None:
    assert notice_text(text, {"house_load", "episodes"}) == said


def named_app() -> rr.App:
    app = rr.App("meters")
    gates: Topic[Any] = app.topic("gates-in")
    app.source(gates, rr.http(), name="eingang")
    app.sink(gates, rr.webhook("https://example.org/hook"), name="Zentrale")
    return app


@pytest.mark.parametrize(
    ("line", "notice", "said"),
    [
        ("Kafka does not answer.", "kafka does not answer", "Kafka does not answer."),
        ("Zentrale/0 is tried again in 1 s.", "Zentrale/0 is tried again in 1 s", "Zentrale/0 is tried again in 1 s."),
        ("Zentrale's receiver is slow.", "Zentrale's receiver is slow", "Zentrale's receiver is slow."),
        ("eingang: 3 dead letters.", "eingang: 3 dead letters", "eingang: 3 dead letters."),
        ("gates-in, all of it.", "gates-in, all of it", "gates-in, all of it."),
        # No word of a language, whatever it is the name of.
        ("shop.postgres: a row is gone.", "shop.postgres: a row is gone", "shop.postgres: a row is gone."),
    ],
)
def test_the_first_letter_of_a_name_is_not_changed_by_whoever_passes_a_sentence_on(
    line: str, notice: str, said: str
) -> None:
    names = declared_names(named_app())
    assert phrase_of(line, names) == notice
    assert notice_text(notice, names) == said


@pytest.mark.parametrize("beside", [ConnectorSupervisor, AlertSupervisor])
def test_what_a_process_beside_says_keeps_its_names(beside: Any) -> None:
    said: list[str] = []
    child: Any = SimpleNamespace(poll=lambda: None, new_lines=lambda: ["Zentrale is slow.", "Records wait."])
    process = beside.__new__(beside)
    process.__dict__ |= {
        "_app": named_app(), "_notice": said.append, "_process": child, "_alert_process": child,
        "_phone_process": None, "_phones_announced": True,
    }  # fmt: skip
    process.poll()
    assert said == ["Zentrale is slow", "records wait"]


def test_a_replay_s_notice_begins_with_the_stream_s_name() -> None:
    out = io.StringIO()
    with StepProgress(stream=out, names={"loads"}) as progress:
        progress.notice("loads counts over all time")
    assert out.getvalue() == "loads counts over all time.\n"
