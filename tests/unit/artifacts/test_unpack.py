"""Archives are unpacked whole, safely and once."""

import io
import tarfile
from pathlib import Path

import pytest

from riverrun.artifacts.unpack import CHECKSUMS_FILE, unpack_archive
from riverrun.errors import ArtifactCorruptError, CacheError


def archive(folder: Path, files: dict[str, bytes], *more: tarfile.TarInfo) -> Path:
    path = folder / "plugin-1.0-plugin.tar.gz"
    with tarfile.open(path, "w:gz") as made:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            made.addfile(info, io.BytesIO(content))
        for info in more:
            made.addfile(info)
    return path


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


GOOD = {"plugin/a.jar": b"a", "plugin/lib/b.jar": b"b", "plugin/ojdbc11.jar": b"other licence"}


def test_its_files_are_there_but_for_those_left_out(tmp_path: Path) -> None:
    found = unpack_archive(archive(tmp_path, GOOD), tmp_path / "plugins", excluded_prefixes=("ojdbc",))
    files = {each.relative_to(found).as_posix(): each.read_bytes() for each in found.rglob("*") if each.is_file()}
    assert set(files) == {"a.jar", "lib/b.jar", CHECKSUMS_FILE}
    assert found.name.startswith("plugin-1.0-plugin-")
    assert [each.name for each in (tmp_path / "plugins").iterdir()] == [found.name], "nothing half made is left"


def test_a_second_use_changes_nothing(tmp_path: Path) -> None:
    made = archive(tmp_path, GOOD)
    first = unpack_archive(made, tmp_path / "plugins")
    before = (first / "a.jar").stat().st_ino
    assert unpack_archive(made, tmp_path / "plugins") == first
    assert (first / "a.jar").stat().st_ino == before


def test_what_is_left_out_makes_another_folder(tmp_path: Path) -> None:
    made = archive(tmp_path, GOOD)
    assert unpack_archive(made, tmp_path / "plugins") != unpack_archive(
        made, tmp_path / "plugins", excluded_prefixes=("ojdbc",)
    )


@pytest.mark.parametrize("damage", ["changed", "gone", "sums"])
def test_a_folder_that_changed_is_made_again(tmp_path: Path, damage: str) -> None:
    made = archive(tmp_path, GOOD)
    folder = unpack_archive(made, tmp_path / "plugins")
    if damage == "changed":
        (folder / "a.jar").write_bytes(b"x")
    elif damage == "gone":
        (folder / "lib" / "b.jar").unlink()
    else:
        (folder / CHECKSUMS_FILE).unlink()
    assert unpack_archive(made, tmp_path / "plugins") == folder
    assert ((folder / "a.jar").read_bytes(), (folder / "lib" / "b.jar").read_bytes()) == (b"a", b"b")


@pytest.mark.parametrize(
    "member",
    [
        special("plugin/link", tarfile.SYMTYPE, "/etc/passwd"),
        special("plugin/hard", tarfile.LNKTYPE, "plugin/a.jar"),
        special("plugin/pipe", tarfile.FIFOTYPE),
        special("plugin/../../out.jar", tarfile.REGTYPE),
        special("/plugin/out.jar", tarfile.REGTYPE),
    ],
    ids=lambda info: info.name,
)
def test_what_is_no_plain_file_inside_is_refused(tmp_path: Path, member: tarfile.TarInfo) -> None:
    with pytest.raises(ArtifactCorruptError, match="no plain file inside"):
        unpack_archive(archive(tmp_path, GOOD, member), tmp_path / "plugins")
    assert list((tmp_path / "plugins").iterdir()) == []
    assert not (tmp_path / "out.jar").exists()


def test_an_archive_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    made = archive(tmp_path, {"plugin/a.jar": bytes(range(256)) * 400})
    made.write_bytes(made.read_bytes()[:-40])
    with pytest.raises(ArtifactCorruptError):
        unpack_archive(made, tmp_path / "plugins")
    assert list((tmp_path / "plugins").iterdir()) == []


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "plugins").write_text("a file is in the way")
    with pytest.raises(CacheError):
        unpack_archive(archive(tmp_path, GOOD), tmp_path / "plugins")
