"""Whether files can be fetched, asked without fetching any."""

from pathlib import Path

import pytest

from riverrun.artifacts.lock import format_lock
from riverrun.artifacts.repository_check import check_repository
from riverrun.errors import ArtifactMissingError, DownloadError, RepositoryError
from support.maven import Bench


@pytest.fixture(autouse=True)
def only_made(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """riverrun knows one set, called made."""
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks" / "made.lock").write_text(format_lock(bench.lock), encoding="utf-8")
    monkeypatch.setattr("riverrun.artifacts.lock.lock_folder", lambda: tmp_path / "locks")


def test_one_small_file_is_asked_for_and_nothing_is_written(bench: Bench) -> None:
    assert check_repository("made", bench.settings(), environ=bench.environ).url == bench.server.url
    assert [request.target for request in bench.server.requests] == [f"/maven2/{bench.artifacts['small'].path}"]
    assert not bench.cache_dir.exists()


def test_what_a_fetch_would_raise_is_raised(bench: Bench) -> None:
    bench.fails("small", status=404)
    bench.fails("small", status=401)
    bench.fails("small", status=503)
    for expected in (ArtifactMissingError, RepositoryError, DownloadError):
        with pytest.raises(expected):
            check_repository("made", bench.settings(), environ=bench.environ)
    assert len(bench.server.requests) == 3, "it is asked once, not again and again"


def test_a_file_repository(bench: Bench, tmp_path: Path) -> None:
    settings = bench.settings(maven_url=f"file://{tmp_path}/repository")
    with pytest.raises(ArtifactMissingError):
        check_repository("made", settings, environ=bench.environ)
    bench.put(tmp_path / "repository", "small")
    assert check_repository("made", settings, environ=bench.environ).folder == tmp_path / "repository"
