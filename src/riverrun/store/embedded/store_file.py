"""The store's file: owned by one process, opened with limits on memory, disk and what SQL may reach."""

import os
from pathlib import Path

import duckdb

from riverrun.cluster.lock import lock_pid
from riverrun.config.run_state import acquire_lock
from riverrun.config.spec import StoreSettings
from riverrun.errors import StoreError, StoreUnavailableError

FILE_NAME = "tables.duckdb"
_LOCK_NAME = "tables.lock"
_SPILL_FOLDER = "spill"
_MEBIBYTE = 1 << 20
# The share of the machine's memory, where the settings name none.
_MEMORY_DIVISOR, _MAX_MEMORY_MB, _MIN_MEMORY_MB = 4, 4096, 256
# What queries may spill to disk, as a multiple of their memory.
_SPILL_FACTOR = 4
# A commit goes to the write-ahead log, which is checkpointed into the file at this size.
CHECKPOINT_MB = 64
# A process that tests the lock holds it for an instant.
_LOCK_SECONDS = 1.0
# Features of DuckDB that are not needed here: files, the net, other databases, Python's own variables, extensions.
_RESTRICTIONS = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",
}


class StoreFile:
    """The file in `folder` and the lock beside it. `database` is the connection that others are cloned from."""

    def __init__(self, folder: Path, settings: StoreSettings) -> None:
        self.folder = folder
        self.path = folder / FILE_NAME
        self.memory_mb = settings.memory_mb or default_memory_mb()
        self._lock = -1
        self._database: duckdb.DuckDBPyConnection | None = None

    @property
    def database(self) -> duckdb.DuckDBPyConnection:
        if self._database is None:
            raise StoreUnavailableError("The store is not open", hint="Open it: with EmbeddedStore(…) as store")
        return self._database

    def open(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._take_lock()
        spill = self.folder / _SPILL_FOLDER
        spill.mkdir(exist_ok=True)
        config: dict[str, str | bool | int | float | list[str]] = {
            "memory_limit": f"{self.memory_mb}MiB",
            "temp_directory": str(spill),
            "max_temp_directory_size": f"{self.memory_mb * _SPILL_FACTOR}MiB",
            "checkpoint_threshold": f"{CHECKPOINT_MB}MiB",
            **_RESTRICTIONS,
        }
        try:
            database = duckdb.connect(str(self.path), config=config)
        except duckdb.Error as error:
            raise StoreError(
                f"The store's file {self.path} cannot be opened",
                found=str(error).splitlines()[0],
                hint="Written by a newer DuckDB? Install that one. Else move the file away: the tables are read anew "
                "from their topics, as far back as these go",
                path=str(self.path),
            ) from error
        self._database = database
        # Not among the settings above: there DuckDB would look for its own ICU before it is loaded.
        database.execute("SET GLOBAL TimeZone = 'UTC'")
        # Nor this, which would keep DuckDB from its own spill folder.
        database.execute("SET enable_external_access = false")
        database.execute("SET lock_configuration = true")

    def _take_lock(self) -> None:
        path = self.folder / _LOCK_NAME
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

        def taken() -> StoreUnavailableError:
            pid = lock_pid(path)
            return StoreUnavailableError(
                f"The store {self.folder} belongs to another process",
                found=f"pid {pid}" if pid else "",
                hint=f"Ask that one (riverrun query), or end it first{f': kill {pid}' if pid else ''}",
                pid=pid,
            )

        try:
            acquire_lock(descriptor, _LOCK_SECONDS, taken)
        except BaseException:
            os.close(descriptor)
            raise
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
        self._lock = descriptor

    def size(self) -> int:
        """Bytes on disk, including the write-ahead log."""
        return sum(
            path.stat().st_size for path in (self.path, self.path.with_name(f"{FILE_NAME}.wal")) if path.exists()
        )

    def wal_size(self) -> int:
        """Bytes of the write-ahead log."""
        wal = self.path.with_name(f"{FILE_NAME}.wal")
        return wal.stat().st_size if wal.exists() else 0

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def default_memory_mb() -> int:
    """A quarter of the machine's memory, within bounds."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // _MEBIBYTE
    return max(_MIN_MEMORY_MB, min(machine // _MEMORY_DIVISOR, _MAX_MEMORY_MB))
