"""The downloader against a server that misbehaves: what arrives is right, or nothing is used."""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from riverrun.artifacts.lock import format_lock
from riverrun.errors import (
    ArtifactCorruptError,
    ArtifactMissingError,
    CacheError,
    DiskFullError,
    DownloadError,
    RepositoryError,
)
from support.maven import Bench


def served_once(bench: Bench, name: str) -> bool:
    """Whether the server sent exactly as many bytes of a file as it has."""
    artifact = bench.artifacts[name]
    return bench.server.sent[artifact.path] == artifact.size


def test_a_set_is_fetched_and_is_in_lock_order(bench: Bench) -> None:
    fetched = bench.fetch()
    assert [path.read_bytes() for path in fetched.paths] == [bench.content(name) for name in bench.artifacts]
    assert fetched.paths == tuple(bench.cached(name) for name in bench.artifacts)
    assert (fetched.cached, fetched.reused, fetched.downloaded) == (0, 0, 3)
    assert fetched.downloaded_size == fetched.size == bench.lock.total_size
    assert fetched.repository == f"{bench.server.url} (artifacts.maven_url)"
    assert bench.parts() == []


def test_a_second_fetch_asks_for_nothing(bench: Bench) -> None:
    bench.fetch()
    asked = len(bench.server.requests)
    fetched = bench.fetch()
    assert len(bench.server.requests) == asked
    assert (fetched.cached, fetched.downloaded, fetched.repository) == (3, 0, "")


def test_progress_counts_every_byte_once(bench: Bench) -> None:
    bench.fails("large", cut_after=300_000)
    bench.fetch()
    assert bench.progress.started == [("made", 3, bench.lock.total_size)]
    assert bench.progress.here == bench.lock.total_size
    assert bench.progress.ended == 1


def test_nothing_missing_is_no_progress(bench: Bench) -> None:
    bench.fetch()
    bench.progress.started.clear()
    bench.fetch()
    assert bench.progress.started == []


def test_downloads_run_at_the_same_time(bench: Bench) -> None:
    held = [bench.fails(name, hold_after=1) for name in bench.artifacts]
    thread = threading.Thread(target=bench.fetch)
    thread.start()
    assert all(fault.reached.wait(20) for fault in held)
    for fault in held:
        fault.go_on.set()
    thread.join(20)
    assert all(bench.cached(name).exists() for name in bench.artifacts)


def test_parallel_1_fetches_one_after_the_other(bench: Bench) -> None:
    fault = bench.fails("large", hold_after=1)
    thread = threading.Thread(target=bench.fetch, kwargs={"parallel": 1})
    thread.start()
    assert fault.reached.wait(20)
    assert len(bench.server.requests) == 1
    fault.go_on.set()
    thread.join(20)
    assert len(bench.server.requests) == 3


# Cut connections and resuming


def test_a_cut_connection_is_continued_where_it_broke(bench: Bench) -> None:
    bench.fails("large", cut_after=300_000)
    bench.fails("large", cut_after=300_000)
    bench.fetch(only="large")
    ranges = [request.headers.get("Range") for request in bench.server.asked(bench.artifacts["large"])]
    assert ranges == [None, "bytes=300000-", "bytes=600000-"]
    assert served_once(bench, "large")
    assert bench.progress.notes[0].startswith("large-1.0.jar: the connection was cut; next try in")


def test_going_forward_does_not_use_up_tries(bench: Bench) -> None:
    bench.fails("large", times=10, cut_after=100_000)
    bench.fetch(only="large")
    assert served_once(bench, "large")


def test_a_connection_that_brings_nothing_ends(bench: Bench) -> None:
    bench.fails("large", times=50, cut_after=10)
    with pytest.raises(DownloadError) as caught:
        bench.fetch(only="large")
    assert len(bench.server.asked(bench.artifacts["large"])) == bench.timing.max_attempts
    assert caught.value.fields["reason"] == "the connection was cut"
    assert "run it again to go on" in str(caught.value)


def test_the_next_fetch_goes_on_after_a_failed_one(bench: Bench) -> None:
    bench.timing = replace(bench.timing, max_attempts=1)
    bench.fails("large", cut_after=400_000)
    with pytest.raises(DownloadError):
        bench.fetch(only="large")
    assert [part.stat().st_size for part in bench.parts()] == [400_000]
    assert not bench.cached("large").exists()
    bench.fetch(only="large")
    assert served_once(bench, "large")
    assert bench.parts() == []


def test_a_server_without_ranges_sends_it_all_again(bench: Bench) -> None:
    bench.fails("large", cut_after=300_000)
    bench.fails("large", ignore_range=True)
    bench.fetch(only="large")
    assert bench.cached("large").read_bytes() == bench.content("large")
    assert bench.server.sent[bench.artifacts["large"].path] == 300_000 + bench.artifacts["large"].size
    assert bench.progress.here == bench.artifacts["large"].size


@pytest.mark.parametrize(
    "fault",
    [{"status": 416}, {"headers": {"Content-Range": "bytes 5-1049999/1050000"}}, {"headers": {"Content-Range": "?"}}],
)
def test_a_range_that_is_not_served_is_given_up(bench: Bench, fault: dict[str, Any]) -> None:
    bench.fails("large", cut_after=300_000)
    bench.fails("large", **fault)
    bench.fetch(only="large")
    assert bench.cached("large").read_bytes() == bench.content("large")
    assert bench.server.requests[-1].headers.get("Range") is None


def test_a_part_of_another_file_is_thrown_away(bench: Bench) -> None:
    bench.timing = replace(bench.timing, max_attempts=1)
    bench.fails("large", cut_after=300_000)
    with pytest.raises(DownloadError):
        bench.fetch(only="large")
    bench.parts()[0].write_bytes(b"x" * 300_000)
    bench.fetch(only="large")
    assert bench.cached("large").read_bytes() == bench.content("large")


@pytest.mark.parametrize("surplus", [0, 1])
def test_a_part_as_long_as_the_file_is_not_trusted(bench: Bench, surplus: int) -> None:
    bench.timing = replace(bench.timing, max_attempts=1)
    bench.fails("large", cut_after=10)
    with pytest.raises(DownloadError):
        bench.fetch(only="large")
    bench.parts()[0].write_bytes(b"x" * (bench.artifacts["large"].size + surplus))
    bench.fetch(only="large")
    assert bench.cached("large").read_bytes() == bench.content("large")


def test_a_complete_part_needs_no_request(bench: Bench) -> None:
    """What a crash between the last byte and the rename leaves."""
    bench.timing = replace(bench.timing, max_attempts=1)
    bench.fails("large", cut_after=10)
    with pytest.raises(DownloadError):
        bench.fetch(only="large")
    asked = len(bench.server.requests)
    bench.parts()[0].write_bytes(bench.content("large"))
    bench.fetch(only="large")
    assert len(bench.server.requests) == asked
    assert bench.cached("large").read_bytes() == bench.content("large")


def test_an_answer_that_ends_early_without_an_error_is_noticed(bench: Bench) -> None:
    bench.fails("large", no_length=True, cut_after=300_000)
    bench.fetch(only="large")
    assert served_once(bench, "large")
    assert "the answer ended after 300000 of 1050000 bytes" in bench.progress.notes[0]


# Wrong bytes


def test_wrong_bytes_are_refused(bench: Bench) -> None:
    wrong = bench.content("middle")[:-1] + b"!"
    bench.fails("middle", body=wrong)
    with pytest.raises(ArtifactCorruptError) as caught:
        bench.fetch(only="middle")
    assert not bench.cached("middle").exists()
    assert caught.value.fields["expected_sha256"] == bench.artifacts["middle"].sha256
    assert "middle-1.0.jar" in str(caught.value)
    assert len(bench.server.requests) == 1, "another try would bring the same bytes"
    assert [part.stat().st_size for part in bench.parts()] == [0]


@pytest.mark.parametrize(
    "fault", [{"body": b"short"}, {"body": b"l" * 2_000_000}, {"body": b"l" * 2_000_000, "no_length": True}]
)
def test_a_file_of_another_size_is_refused(bench: Bench, fault: dict[str, Any]) -> None:
    bench.fails("large", **fault)
    with pytest.raises(ArtifactCorruptError) as caught:
        bench.fetch(only="large")
    assert "Expected 1050000 bytes" in str(caught.value)
    assert not bench.cached("large").exists()


def test_a_continued_range_of_a_file_of_another_size_is_refused(bench: Bench) -> None:
    bench.fails("large", cut_after=300_000)
    bench.fails("large", headers={"Content-Range": "bytes 300000-1049999/1050001"})
    with pytest.raises(ArtifactCorruptError):
        bench.fetch(only="large")


def test_a_web_page_is_not_a_jar(bench: Bench) -> None:
    bench.fails("small", body=b"<html>log in</html>", headers={"Content-Type": "text/html; charset=utf-8"})
    with pytest.raises(RepositoryError, match="web page") as caught:
        bench.fetch(only="small")
    assert "login page or a filtering proxy" in str(caught.value)


def test_a_compressed_answer_is_unpacked(bench: Bench) -> None:
    import gzip

    packed = gzip.compress(bench.content("middle"))
    bench.fails("middle", body=packed, headers={"Content-Encoding": "gzip"})
    bench.fetch(only="middle")
    assert bench.cached("middle").read_bytes() == bench.content("middle")


# Statuses


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_a_busy_server_is_asked_again(bench: Bench, status: int) -> None:
    bench.fails("small", times=2, status=status)
    bench.fetch(only="small")
    assert len(bench.server.requests) == 3
    assert f"the server answered {status}" in bench.progress.notes[0]


def test_a_server_that_stays_busy_is_an_error(bench: Bench) -> None:
    bench.fails("small", times=20, status=503)
    with pytest.raises(DownloadError) as caught:
        bench.fetch(only="small")
    assert len(bench.server.requests) == bench.timing.max_attempts
    assert caught.value.retryable
    assert caught.value.fields["reason"] == "the server answered 503 Service Unavailable"


@pytest.mark.parametrize("value", ["1", "Wed, 21 Oct 2999 07:28:00 GMT"])
def test_retry_after_is_honoured_up_to_a_limit(bench: Bench, value: str) -> None:
    bench.timing = replace(bench.timing, max_backoff=0.2)
    bench.fails("small", status=429, headers={"Retry-After": value})
    began = time.monotonic()
    bench.fetch(only="small")
    assert time.monotonic() - began >= 0.2
    assert bench.progress.notes == ["small-1.0.jar: the server answered 429 Too Many Requests; next try in 0.2 s"]


def test_a_retry_after_that_is_nonsense_is_ignored(bench: Bench) -> None:
    bench.fails("small", status=503, headers={"Retry-After": "soon"})
    bench.fetch(only="small")
    assert bench.cached("small").exists()


@pytest.mark.parametrize("status", [404, 410])
def test_a_file_the_repository_does_not_have(bench: Bench, status: int) -> None:
    bench.fails("middle", status=status)
    with pytest.raises(ArtifactMissingError) as caught:
        bench.fetch()
    assert "org.example.made:middle:1.0" in str(caught.value)
    assert caught.value.fields["status"] == status


@pytest.mark.parametrize("status", [401, 403])
def test_a_repository_that_wants_a_login(bench: Bench, status: int) -> None:
    bench.fails("small", status=status)
    with pytest.raises(RepositoryError, match="without a login") as caught:
        bench.fetch(only="small")
    assert caught.value.fields["status"] == status
    assert "RIVERRUN_ARTIFACTS_MAVEN_PASSWORD" in str(caught.value)
    assert len(bench.server.requests) == 1


def test_another_refusal_names_the_status(bench: Bench) -> None:
    bench.fails("small", status=451)
    with pytest.raises(RepositoryError, match="451"):
        bench.fetch(only="small")


def test_redirects_are_followed(bench: Bench) -> None:
    target = f"{bench.server.url}/{bench.artifacts['middle'].path}"
    bench.server.files["org/example/made/small/1.0/small-1.0.jar"] = bench.content("small")
    bench.fails("small", status=302, headers={"Location": target.replace("middle", "small") + "?signed=1"})
    bench.fetch(only="small")
    assert bench.server.requests[-1].target.endswith("?signed=1")


def test_a_redirect_in_a_circle_ends(bench: Bench) -> None:
    here = f"{bench.server.url}/{bench.artifacts['small'].path}"
    bench.fails("small", times=100, status=302, headers={"Location": here})
    with pytest.raises(RepositoryError, match="circle"):
        bench.fetch(only="small")


# Time


def test_a_server_that_says_nothing_is_given_up(bench: Bench) -> None:
    bench.timing = replace(bench.timing, read=0.2, max_attempts=2)
    bench.fails("large", times=2, hold_after=0)
    with pytest.raises(DownloadError, match="no answer in"):
        bench.fetch(only="large")


def test_a_trickle_is_given_up_and_continued(bench: Bench) -> None:
    patient = bench.timing
    bench.timing = replace(patient, stall=0.0)
    bench.fails("large", times=patient.max_attempts, hold_after=1000)
    with pytest.raises(DownloadError, match="bytes came in"):
        bench.fetch(only="large")
    assert len(bench.server.requests) == patient.max_attempts
    kept = bench.parts()[0].stat().st_size
    assert kept > 0
    bench.timing = patient
    bench.fetch(only="large")
    assert bench.server.requests[-1].headers["Range"] == f"bytes={kept}-"
    assert bench.cached("large").read_bytes() == bench.content("large")


def test_one_failure_ends_the_others_at_once(bench: Bench) -> None:
    bench.timing = replace(bench.timing, read=60)
    held = bench.fails("large", hold_after=100_000)
    other = bench.fails("small", status=404, hold_after=0)

    def release() -> None:
        held.reached.wait(20)
        other.go_on.set()

    threading.Thread(target=release).start()
    began = time.monotonic()
    with pytest.raises(ArtifactMissingError):
        bench.fetch(parallel=2)
    assert time.monotonic() - began < 20
    assert not bench.cached("large").exists()


# No way there


def test_the_http_library_reads_no_variables_by_itself(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    bench.fetch(only="small")
    assert bench.cached("small").exists()


def test_nobody_listens(bench: Bench) -> None:
    bench.server.close()
    with pytest.raises(DownloadError) as caught:
        bench.fetch(only="small")
    assert "no connection: Connection refused" in str(caught.value)
    assert "--maven-url" in str(caught.value)
    assert caught.value.retryable


def test_a_name_that_is_not_known(bench: Bench) -> None:
    with pytest.raises(DownloadError, match=r"name repository\.invalid is not known"):
        bench.fetch(only="small", maven_url="https://repository.invalid/maven2")


# The disk


def test_a_full_disk_is_noticed_before_the_first_byte(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage(NamedTuple):
        free: int

    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage(1000))
    with pytest.raises(DiskFullError) as caught:
        bench.fetch()
    assert caught.value.fields["free"] == 1000
    assert bench.server.requests == []


def test_a_disk_that_fills_up_meanwhile(bench: Bench) -> None:
    """/dev/full answers every write as a full disk does."""
    path = bench.cached("small")
    path.parent.mkdir(parents=True)
    part = path.with_name(f"{path.name}.{bench.artifacts['small'].sha256[:12]}.part")
    part.symlink_to("/dev/full")
    with pytest.raises(DiskFullError) as caught:
        bench.fetch(only="small")
    assert str(part) in str(caught.value)
    assert "artifacts.cache_dir" in str(caught.value)


def test_a_cache_that_cannot_be_written(bench: Bench) -> None:
    bench.cache_dir.write_text("a file where the folder should be")
    with pytest.raises(CacheError) as caught:
        bench.fetch(only="small")
    assert str(bench.cache_dir) in str(caught.value)
    assert "artifacts.cache_dir" in str(caught.value)


# Several processes

CHILD = """
import sys
from pathlib import Path
from riverrun.artifacts.lock import read_lock_file
from riverrun.artifacts.sets import fetch_lock
from riverrun.config import ArtifactSettings
lock, url, cache, home = sys.argv[1:]
print("ready", flush=True)
done = fetch_lock(read_lock_file(Path(lock)), ArtifactSettings(maven_url=url, cache_dir=cache), environ={"HOME": home})
print(done.downloaded, flush=True)
"""


def start_child(bench: Bench, folder: Path) -> subprocess.Popen[str]:
    lock = folder / "made.lock"
    lock.write_text(format_lock(bench.lock), encoding="utf-8")
    arguments = [str(lock), bench.server.url, str(bench.cache_dir), str(bench.home)]
    command = [sys.executable, "-c", CHILD, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_two_processes_at_once_download_each_file_once(bench: Bench, tmp_path: Path) -> None:
    held = [bench.fails(name, hold_after=5) for name in bench.artifacts]
    children = [start_child(bench, tmp_path) for _ in range(2)]
    assert all(child.stdout and child.stdout.readline() == "ready\n" for child in children)
    assert all(fault.reached.wait(20) for fault in held)
    for fault in held:
        fault.go_on.set()
    for child in children:
        _, errors = child.communicate(timeout=60)
        assert child.returncode == 0, errors
    assert all(served_once(bench, name) for name in bench.artifacts)
    assert len(bench.server.requests) == 3
    assert all(bench.cached(name).read_bytes() == bench.content(name) for name in bench.artifacts)
    assert bench.parts() == []


def test_a_killed_process_leaves_what_the_next_one_continues(bench: Bench, tmp_path: Path) -> None:
    fault = bench.fails("large", hold_after=500_000)
    child = start_child(bench, tmp_path)
    assert fault.reached.wait(20)
    part = bench.cache_dir / "maven" / f"{bench.artifacts['large'].path}.{bench.artifacts['large'].sha256[:12]}.part"
    deadline = time.monotonic() + 20
    while (not part.exists() or part.stat().st_size < 500_000) and time.monotonic() < deadline:
        time.sleep(0.01)
    child.kill()
    child.communicate(timeout=20)
    bench.fetch()
    assert bench.cached("large").read_bytes() == bench.content("large")
    assert bench.server.asked(bench.artifacts["large"])[-1].headers["Range"] == "bytes=500000-"


def test_an_interrupt_ends_a_stuck_download_at_once(bench: Bench, tmp_path: Path) -> None:
    faults = [bench.fails(name, hold_after=5) for name in bench.artifacts]
    child = start_child(bench, tmp_path)
    assert all(fault.reached.wait(20) for fault in faults)
    began = time.monotonic()
    os.kill(child.pid, signal.SIGINT)
    _, errors = child.communicate(timeout=20)
    assert "KeyboardInterrupt" in errors
    assert time.monotonic() - began < 10, "the read timeout is 30 s"
    assert len(bench.parts()) == 3
