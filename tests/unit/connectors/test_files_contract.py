"""Files and folders keep the contract of sources."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import riverrun as rr
from riverrun.config import KafkaSettings
from riverrun.connectors.contract import ConnectorContext
from riverrun.connectors.files.folder import FolderSource
from riverrun.connectors.files.tail import TailSource
from riverrun.kafka.connection import Connection
from riverrun.testing import SourceSuite


def around(folder: Path) -> ConnectorContext:
    return ConnectorContext(rr.App("files"), Connection(KafkaSettings(bootstrap_servers="127.0.0.1:1")), folder, folder)


class TestTail(SourceSuite):
    def make(self, folder: Path) -> rr.Source:
        log = folder / "app.log"
        if not log.exists():
            log.write_text("".join(f"line {n} {'x' * 600}\n" for n in range(3000)))
        return TailSource(rr.tail("app.log"), around(folder))

    def expected(self) -> Sequence[Any]:
        return [{"line": f"line {n} {'x' * 600}"} for n in range(3000)]


class TestTailOfSeveral(SourceSuite):
    """Each file that matches is a part; one of them was rotated."""

    def make(self, folder: Path) -> rr.Source:
        for name in ("a.log", "b.log"):
            if not (folder / name).exists():
                (folder / name).write_text(f"{name} 1\r\n\n{name} 2\n")
        return TailSource(rr.tail("*.log"), around(folder))

    def expected(self) -> Sequence[Any]:
        return [{"line": f"{name} {n}"} for name in ("a.log", "b.log") for n in (1, 2)]


class TestFolderOfCsv(SourceSuite):
    def make(self, folder: Path) -> rr.Source:
        drop = folder / "drop"
        if not drop.exists():
            drop.mkdir()
            (drop / "1.csv").write_text("id,note\n" + "".join(f'{n},"a\nb"\n' for n in range(5000)))
            (drop / "2.csv").write_text("id,note\n5000,c")
            (drop / ".hidden.csv").write_text("id,note\n1,x\n")
            (drop / "3.csv.tmp").write_text("id,note\n1,x\n")
        return FolderSource(rr.folder("drop", "csv", stable_seconds=0), around(folder))

    def expected(self) -> Sequence[Any]:
        return [{"id": str(n), "note": "a\nb"} for n in range(5000)] + [{"id": "5000", "note": "c"}]


class TestFolderOfJson(SourceSuite):
    def make(self, folder: Path) -> rr.Source:
        drop = folder / "drop"
        if not drop.exists():
            drop.mkdir()
            (drop / "1.jsonl").write_text("".join(f'{{"n": {n}, "s": "{"y" * 500}"}}\n' for n in range(2000)))
        return FolderSource(rr.folder("drop", "json", stable_seconds=0), around(folder))

    def expected(self) -> Sequence[Any]:
        return [{"n": n, "s": "y" * 500} for n in range(2000)]


class TestFolderOfParquet(SourceSuite):
    def make(self, folder: Path) -> rr.Source:
        drop = folder / "drop"
        if not drop.exists():
            drop.mkdir()
            rows = pa.table({"n": list(range(7000))})
            pq.write_table(rows, drop / "1.parquet", row_group_size=3000)
        return FolderSource(rr.folder("drop", "parquet", stable_seconds=0), around(folder))

    def expected(self) -> Sequence[Any]:
        return [{"n": n} for n in range(7000)]
