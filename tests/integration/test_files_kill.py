"""Files under kill -9: a log that is written and rotated, a folder that fills; every line there once, whatever is killed."""

import json
import os
import random
import secrets
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from riverrun.testing import KafkaUnderTest
from support.connecting import records_in, wait_until
from support.connector_child import Child

APP = """
import riverrun as rr

app = rr.App("{name}")
lines = app.topic("{name}.lines")
app.source(lines, rr.tail("app.log", settle_seconds=0.2))
rows = app.topic("{name}.rows")
app.source(rows, rr.folder("drop", "csv", stable_seconds=0))
"""


class Writer(threading.Thread):
    """Writes numbered lines without a pause worth mentioning, in halves; `paused` while the file is rotated."""

    def __init__(self, log: Path) -> None:
        super().__init__(daemon=True)
        self.log = log
        self.count = 0
        self.paused = threading.Lock()
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.002):
            with self.paused, self.log.open("ab") as file:
                for _ in range(5):
                    file.write(f"line {self.count}".encode())
                    file.flush()
                    file.write(b" is here\n")
                    self.count += 1


def rotate(log: Path, *, copy: bool, between: Any = None) -> None:
    for number in range(20, 0, -1):
        if (rotated := Path(f"{log}.{number}")).exists():
            rotated.rename(f"{log}.{number + 1}")
    if copy:
        shutil.copy(log, f"{log}.1")
    else:
        log.rename(f"{log}.1")
    if between is not None:
        between()
    if copy:
        os.truncate(log, 0)


@pytest.mark.parametrize("copy", [False, True], ids=["rename", "copytruncate"])
def test_no_line_is_missing_and_none_twice(kafka: KafkaUnderTest, tmp_path: Path, copy: bool) -> None:
    name = f"kill-{secrets.token_hex(4)}"
    (tmp_path / "app.py").write_text(APP.format(name=name))
    (tmp_path / "drop").mkdir()
    chance = random.Random(7 + copy)
    log = tmp_path / "app.log"
    log.touch()
    writer = Writer(log)
    child = Child(tmp_path, kafka.bootstrap_servers)
    writer.start()
    rows = 0

    def committed() -> int:
        return len(records_in(kafka.connection, f"{name}.lines"))

    def progress(what: str) -> None:
        before = committed()
        wait_until(lambda: committed() > before, what)

    try:
        for round_ in range(6):
            progress(f"progress in round {round_}")
            content = "".join(f"{n},row {n}\n" for n in range(rows, rows + 3000))
            (tmp_path / "ready.csv").write_text("n,text\n" + content)
            (tmp_path / "ready.csv").rename(tmp_path / "drop" / f"{round_}.csv")
            rows += 3000
            at_work = threading.Event()
            at_work.wait(chance.uniform(0.0, 0.6))  # any moment of its work
            with writer.paused:
                if round_ % 2:
                    rotate(log, copy=copy, between=child.kill)
                else:
                    rotate(log, copy=copy)
            if not round_ % 2:
                at_work.wait(chance.uniform(0.0, 0.3))
                child.kill()
            child.start()
        writer.over.set()
        writer.join()
        wait_until(lambda: committed() >= writer.count, "the last line", 120)
        wait_until(lambda: len(records_in(kafka.connection, f"{name}.rows")) >= rows, "the last row", 120)
    finally:
        writer.over.set()
        child.stop()
    lines = [json.loads(each.value() or b"")["line"] for each in records_in(kafka.connection, f"{name}.lines")]
    assert lines == [f"line {n} is here" for n in range(writer.count)]
    found = [json.loads(each.value() or b"") for each in records_in(kafka.connection, f"{name}.rows")]
    assert found == [{"n": str(n), "text": f"row {n}"} for n in range(rows)]
    assert child.kills == 6
    print(f"{writer.count} lines, {rows} rows, {child.kills} kills")
