"""A Postgres of one's own, real: it needs a password, keeps its data over a restart, and outlives nobody."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import psycopg
import pytest

from riverrun.cluster.postgres import LocalPostgres, data_folder_for
from riverrun.cluster.server import Deadline
from support.cluster import wait_for
from support.postgres import TestPostgres

STARTS = """
import sys, time
from pathlib import Path
from riverrun.cluster.postgres import LocalPostgres, data_folder_for
with LocalPostgres(data_folder_for(Path(sys.argv[1]))) as server:
    print(server.folder, flush=True)
    time.sleep(600)
"""


def servers_in(folder: Path) -> list[psutil.Process]:
    """The postmaster of a folder: the one that was started with it."""
    found = []
    for each in psutil.process_iter(["cmdline", "name"]):
        words = each.info["cmdline"] or []
        if each.info["name"] == "postgres" and str(folder / "data") in words:
            found.append(each)
    return found


def test_it_needs_a_password_and_keeps_its_data() -> None:
    with TestPostgres() as server:
        server.run("create table kept(n int)", "insert into kept values (7)")
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(LocalPostgres.url(server, "postgres"), connect_timeout=10)
        server.shut_down()
        assert servers_in(server.folder) == []
        server.start()
        server.ready(Deadline(60))
        assert server.run("select n from kept") == [(7,)]
        server.kill()
        server.start()
        server.ready(Deadline(60))
        assert server.run("select n from kept") == [(7,)]
    assert not server.folder.exists()


def test_it_begins_anew_where_one_was_killed_and_nobody_else_writes_where_its_log_is(tmp_path: Path) -> None:
    folder = data_folder_for(tmp_path / "postgres")
    try:
        left = LocalPostgres(folder)
        left.start()
        left.kill()
        with LocalPostgres(folder) as server, server.connect() as connection:
            assert connection.execute("select 1").fetchall() == [(1,)]
            owned = {path: path.stat() for path in (folder, server.log, folder / "data")}
            assert {owned[path].st_uid for path in (folder, server.log)} == {os.geteuid()}
            assert owned[folder].st_mode & 0o022 == 0
            assert owned[folder / "data"].st_mode & 0o777 == 0o700
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("killed", ["the program", "the guard"])
def test_it_ends_with_whoever_started_it(killed: str, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STARTS, str(tmp_path / "postgres")], stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        folder = Path(program.stdout.readline().strip())
        [server] = servers_in(folder)
        guard = server.parent()
        assert guard is not None
        try:
            (program if killed == "the program" else guard).kill()
            wait_for(lambda: not servers_in(folder), 60, "the server outlived it")
        finally:
            program.kill()
            shutil.rmtree(folder, ignore_errors=True)
