"""The messages the gateway accepted, in SQLite: it survives a kill, and tests read here what reached a phone, how often."""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from riverrun.errors import UsageError

_TABLES = """
create table if not exists messages (
    number integer primary key,
    message_id text not null unique,
    bulk_id text not null,
    sender text not null,
    receiver text not null,
    text text not null,
    parts integer not null,
    entity text not null,
    template text not null,
    taken_at integer not null,
    done_at integer not null default 0,
    status text not null,
    expires integer not null default 0,
    callback_url text not null,
    callback_data text not null,
    callback_tries integer not null default 0,
    callback_at integer not null default 0,
    pulled integer not null default 0,
    change integer not null
);
create index if not exists changes on messages (change);
create index if not exists callbacks on messages (callback_at) where callback_at > 0;
create index if not exists pending on messages (number) where status = 'PENDING_ACCEPTED';
create table if not exists requests (
    number integer primary key,
    at integer not null,
    message_id text not null,
    outcome text not null
);
"""
_COLUMNS = (
    "number, message_id, bulk_id, sender, receiver, text, parts, entity, template, taken_at, done_at, status, expires, "
    "callback_url, callback_data, callback_tries, change"
)
VERSION = 1


@dataclass(frozen=True)
class AcceptedMessage:
    """A message in the store. Times are Unix milliseconds; `change` grows with every change of any message."""

    number: int
    message_id: str
    bulk_id: str
    sender: str
    receiver: str
    text: str
    parts: int
    entity: str
    template: str
    accepted_at: int
    done_at: int
    status: str
    expires: int
    callback_url: str
    callback_data: str
    callback_tries: int
    change: int


@dataclass(frozen=True)
class NewMessage:
    message_id: str
    bulk_id: str
    sender: str
    receiver: str
    text: str
    parts: int
    status: str
    entity: str = ""
    template: str = ""
    expires: int = 0
    callback_url: str = ""
    callback_data: str = ""


class MessageStore:
    """The store of one gateway: one file, one writer. ":memory:" is not persistent."""

    def __init__(self, path: Path | str) -> None:
        self._lock = threading.Lock()
        try:
            self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            self._db.execute("pragma journal_mode = wal")
            self._db.execute("pragma synchronous = normal")
            version = self._db.execute("pragma user_version").fetchone()[0]
            if version not in {0, VERSION}:
                raise UsageError(
                    f"{path} is of another version of the gateway", expected=str(VERSION), found=str(version)
                )
            self._db.executescript(_TABLES)
            self._db.execute(f"pragma user_version = {VERSION}")
            self._change = self._db.execute("select coalesce(max(change), 0) from messages").fetchone()[0]
        except sqlite3.Error as error:
            raise UsageError(f"{path} cannot be used as the gateway's file: {error}") from error

    def close(self) -> None:
        with self._lock:
            self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._db.execute("begin immediate")
            try:
                yield self._db
            except BaseException:
                self._db.execute("rollback")
                raise
            self._db.execute("commit")

    # --- writing ---

    def add(self, new: NewMessage, at: int) -> bool:
        """Add a message; false when its id is in the store already."""
        with self._transaction() as db:
            added = db.execute(
                "insert into messages (message_id, bulk_id, sender, receiver, text, parts, entity, template, taken_at,"
                " status, expires, callback_url, callback_data, change) values (?,?,?,?,?,?,?,?,?,?,?,?,?,?)"
                " on conflict (message_id) do nothing",
                (new.message_id, new.bulk_id, new.sender, new.receiver, new.text, new.parts, new.entity, new.template, at,
                 new.status, new.expires, new.callback_url, new.callback_data, self._change + 1),
            )  # fmt: skip
            accepted = added.rowcount == 1
            self._change += accepted
            outcome = "duplicate" if not accepted else "taken" if new.status.startswith("PENDING") else new.status
            db.execute("insert into requests (at, message_id, outcome) values (?,?,?)", (at, new.message_id, outcome))
        return accepted

    def log_request(self, message_id: str, outcome: str, at: int) -> None:
        """Log a request that added no message."""
        with self._transaction() as db:
            db.execute("insert into requests (at, message_id, outcome) values (?,?,?)", (at, message_id, outcome))

    def complete(self, number: int, status: str, at: int) -> None:
        """Set the final status of a message. From here on its callback is due, if it has one."""
        with self._transaction() as db:
            self._change += 1
            db.execute(
                "update messages set status = ?, done_at = ?, change = ?, callback_at = iif(callback_url = '', 0, ?)"
                " where number = ?",
                (status, at, self._change, at, number),
            )

    def record_callback(self, number: int, retry_at: int) -> None:
        """Count an attempt of a callback; `retry_at` is when to try again, 0: never."""
        with self._transaction() as db:
            db.execute(
                "update messages set callback_tries = callback_tries + 1, callback_at = ? where number = ?",
                (retry_at, number),
            )

    def pull_reports(self, message_id: str, limit: int) -> list[AcceptedMessage]:
        """Messages that are completed and were not pulled before."""
        with self._transaction() as db:
            rows = db.execute(
                f"select {_COLUMNS} from messages where done_at > 0 and pulled = 0 and ? in ('', message_id)"  # noqa: S608
                " order by number limit ?",
                (message_id, limit),
            ).fetchall()
            db.executemany("update messages set pulled = 1 where number = ?", [(row[0],) for row in rows])
        return [AcceptedMessage(*row) for row in rows]

    # --- reading ---

    def find(self, message_ids: list[str], limit: int) -> list[AcceptedMessage]:
        """The newest messages, or those of these ids."""
        marks = ",".join("?" * len(message_ids))
        where = f"where message_id in ({marks}) " if message_ids else ""
        return self._read(f"{where}order by number desc limit ?", *message_ids, limit)

    def changed_since(self, change: int, limit: int = 200) -> list[AcceptedMessage]:
        """Messages that phones show and that changed after `change`, oldest first."""
        return self._read("where change > ? and status not like 'REJECTED%' order by change limit ?", change, limit)

    def newest(self, limit: int) -> list[AcceptedMessage]:
        messages = self._read("where status not like 'REJECTED%' order by number desc limit ?", limit)
        return sorted(messages, key=lambda message: message.change)

    def pending(self, before: int, limit: int = 500) -> list[AcceptedMessage]:
        return self._read(
            "where status = 'PENDING_ACCEPTED' and taken_at <= ? order by number limit ?", before, limit
        )  # fmt: skip

    def due_callbacks(self, now: int, limit: int = 100) -> list[AcceptedMessage]:
        return self._read("where callback_at > 0 and callback_at <= ? order by callback_at limit ?", now, limit)

    def requests(self) -> list[tuple[str, str]]:
        """Every request so far: the message's id and the outcome."""
        with self._lock:
            return self._db.execute("select message_id, outcome from requests order by number").fetchall()

    def _read(self, rest: str, *parameters: object) -> list[AcceptedMessage]:
        with self._lock:
            # `rest` is one of the texts above; values from outside are in `parameters`.
            rows = self._db.execute(f"select {_COLUMNS} from messages {rest}", parameters).fetchall()  # noqa: S608
        return [AcceptedMessage(*row) for row in rows]
