"""The files a node's storage begins with."""

import base64
import struct
from pathlib import Path

import pytest

from riverrun.cluster.kafka.storage import (
    FEATURES,
    bootstrap_checkpoint,
    check_storage,
    crc32c,
    format_storage,
    is_formatted,
    new_id,
)
from riverrun.cluster.properties import format_properties, parse_properties
from riverrun.errors import DataDirectoryError


def test_crc32c_has_the_published_check_value() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"") == 0


def test_ids_are_uuids_in_kafkas_writing() -> None:
    ids = {new_id() for _ in range(2000)}
    assert len(ids) == 2000
    for id_ in ids:
        assert len(id_) == 22
        assert not id_.startswith("-")
        raw = base64.urlsafe_b64decode(id_ + "==")
        assert (raw[6] >> 4, raw[8] >> 6) == (4, 2)


def test_a_checkpoint_is_three_batches_with_consecutive_offsets() -> None:
    content = bootstrap_checkpoint(FEATURES["4.3"], 1_700_000_000_000)
    found = []
    while content:
        offset, length = struct.unpack_from(">qi", content)
        batch, content = content[12 : 12 + length], content[12 + length :]
        assert struct.unpack_from(">ib", batch) == (0, 2)
        assert struct.unpack_from(">I", batch, 5) == (crc32c(batch[9:]),)
        attributes, last = struct.unpack_from(">hi", batch, 9)
        (count,) = struct.unpack_from(">i", batch, 9 + 36)
        found.append((offset, bool(attributes & 0x20), last + 1, count))
    assert found == [(0, True, 1, 1), (1, False, 6, 6), (7, True, 1, 1)]


def test_the_feature_levels_are_in_it_in_words() -> None:
    content = bootstrap_checkpoint({"group.version": 1, "transaction.version": 2}, 0)
    assert b"group.version\x00\x01\x00" in content
    assert b"transaction.version\x00\x02\x00" in content


def test_format_and_check(tmp_path: Path) -> None:
    folder = tmp_path / "broker-1"
    cluster = new_id()
    assert not is_formatted(folder)
    format_storage(folder, cluster, 1, FEATURES["4.3"])
    assert is_formatted(folder)
    meta = parse_properties((folder / "meta.properties").read_text())
    assert (meta["version"], meta["cluster.id"], meta["node.id"]) == ("1", cluster, "1")
    check_storage(folder, cluster, 1)
    with pytest.raises(DataDirectoryError, match="another cluster"):
        check_storage(folder, new_id(), 1)
    with pytest.raises(DataDirectoryError, match="another node"):
        check_storage(folder, cluster, 2)
    assert sorted(path.name for path in folder.iterdir()) == ["bootstrap.checkpoint", "meta.properties"]


@pytest.mark.parametrize(
    "values",
    [
        {"plain": "value"},
        {"empty": ""},
        {"path": "/a b/c=d:e#f!g\\h"},
        {"key with: =chars": " leading and trailing "},
        {"unicode": "é ☕ 𝄞", "lines": "a\nb\tc\r"},
    ],
)
def test_properties_survive_writing_and_reading(values: dict[str, str]) -> None:
    text = format_properties(values)
    assert text.isascii()
    assert len(text.splitlines()) == len(values)
    expected = {name: value.rstrip(" ") for name, value in values.items()}
    assert {name: value.rstrip(" ") for name, value in parse_properties(text).items()} == expected


def test_properties_as_kafka_writes_them() -> None:
    text = "#\n#Sun Nov 15 21:32:17 UTC 2026\nnode.id=1\n\ndirectory.id=kwTZVJL1XFGuLlGHF1JiXg\nversion : 1\n"
    assert parse_properties(text) == {"node.id": "1", "directory.id": "kwTZVJL1XFGuLlGHF1JiXg", "version": "1"}
