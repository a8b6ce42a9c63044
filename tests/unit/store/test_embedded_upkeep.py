"""The file stays in bounds: rows by age and by size, dead space, identities, misfits."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from riverrun.config.spec import StoreSettings
from riverrun.errors import StoreUnavailableError
from riverrun.store.embedded import upkeep
from riverrun.store.embedded.file import StoreFile
from riverrun.store.embedded.session import Session
from riverrun.store.embedded.state import TableState, load
from riverrun.store.embedded.upkeep import Upkeep
from support.storing import events, loads, make


@pytest.fixture
def file(tmp_path: Path) -> Iterator[StoreFile]:
    found = StoreFile(tmp_path, StoreSettings(memory_mb=256))
    found.open()
    yield found
    found.close()


def fill(file: StoreFile, state: TableState, rows: int, *, ending: float = 0.0) -> None:
    """So many rows, one a second, the last of them at `ending`."""
    ending = ending or time.time()
    file.database.execute(
        "INSERT INTO _rows.events SELECT range, to_timestamp($1 + range), md5(range::VARCHAR) FROM range($2)",
        [ending - rows, rows],
    )
    state.rows += rows


def test_rows_older_than_the_retention_go(file: StoreFile) -> None:
    states = make(file.database, events(retention_ms=3600_000))
    fill(file, states["events"], 7200)
    Upkeep(Session(file.database), file, states, 0, print).bound_age()
    found = file.database.execute("SELECT count(*), min(id) FROM events").fetchone()
    assert found is not None
    assert 3500 <= found[0] <= 3600
    assert states["events"].rows == found[0] == load(Session(file.database))["events"].rows


def test_the_oldest_rows_of_append_tables_go_when_the_file_is_too_large(file: StoreFile) -> None:
    states = make(file.database, events(), loads())
    fill(file, states["events"], 600_000)
    file.database.execute("CHECKPOINT")
    said: list[str] = []
    work = Upkeep(Session(file.database), file, states, 8_000_000, said.append)
    assert file.size() > 8_000_000
    work.bound_size()
    left = states["events"].rows
    assert 0 < left < 600_000
    assert file.database.execute("SELECT count(*), min(id) FROM events").fetchone() == (left, 600_000 - left)
    assert work._used() <= 8_000_000
    assert "oldest" in said[0]
    # What is free in the file is used again.
    before = file.size()
    fill(file, states["events"], 100_000)
    file.database.execute("CHECKPOINT")
    assert file.size() <= before * 1.1


def test_a_full_store_of_updated_tables_says_so_once(file: StoreFile) -> None:
    states = make(file.database, loads())
    file.database.execute(
        "INSERT INTO _rows.loads SELECT now(), now(), md5(range::VARCHAR), random() FROM range(200000); CHECKPOINT"
    )
    said: list[str] = []
    work = Upkeep(Session(file.database), file, states, 1_000_000, said.append)
    work.bound_size()
    work.bound_size()
    assert len(said) == 1
    assert "store.max_size" in said[0]


def test_a_table_that_is_mostly_dead_is_written_anew(file: StoreFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "_DEAD_LEAST", 1000)
    states = make(file.database, events())
    fill(file, states["events"], 300_000)
    work = Upkeep(Session(file.database), file, states, 0, print)
    file.database.execute("CHECKPOINT")
    # Every row group keeps some: so spread, DuckDB takes nothing back by itself at once.
    file.database.execute("DELETE FROM _rows.events WHERE id % 10 <> 0")
    states["events"].rows = 30_000
    work.bound_dead()
    kept = file.database.execute(
        "SELECT sum(count) FROM pragma_storage_info('_rows.events') WHERE column_id = 0 AND segment_type <> 'VALIDITY'"
    ).fetchone()
    assert kept == (30_000,)
    assert file.database.execute("SELECT count(*), sum(id) FROM events").fetchone() == (30_000, 4_499_850_000)
    work.bound_dead()
    assert states["events"].bytes > 0


def test_identities_are_kept_a_while(file: StoreFile, monkeypatch: pytest.MonkeyPatch) -> None:
    states = make(file.database, events())
    file.database.execute("INSERT INTO _seen.events SELECT range, range * 1000 FROM range(1000)")
    work = Upkeep(Session(file.database), file, states, 0, print)
    work.bound_age()
    assert file.database.execute("SELECT count(*), min(sent) FROM _seen.events").fetchone() == (601, 399_000)
    monkeypatch.setattr(upkeep, "SEEN_ROWS", 100)
    work.bound_age()
    found = file.database.execute("SELECT count(*), max(sent) FROM _seen.events").fetchone()
    assert found is not None
    assert 95 <= found[0] <= 105
    assert found[1] == 999_000


def test_the_last_misfits_are_kept(file: StoreFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "MISFITS", 10)
    states = make(file.database, events())
    file.database.execute(
        "INSERT INTO _riverrun.rejected SELECT 'events', 'events', 0, range, 'no', ''::BLOB FROM range(100)"
    )
    Upkeep(Session(file.database), file, states, 0, print).bound_age()
    assert file.database.execute('SELECT count(*), min("offset") FROM _riverrun.rejected').fetchone() == (10, 90)


def test_one_process_owns_the_file(file: StoreFile, tmp_path: Path) -> None:
    second = StoreFile(tmp_path, StoreSettings())
    with pytest.raises(StoreUnavailableError, match="another process") as caught:
        second.open()
    assert caught.value.fields["pid"] > 0
    second.close()
    file.close()
    second.open()
    second.close()
