"""The file stays in bounds: rows by age and by size, dead space, identities, misfits."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from riverrun.config.spec import StoreSettings
from riverrun.errors import StoreUnavailableError
from riverrun.store.embedded import maintenance, schema
from riverrun.store.embedded.maintenance import StoreMaintenance
from riverrun.store.embedded.session import DuckDBSession
from riverrun.store.embedded.store_file import StoreFile
from riverrun.store.embedded.table_state import TableState, load_states
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


def update(file: StoreFile, rows: int) -> None:
    """So many rows of the table that is updated by key."""
    file.database.execute(
        "INSERT INTO _rows.loads SELECT now(), now(), md5(range::VARCHAR), random() FROM range($1)", [rows]
    )
    file.database.execute("CHECKPOINT")


def test_rows_older_than_the_retention_go(file: StoreFile) -> None:
    states = make(file.database, events(retention_ms=3600_000))
    fill(file, states["events"], 7200)
    StoreMaintenance(DuckDBSession(file.database), file, states, 0, print).delete_expired()
    found = file.database.execute("SELECT count(*), min(id) FROM events").fetchone()
    assert found is not None
    assert 3500 <= found[0] <= 3600
    assert states["events"].rows == found[0] == load_states(DuckDBSession(file.database))["events"].rows


def test_the_oldest_rows_of_append_tables_go_when_the_file_is_too_large(file: StoreFile) -> None:
    states = make(file.database, events(), loads())
    fill(file, states["events"], 600_000)
    file.database.execute("CHECKPOINT")
    said: list[str] = []
    work = StoreMaintenance(DuckDBSession(file.database), file, states, 8_000_000, said.append)
    assert file.size() > 8_000_000
    work.enforce_max_size()
    left = states["events"].rows
    assert 0 < left < 600_000
    assert file.database.execute("SELECT count(*), min(id) FROM events").fetchone() == (left, 600_000 - left)
    assert work._used_bytes() <= 8_000_000
    assert "oldest" in said[0]
    # What is free in the file is used again.
    before = file.size()
    fill(file, states["events"], 100_000)
    file.database.execute("CHECKPOINT")
    assert file.size() <= before * 1.1


def test_rows_that_a_question_still_sees_do_not_make_more_go(file: StoreFile) -> None:
    states = make(file.database, events())
    fill(file, states["events"], 600_000)
    file.database.execute("CHECKPOINT")
    work = StoreMaintenance(DuckDBSession(file.database), file, states, 8_000_000, print)
    question = file.database.cursor()
    question.execute("BEGIN TRANSACTION READ ONLY")
    assert question.execute("SELECT count(*) FROM events").fetchall() == [(600_000,)]
    for _ in range(5):
        work.enforce_max_size()
    assert states["events"].rows >= 400_000
    question.execute("COMMIT")
    work.enforce_max_size()
    assert work._used_bytes() <= 8_000_000


def test_the_log_stays_small_where_questions_overlap(file: StoreFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "CHECKPOINT_MB", 1)
    states = make(file.database, events())
    question = file.database.cursor()

    @contextlib.contextmanager
    def paused(_: float) -> Iterator[bool]:
        question.execute("COMMIT")
        yield True
        question.execute("BEGIN TRANSACTION READ ONLY; SELECT count(*) FROM events").fetchall()

    work = StoreMaintenance(DuckDBSession(file.database), file, states, 0, print, pause_queries=paused)
    question.execute("BEGIN TRANSACTION READ ONLY; SELECT count(*) FROM events").fetchall()
    sizes = []
    for _ in range(6):
        file.database.execute("DELETE FROM _rows.events").fetchall()
        fill(file, states["events"], 30_000)
        work._wal_due = 0
        work.checkpoint_wal()
        sizes.append(file.wal_size())
    assert max(sizes) < 3_000_000
    assert min(sizes) == 0


def test_a_full_store_of_updated_tables_says_so_once(file: StoreFile) -> None:
    states = make(file.database, loads())
    update(file, 200_000)
    said: list[str] = []
    work = StoreMaintenance(DuckDBSession(file.database), file, states, 1_000_000, said.append)
    work.enforce_max_size()
    work.enforce_max_size()
    assert len(said) == 1
    assert "store.max_size" in said[0]


def test_no_rows_go_for_tables_that_are_updated(file: StoreFile) -> None:
    states = make(file.database, loads(), events())
    update(file, 200_000)
    fill(file, states["events"], 10_000)
    said: list[str] = []
    work = StoreMaintenance(DuckDBSession(file.database), file, states, 1_000_000, said.append)
    work.enforce_max_size()
    fill(file, states["events"], 10_000)
    work.enforce_max_size()
    assert states["events"].rows == 20_000
    assert file.database.execute("SELECT count(*) FROM events").fetchone() == (20_000,)
    assert len(said) == 1
    assert "updated by key" in said[0]


def hidden(file: StoreFile, states: dict[str, TableState], rows: int) -> TableState:
    """What a replay of `events` has made so far."""
    made = TableState(events(name="events~2"), generation=2, replaces="events", rows=rows)
    for statement in schema.create_statements(made.spec):
        file.database.execute(statement)
    file.database.execute(
        'INSERT INTO _rows."events~2" SELECT range, to_timestamp(range), md5(range::VARCHAR) FROM range($1)', [rows]
    )
    file.database.execute("CHECKPOINT")
    states["events~2"] = made
    return made


def test_no_rows_go_for_a_replay_that_is_being_read(file: StoreFile) -> None:
    states = make(file.database, events(), events(name="others"))
    fill(file, states["events"], 200_000)
    file.database.execute("INSERT INTO _rows.others FROM _rows.events; CHECKPOINT")
    states["others"].rows = 200_000
    work = StoreMaintenance(DuckDBSession(file.database), file, states, 1, print)
    work._max_bytes = most = int(work._used_bytes() * 1.05)
    made = hidden(file, states, 200_000)
    assert work._used_bytes() > most
    work.enforce_max_size()
    assert [state.rows for state in states.values()] == [200_000] * 3
    # Alone it may take as much as all that is shown, and no more: it goes by its own oldest rows.
    said: list[str] = []
    work = StoreMaintenance(DuckDBSession(file.database), file, states, most, said.append)
    file.database.execute('INSERT INTO _rows."events~2" FROM _rows.events')
    file.database.execute('INSERT INTO _rows."events~2" FROM _rows.events; CHECKPOINT')
    made.rows = 600_000
    work.enforce_max_size()
    assert (states["events"].rows, states["others"].rows) == (200_000, 200_000)
    assert 200_000 < made.rows < 600_000
    assert said
    assert all("of the replay of events went" in words for words in said)


def test_a_table_that_nobody_sees_has_no_view_when_it_is_written_anew(file: StoreFile) -> None:
    states = make(file.database, events())
    StoreMaintenance(DuckDBSession(file.database), file, states, 0, print).rewrite(hidden(file, states, 10))
    assert file.database.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal").fetchall() == [("events",)]
    assert file.database.execute('SELECT count(*) FROM _rows."events~2"').fetchone() == (10,)


def test_few_large_rows_make_room_before_all_are_gone(file: StoreFile) -> None:
    """They are one group of rows, whose space DuckDB takes back only when none of it is left."""
    states = make(file.database, events())
    fill(file, states["events"], 50_000)
    file.database.execute("UPDATE _rows.events SET note = repeat(note, 10); CHECKPOINT; CHECKPOINT")
    work = StoreMaintenance(DuckDBSession(file.database), file, states, 1, print)
    work._max_bytes = int(work._used_bytes() * 0.85)
    work.enforce_max_size()
    assert work._used_bytes() <= work._max_bytes
    assert 30_000 <= states["events"].rows < 50_000


def test_no_more_go_when_those_that_went_made_no_room(file: StoreFile, monkeypatch: pytest.MonkeyPatch) -> None:
    states = make(file.database, events())
    fill(file, states["events"], 10_000)
    monkeypatch.setattr(StoreMaintenance, "_used_bytes", lambda _: 300_000)
    StoreMaintenance(DuckDBSession(file.database), file, states, 299_999, print).enforce_max_size()
    assert states["events"].rows == 9000


def test_a_table_that_is_mostly_dead_is_written_anew(file: StoreFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "_MIN_DEAD_ROWS", 1000)
    states = make(file.database, events())
    fill(file, states["events"], 300_000)
    work = StoreMaintenance(DuckDBSession(file.database), file, states, 0, print)
    file.database.execute("CHECKPOINT")
    # Every row group keeps some: so spread, DuckDB takes nothing back by itself at once.
    file.database.execute("DELETE FROM _rows.events WHERE id % 10 <> 0")
    states["events"].rows = 30_000
    work.reclaim_space()
    kept = file.database.execute(
        "SELECT sum(count) FROM pragma_storage_info('_rows.events') WHERE column_id = 0 AND segment_type <> 'VALIDITY'"
    ).fetchone()
    assert kept == (30_000,)
    assert file.database.execute("SELECT count(*), sum(id) FROM events").fetchone() == (30_000, 4_499_850_000)
    work.reclaim_space()
    assert states["events"].bytes > 0


def test_identities_are_kept_a_while(file: StoreFile, monkeypatch: pytest.MonkeyPatch) -> None:
    states = make(file.database, events())
    file.database.execute("INSERT INTO _seen.events SELECT range, range * 1000 FROM range(1000)")
    work = StoreMaintenance(DuckDBSession(file.database), file, states, 0, print)
    work.delete_expired()
    assert file.database.execute("SELECT count(*), min(sent) FROM _seen.events").fetchone() == (601, 399_000)
    monkeypatch.setattr(maintenance, "MAX_IDENTITIES", 100)
    work.delete_expired()
    found = file.database.execute("SELECT count(*), max(sent) FROM _seen.events").fetchone()
    assert found is not None
    assert 95 <= found[0] <= 105
    assert found[1] == 999_000


def test_the_last_misfits_are_kept(file: StoreFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "MAX_REJECTED_ROWS", 10)
    states = make(file.database, events())
    file.database.execute(
        "INSERT INTO _riverrun.rejected SELECT 'events', 'events', 0, range, 'no', ''::BLOB FROM range(100)"
    )
    StoreMaintenance(DuckDBSession(file.database), file, states, 0, print).delete_expired()
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
