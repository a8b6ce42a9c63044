"""The cache: what is in it is verified every time, what Maven has is reused, offline needs nothing else."""

import fcntl
import os
from pathlib import Path

import pytest

from riverrun.artifacts import cache as cache_module
from riverrun.artifacts.cache import ArtifactCache, CacheStatus, cache_folder
from riverrun.config import ArtifactSettings
from riverrun.errors import ArtifactCorruptError, ArtifactMissingError, DownloadError
from support.maven import Bench

# The folder


@pytest.mark.parametrize(
    ("cache_dir", "environ", "folder"),
    [
        ("", {"HOME": "/h"}, "/h/.cache/riverrun"),
        ("", {"HOME": "/h", "XDG_CACHE_HOME": "/x"}, "/x/riverrun"),
        ("", {"HOME": "/h", "XDG_CACHE_HOME": "relative"}, "/h/.cache/riverrun"),
        ("/c", {"HOME": "/h", "XDG_CACHE_HOME": "/x"}, "/c"),
    ],
)
def test_where_the_cache_is(cache_dir: str, environ: dict[str, str], folder: str) -> None:
    assert cache_folder(ArtifactSettings(cache_dir=cache_dir), environ) == Path(folder)


# Changed files


@pytest.mark.parametrize("offline", [False, True])
def test_a_changed_byte_is_refused_with_the_name_of_the_file(bench: Bench, offline: bool) -> None:
    bench.fetch()
    path = bench.cached("middle")
    content = bytearray(path.read_bytes())
    content[1000] ^= 1
    path.write_bytes(content)
    with pytest.raises(ArtifactCorruptError) as caught:
        bench.fetch(offline=offline)
    error = caught.value
    assert error.fields["path"] == path
    assert str(path) in str(error)
    assert f"Expected SHA-256 {bench.artifacts['middle'].sha256}; found SHA-256 " in str(error)
    assert "riverrun fetch --repair" in str(error)
    assert path.read_bytes() == content, "it is left for whoever wants to look at it"


def test_all_changed_files_are_named(bench: Bench) -> None:
    bench.fetch()
    bench.cached("small").write_bytes(b"")
    bench.cached("large").write_bytes(b"x")
    with pytest.raises(ArtifactCorruptError) as caught:
        bench.fetch()
    assert caught.value.fields["count"] == 2
    assert "found 0 bytes instead of 10" in str(caught.value)
    assert f"also {bench.cached('large')}: 1 bytes instead of 1050000" in str(caught.value)


def test_repair_fetches_changed_files_and_no_others(bench: Bench) -> None:
    bench.fetch()
    bench.cached("middle").write_bytes(b"x")
    before = len(bench.server.requests)
    fetched = bench.fetch(repair=True)
    assert (fetched.cached, fetched.downloaded) == (2, 1)
    assert len(bench.server.requests) == before + 1
    assert bench.cached("middle").read_bytes() == bench.content("middle")


def test_repair_without_a_way_to_get_the_file_leaves_the_old_one(bench: Bench) -> None:
    bench.fetch()
    bench.cached("middle").write_bytes(b"x")
    with pytest.raises(ArtifactMissingError):
        bench.fetch(repair=True, offline=True)
    assert bench.cached("middle").read_bytes() == b"x"


def test_states(bench: Bench) -> None:
    bench.fetch()
    bench.cached("small").write_bytes(b"S" * 10)
    bench.cached("large").unlink()
    checked = ArtifactCache(bench.cache_dir).check(bench.lock.artifacts)
    assert [each.status for each in checked] == [CacheStatus.CORRUPT, CacheStatus.GOOD, CacheStatus.MISSING]


# Offline


def test_offline_works_once_the_cache_is_filled(bench: Bench) -> None:
    bench.fetch()
    bench.server.close()
    fetched = bench.fetch(offline=True)
    assert fetched.cached == 3
    assert fetched.paths[0].read_bytes() == bench.content("small")


def test_offline_names_what_is_missing(bench: Bench) -> None:
    bench.fetch(only="small")
    asked = len(bench.server.requests)
    with pytest.raises(ArtifactMissingError) as caught:
        bench.fetch(offline=True)
    assert "2 of 3 files of the set 'made'" in str(caught.value)
    assert "no middle-1.0.jar, large-1.0.jar" in str(caught.value)
    assert "riverrun fetch made" in str(caught.value)
    assert len(bench.server.requests) == asked


# Another Maven repository on the machine


def test_the_local_maven_repository_is_reused(bench: Bench) -> None:
    source = bench.put(bench.home / ".m2" / "repository", "large")
    fetched = bench.fetch()
    assert (fetched.cached, fetched.reused, fetched.downloaded) == (0, 1, 2)
    assert bench.server.asked(bench.artifacts["large"]) == []
    assert bench.cached("large").samefile(source), "a hard link takes no space"


def test_it_is_reused_offline_as_well(bench: Bench) -> None:
    for name in bench.artifacts:
        bench.put(bench.home / ".m2" / "repository", name)
    assert bench.fetch(offline=True).reused == 3
    assert bench.progress.started == []


@pytest.mark.parametrize("content", [b"x", b"X" * 10])
def test_a_file_there_that_differs_is_not_used_and_not_touched(bench: Bench, content: bytes) -> None:
    source = bench.put(bench.home / ".m2" / "repository", "small", content)
    fetched = bench.fetch(only="small")
    assert (fetched.reused, fetched.downloaded) == (0, 1)
    assert source.read_bytes() == content
    assert bench.cached("small").read_bytes() == bench.content("small")
    assert list(bench.cached("small").parent.iterdir()) == [bench.cached("small")]


def test_bytes_are_copied_where_no_link_can_be_made(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def other_disk(self: Path, target: Path) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(Path, "hardlink_to", other_disk)
    source = bench.put(bench.home / ".m2" / "repository", "large")
    assert bench.fetch(only="large").reused == 1
    assert bench.cached("large").read_bytes() == bench.content("large")
    assert not bench.cached("large").samefile(source)


def test_settings_xml_says_where_it_is(bench: Bench, tmp_path: Path) -> None:
    bench.put(tmp_path / "elsewhere", "small")
    bench.write_settings(f"<localRepository>{tmp_path}/elsewhere</localRepository>")
    assert bench.fetch(only="small").reused == 1


def test_a_file_repository(bench: Bench, tmp_path: Path) -> None:
    for name in bench.artifacts:
        bench.put(tmp_path / "a b", name)
    fetched = bench.fetch(maven_url=f"file://{tmp_path}/a%20b")
    assert fetched.downloaded == 3
    assert bench.progress.here == bench.lock.total_size


def test_a_file_repository_that_lacks_something(bench: Bench, tmp_path: Path) -> None:
    bench.put(tmp_path / "elsewhere", "small")
    bench.put(tmp_path / "elsewhere", "middle", b"x")
    with pytest.raises(ArtifactMissingError, match=r"no middle-1\.0\.jar, large-1\.0\.jar with the right digest"):
        bench.fetch(maven_url=f"file://{tmp_path}/elsewhere")


# Locks


def test_another_process_that_does_not_go_on_is_not_waited_for(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "STALLED_SECONDS", 0.1)
    part = ArtifactCache(bench.cache_dir).part_path(bench.artifacts["small"])
    part.parent.mkdir(parents=True)
    descriptor = os.open(part, os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(DownloadError, match="Another process holds"):
        bench.fetch(only="small")
    os.close(descriptor)
    bench.fetch(only="small")
