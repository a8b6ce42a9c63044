"""Keys for posting: made when they are needed, kept as hashes, good for all topics or some."""

from pathlib import Path

import pytest

from riverrun.config.spec import IngestSettings
from riverrun.connectors.http.api_keys import generated_key, load_api_keys
from riverrun.errors import ConfigError

TOPICS = frozenset({"readings", "hooks"})


def test_this_machine_alone_needs_none(tmp_path: Path) -> None:
    keys, made = load_api_keys(IngestSettings(), tmp_path, tmp_path, TOPICS)
    assert (keys.required, made) == (False, None)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "settings",
    [IngestSettings(host="192.0.2.7"), IngestSettings(require_key=True), IngestSettings(keys={"a": "env:A"})],
)
def test_who_asks_for_keys_has_one(tmp_path: Path, settings: IngestSettings) -> None:
    keys, made = load_api_keys(settings, tmp_path, tmp_path, TOPICS, environ={"A": "a" * 16})
    assert keys.required
    assert made == tmp_path / "ingest-key.txt"
    assert made.stat().st_mode & 0o777 == 0o600
    # The same one from then on; nothing of the object tells it.
    assert load_api_keys(settings, tmp_path, tmp_path, TOPICS, environ={"A": "a" * 16})[1] is None
    own = generated_key(tmp_path)[0].reveal()
    assert len(own) == 40
    assert own not in repr(vars(keys))


def test_all_problems_at_once_and_no_key_in_them(tmp_path: Path) -> None:
    settings = IngestSettings(
        keys={"short": "env:SHORT", "gone": "env:GONE", "shop": "env:SHOP"}, key_topics={"shop": "reading"}
    )
    with pytest.raises(ConfigError) as caught:
        load_api_keys(settings, tmp_path, tmp_path, TOPICS, environ={"SHORT": "hunter2", "SHOP": "s" * 20})
    assert caught.value.problems == (
        "ingest.keys.short has fewer than 16 characters: it could be guessed",
        "ingest.keys.gone asks for the variable GONE, which is not set",
        "ingest.key_topics.shop names reading, which takes no records by HTTP: did you mean readings?",
    )
    assert not (tmp_path / "ingest-key.txt").exists()
