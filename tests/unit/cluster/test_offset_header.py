"""The class that gives Druid a record's offset: its bytes. test_druid_store.py shows that it works."""

import struct
import zipfile
from pathlib import Path

import pytest

from riverrun.cluster.druid.offset_header import CLASS, HEADER, SHIFT, class_file, offset_header_jar
from riverrun.errors import CacheError
from riverrun.store.druid.spec import INTERCEPTOR, POSITION_HEADER, POSITION_SHIFT


def test_it_is_a_class_that_java_5_and_later_load() -> None:
    magic, minor, major = struct.unpack(">IHH", class_file()[:8])
    assert (magic, minor, major) == (0xCAFEBABE, 0, 49)


def test_the_store_and_the_class_mean_the_same() -> None:
    assert CLASS.replace("/", ".") == INTERCEPTOR
    assert (HEADER, SHIFT) == (POSITION_HEADER, POSITION_SHIFT)


def test_the_jar_is_made_once_and_always_the_same(tmp_path: Path) -> None:
    first = offset_header_jar(tmp_path / "a")
    assert zipfile.ZipFile(first).read(f"{CLASS}.class") == class_file()
    made = first.stat().st_mtime_ns
    assert offset_header_jar(tmp_path / "a").stat().st_mtime_ns == made
    assert offset_header_jar(tmp_path / "b").read_bytes() == first.read_bytes()
    assert [each.name for each in (tmp_path / "a").iterdir()] == [first.name]


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match="could not be written"):
        offset_header_jar(tmp_path / "file" / "x")
