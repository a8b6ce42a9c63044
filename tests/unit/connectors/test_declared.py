"""Connectors as they are declared, and what waiting a webhook's receiver may ask for."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import riverrun as rr
from riverrun.config import KafkaSettings
from riverrun.config.secret import resolve_secret
from riverrun.connectors.contract import ConnectorContext, create_sink, create_source
from riverrun.connectors.webhook.sink import WebhookSink, retry_after
from riverrun.errors import ConfigError, DeclarationError
from riverrun.kafka.connection import Connection


def around(folder: Path, **environ: str) -> ConnectorContext:
    connection = Connection(KafkaSettings(bootstrap_servers="127.0.0.1:1"))
    return ConnectorContext(rr.App("hooks"), connection, folder, folder, environ=environ)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: rr.tail("a.log", format="xml"), "cannot have format='xml'"),  # type: ignore[arg-type]
        (lambda: rr.tail("a.log", settle_seconds=-1), "settle_seconds=-1"),
        (lambda: rr.folder("drop", "xlsx"), "cannot have format='xlsx'"),  # type: ignore[arg-type]
        (lambda: rr.webhook("ftp://example.org/"), "cannot send to 'ftp://example.org/'"),
        (lambda: rr.webhook("https://me:pw@example.org/"), "with a password in it"),
        (lambda: rr.webhook("http://example.org/"), "without TLS"),
        (lambda: rr.webhook("https://example.org/", connections=0), "connections=0"),
    ],
)
def test_options_that_cannot_work_are_refused_where_they_are_written(make: Any, words: str) -> None:
    with pytest.raises(DeclarationError, match=words):
        make()


def test_a_secret_is_a_reference(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from a file\n")
    assert resolve_secret("env:A", "x", tmp_path, {"A": "from the environment"}).reveal() == "from the environment"
    assert resolve_secret("file:token", "x", tmp_path).reveal() == "from a file"
    for reference, words in (("env:B", "not set"), ("file:nothing", "cannot be read"), ("s3cret", "does not belong")):
        with pytest.raises(ConfigError, match=words):
            resolve_secret(reference, "x", tmp_path, {})


def test_an_address_may_be_a_secret_and_is_not_shown(tmp_path: Path) -> None:
    hook = rr.webhook("env:HOOK_URL")
    assert (
        WebhookSink(hook, around(tmp_path, HOOK_URL="https://example.org/s3cret"))._url == "https://example.org/s3cret"
    )
    with pytest.raises(DeclarationError) as caught:
        WebhookSink(hook, around(tmp_path, HOOK_URL="http://example.org/s3cret"))
    assert "s3cret" not in str(caught.value)


def test_all_missing_secrets_are_told_at_once(tmp_path: Path) -> None:
    hook = rr.webhook("https://example.org/", secret_headers={"A": "env:NO_A", "B": "env:NO_B"})
    with pytest.raises(ConfigError, match="2 problems"):
        WebhookSink(hook, around(tmp_path))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("", 0), ("12", 12), ("999999", 3600), ("soon", 0), ("-5", 0), ("Mon, 16 Nov 2026 12:00:30 GMT", 30),
     ("Mon, 16 Nov 2026 11:00:00 GMT", 0)],
)  # fmt: skip
def test_a_receiver_says_when_to_come_again(text: str, seconds: float) -> None:
    assert retry_after(text, datetime(2026, 11, 16, 12, tzinfo=UTC)) == seconds


def test_what_lacks_its_method_is_refused_with_its_line(tmp_path: Path) -> None:
    app = rr.App("empty")
    topic: rr.Topic[rr.Event] = app.topic("t")
    fed, drained = app.source(topic, rr.Source()), app.sink(topic, rr.Sink())
    with pytest.raises(DeclarationError, match=r"test_declared.py:\d+: the source Source of t cannot be opened"):
        create_source(fed, around(tmp_path))
    with pytest.raises(DeclarationError, match=r"the sink Sink of t cannot be written to"):
        create_sink(drained, around(tmp_path))
