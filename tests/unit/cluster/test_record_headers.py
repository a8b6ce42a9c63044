"""The classes that give Druid a record's offset and identity: their bytes. test_druid_store.py shows that they work."""

import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from riverrun.cluster.druid import record_headers
from riverrun.cluster.druid.record_headers import identity_class, offset_class, record_headers_jar
from riverrun.errors import CacheError
from riverrun.store.druid import supervisor_spec
from riverrun.streams.run.row_identity import IDENTITY_HEADER as WRITERS_HEADER


@pytest.mark.parametrize("made", [offset_class, identity_class])
def test_it_is_a_class_that_java_5_and_later_load(made: Callable[[], bytes]) -> None:
    magic, minor, major = struct.unpack(">IHH", made()[:8])
    assert (magic, minor, major) == (0xCAFEBABE, 0, 49)


def test_the_store_and_the_class_mean_the_same() -> None:
    named = [each.replace("/", ".") for each in (record_headers.OFFSET_CLASS, record_headers.IDENTITY_CLASS)]
    assert named == [supervisor_spec.OFFSET_INTERCEPTOR, supervisor_spec.IDENTITY_INTERCEPTOR]
    assert supervisor_spec.HEADER_PREFIX + record_headers.OFFSET_HEADER == supervisor_spec.VERSION
    assert supervisor_spec.HEADER_PREFIX + record_headers.IDENTITY_HEADER == supervisor_spec.IDENTITY
    assert record_headers.WRITERS_HEADER == WRITERS_HEADER


def test_the_jar_is_made_once_and_always_the_same(tmp_path: Path) -> None:
    first = record_headers_jar(tmp_path / "a")
    with zipfile.ZipFile(first) as jar:
        assert jar.read("riverrun/OffsetHeader.class") == offset_class()
        assert jar.read("riverrun/IdentityHeader.class") == identity_class()
    made = first.stat().st_mtime_ns
    assert record_headers_jar(tmp_path / "a").stat().st_mtime_ns == made
    assert record_headers_jar(tmp_path / "b").read_bytes() == first.read_bytes()
    assert [each.name for each in (tmp_path / "a").iterdir()] == [first.name]


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match="could not be written"):
        record_headers_jar(tmp_path / "file" / "x")
