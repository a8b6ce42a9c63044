"""Lock files: read exactly or not at all."""

import re
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

from riverrun.artifacts.lock import (
    FORMAT_LINE,
    Artifact,
    LockFile,
    format_lock,
    lock_folder,
    lock_names,
    parse_lock,
    read_lock,
    read_lock_file,
)
from riverrun.errors import LockFileError, UsageError

ROOT = Path(__file__).parents[3]
DIGEST = "0123456789abcdef" * 4
PLAIN = Artifact("org.example", "part", "1.0", 12, DIGEST)
CLASSIFIED = Artifact("org.example", "part", "1.0-rc+1", 7, DIGEST, "linux-x86_64", "tar.gz")


@pytest.mark.parametrize(
    ("artifact", "coordinates", "path"),
    [
        (PLAIN, "org.example:part:1.0", "org/example/part/1.0/part-1.0.jar"),
        (
            CLASSIFIED,
            "org.example:part:1.0-rc+1:linux-x86_64@tar.gz",
            "org/example/part/1.0-rc+1/part-1.0-rc+1-linux-x86_64.tar.gz",
        ),
    ],
)
def test_coordinates_and_path(artifact: Artifact, coordinates: str, path: str) -> None:
    assert artifact.coordinates == str(artifact) == coordinates
    assert artifact.path == path


def test_what_is_written_is_read() -> None:
    lock = LockFile("made", (PLAIN, CLASSIFIED))
    text = format_lock(lock, remarks=["what it is", "  a root"])
    assert parse_lock("made", text, where="here") == lock
    assert text.splitlines()[:4] == [FORMAT_LINE, "# what it is", "#   a root", "# 2 files, 19 bytes"]
    assert lock.total_size == 19


def test_a_long_name_changes_no_other_line() -> None:
    long = Artifact("org.example", "n" * 90, "1", 10**12, DIGEST)
    assert format_lock(LockFile("a", (PLAIN,))).splitlines()[-1] in format_lock(LockFile("b", (PLAIN, long)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "an empty file"),
        ("# riverrun lock 2\n", "not a lock file this riverrun can read"),
        ("<html>", "'<html>'"),
        (f"{FORMAT_LINE}\n# nothing\n", "names no files"),
        (f"{FORMAT_LINE}\na:b:1 12\n", "here:2 cannot be understood"),
        (f"{FORMAT_LINE}\na:b:1 12 {DIGEST} x\n", "here:2 cannot be understood"),
        (f"{FORMAT_LINE}\n\na:b 12 {DIGEST}\n", "here:3 has coordinates that are none"),
        (f"{FORMAT_LINE}\na:../../etc:1 12 {DIGEST}\n", "coordinates that are none"),
        (f"{FORMAT_LINE}\na:b:.. 12 {DIGEST}\n", "coordinates that are none"),
        (f"{FORMAT_LINE}\na:b:1/2 12 {DIGEST}\n", "coordinates that are none"),
        (f"{FORMAT_LINE}\na:b:1 -12 {DIGEST}\n", "a size that is none"),
        (f"{FORMAT_LINE}\na:b:1 ² {DIGEST}\n", "a size that is none"),
        (f"{FORMAT_LINE}\na:b:1 12 {DIGEST[:-1]}\n", "a digest that is none"),
        (f"{FORMAT_LINE}\na:b:1 12 {DIGEST.upper()}\n", "a digest that is none"),
        (f"{FORMAT_LINE}\na:b:1 12 {DIGEST}\na:b:1 12 {DIGEST}\n", "here:3 names a:b:1 again; line 2 has it"),
    ],
)
def test_any_doubt_is_an_error(text: str, message: str) -> None:
    with pytest.raises(LockFileError, match=re.escape(message)):
        parse_lock("made", text, where="here")


def test_a_lock_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(LockFileError, match="No such file"):
        read_lock_file(tmp_path / "none.lock")
    (tmp_path / "bad.lock").write_bytes(b"\xff\xfe")
    with pytest.raises(LockFileError, match="not UTF-8"):
        read_lock_file(tmp_path / "bad.lock")


def test_an_unknown_set_names_the_known_ones() -> None:
    with pytest.raises(UsageError) as caught:
        read_lock("kafak")
    assert str(caught.value) == (
        "There is no set 'kafak'. Expected one of connect, debezium-jdbc, debezium-postgres, druid, druid-datasketches, "
        "druid-kafka-indexing, kafka, kafka-tools, registry, spark-kafka. The nearest is 'kafka'."
    )
    with pytest.raises(UsageError):
        read_lock("../locks/kafka")


def load_script() -> ModuleType:
    loader = SourceFileLoader("script_lock", str(ROOT / "script" / "lock"))
    spec = spec_from_loader("script_lock", loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules["script_lock"] = module
    loader.exec_module(module)
    return module


def test_every_lock_is_as_script_lock_writes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hand edit, or a changed recipe without a run of `script/lock`, is noticed here, without Maven."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    script = load_script()
    # Those of the measurements are elsewhere, and users do not get them.
    assert sorted(name for name, recipe in script.SETS.items() if recipe.folder == lock_folder()) == lock_names()
    for name, recipe in script.SETS.items():
        path = recipe.folder / f"{name}.lock"
        lock = read_lock_file(path)
        assert format_lock(lock, remarks=script.remarks(name, recipe)) == path.read_text(encoding="utf-8")
        roots = {":".join((artifact.group, artifact.name, artifact.version)) for artifact in lock.artifacts}
        roots |= {artifact.coordinates for artifact in lock.artifacts}
        assert set(recipe.roots) <= roots


def test_druid_and_its_extensions_are_one_version_and_share_no_jar() -> None:
    base = {artifact.name: artifact.version for artifact in read_lock("druid").artifacts}
    assert base["druid-services"] == base["druid-sql"] == "33.0.0"
    assert base["zookeeper"] == "3.8.4"
    assert {"derbynet", "log4j-core", "log4j-slf4j-impl"} <= set(base)
    assert "sigar" not in base
    for name, jar in (
        ("druid-kafka-indexing", "druid-kafka-indexing-service"),
        ("druid-datasketches", "druid-datasketches"),
    ):
        own = {artifact.name: artifact.version for artifact in read_lock(name).artifacts}
        assert own[jar] == "33.0.0"
        assert not set(own) & set(base)
    kafka = {artifact.name for artifact in read_lock("druid-kafka-indexing").artifacts}
    assert "kafka-clients" in kafka


def test_versions_that_must_go_together() -> None:
    """The broker and its tools are one version; Spark's connector has its own client, which never meets the broker's."""
    kafka = {artifact.name: artifact.version for artifact in read_lock("kafka").artifacts}
    tools = {artifact.name: artifact.version for artifact in read_lock("kafka-tools").artifacts}
    assert kafka["kafka_2.13"] == kafka["kafka-clients"] == tools["kafka-tools"] == "4.3.1"
    assert {"log4j-slf4j-impl", "log4j-core", "slf4j-api"} <= set(kafka)
    assert not set(kafka) & set(tools), "the tools come after the broker on one class path"
    connect = {artifact.name: artifact.version for artifact in read_lock("connect").artifacts}
    assert connect["connect-runtime"] == connect["connect-file"] == "4.3.1"
    assert not set(kafka) & set(connect), "Connect comes after the broker on one class path"
    assert {a.name: a.version for a in read_lock("spark-kafka").artifacts} == {
        "spark-sql-kafka-0-10_2.13": "4.2.0",
        "spark-token-provider-kafka-0-10_2.13": "4.0.0",
        "kafka-clients": "3.9.2",
        "commons-pool2": "2.13.1",
        "hadoop-bare-naked-local-fs": "0.1.0",
    }
