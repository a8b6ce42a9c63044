"""No server outlives its parent: the guard, with small programs in the place of servers."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from riverrun.cluster.process import GUARD, GuardedProcess
from riverrun.cluster.server import Deadline
from support.cluster import lives, wait_for

# Ends cleanly, with code 5, when it is asked to.
POLITE = "import signal,sys,time; signal.signal(15, lambda *_: sys.exit(5)); print('up', flush=True); time.sleep(60)"
# Does not react to being asked.
STUBBORN = "import signal,time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"


def python(code: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", code]


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "child.out"


def guarded(command: Sequence[str], output: Path, *, keep_fd: int = -1, niceness: int = 0) -> GuardedProcess:
    return GuardedProcess(command, cwd=output.parent, output=output, keep_fd=keep_fd, niceness=niceness)


@pytest.fixture
def polite(output: Path) -> Iterator[GuardedProcess]:
    process = guarded(python(POLITE), output)
    process.start()
    wait_for(lambda: "up" in output.read_text(), 10, "it did not start")
    yield process
    process.kill()


def test_the_child_runs_and_its_pid_is_its_own(polite: GuardedProcess) -> None:
    assert polite.alive
    assert polite.exit_code is None
    assert lives(polite.pid)
    assert Path(f"/proc/{polite.pid}/cmdline").read_bytes().split(b"\0")[0] == sys.executable.encode()


def test_the_child_is_out_of_reach_of_our_terminal(polite: GuardedProcess) -> None:
    assert os.getsid(polite.pid) != os.getsid(0)


def test_stop_asks_first(polite: GuardedProcess) -> None:
    assert polite.stop(Deadline(10))
    assert polite.exit_code == 5
    assert not lives(polite.pid)


def test_stop_kills_what_does_not_react(output: Path) -> None:
    process = guarded(python(STUBBORN), output)
    process.start()
    wait_for(lambda: "up" in output.read_text(), 10, "it did not start")
    assert not process.stop(Deadline(0.2))
    assert process.exit_code == 128 + signal.SIGKILL
    assert not lives(process.pid)


def test_kill_is_a_kill(polite: GuardedProcess) -> None:
    polite.kill()
    assert polite.exit_code == 128 + signal.SIGKILL


def test_a_child_whose_guard_is_killed_dies(polite: GuardedProcess) -> None:
    assert polite._guard is not None
    polite._guard.kill()
    wait_for(lambda: not lives(polite.pid), 5, "it outlived its guard")
    assert polite.exit_code == 128 + signal.SIGKILL


@pytest.mark.parametrize("code", [0, 1, 3, 127])
def test_the_exit_code_is_the_childs(output: Path, code: int) -> None:
    process = guarded(python(f"raise SystemExit({code})"), output)
    process.start()
    assert process.wait(10)
    assert process.exit_code == code
    assert process.lived_seconds < 10


def test_a_program_that_is_not_there(output: Path) -> None:
    process = guarded(["/no/such/java"], output)
    process.start()
    assert process.wait(10)
    assert process.exit_code == 127
    assert "cannot run /no/such/java: No such file or directory" in output.read_text()


def test_output_of_an_earlier_child_is_kept_and_told_apart(output: Path) -> None:
    output.write_text("earlier\n")
    process = guarded(python("print('now')"), output)
    process.start()
    process.wait(10)
    assert output.read_text() == "earlier\nnow\n"
    assert output.read_bytes()[process.output_start :] == b"now\n"


def test_a_kept_descriptor_is_open_in_the_child_and_only_there(output: Path, tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    process = guarded(python(f"import os; os.fstat({descriptor}); print(sorted(os.listdir('/proc/self/fd')))"), output,
                      keep_fd=descriptor)  # fmt: skip
    process.start()
    os.close(descriptor)
    process.wait(10)
    assert process.exit_code == 0
    # Standard streams, the descriptor, and the one that lists the folder.
    assert len(output.read_text().split(",")) == 5


def test_niceness(output: Path) -> None:
    process = guarded(python("import os; print(os.nice(0))"), output, niceness=7)
    process.start()
    process.wait(10)
    assert output.read_text() == f"{min(os.nice(0) + 7, 19)}\n"


def test_niceness_counts_beside_other_sessions(output: Path) -> None:
    own = Path("/proc/self/autogroup")
    # A kernel without such groups compares single processes: there is nothing to say to it.
    expected = "nice 7" if own.exists() else "none"
    code = f"import os; print(open({str(own)!r}).read() if os.path.exists({str(own)!r}) else 'none')"
    process = guarded(python(code), output, niceness=7)
    process.start()
    process.wait(10)
    assert output.read_text().strip().endswith(expected)


PARENT = """
import sys
from pathlib import Path
from riverrun.cluster.process import GuardedProcess
child = GuardedProcess([sys.executable, "-I", "-S", "-c", {code!r}], cwd=Path({folder!r}), output=Path({output!r}))
child.start()
print(child.pid, flush=True)
sys.stdin.read()
"""


def test_a_child_is_asked_to_stop_when_its_parent_is_killed(output: Path) -> None:
    code = POLITE.replace("sys.exit(5)", "(print('asked', flush=True), sys.exit(5))")
    script = PARENT.format(code=code, folder=str(output.parent), output=str(output))
    parent = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    wait_for(lambda: "up" in output.read_text(), 10, "it did not start")
    parent.kill()
    parent.communicate()
    wait_for(lambda: not lives(pid), 5, "it outlived its parent")
    assert "asked" in output.read_text()


SHORT = """
import os, subprocess, sys
arguments = [str(os.getpid()), {delay!r}, {grace!r}, "0", "-1", "-1"]
guard = subprocess.Popen([sys.executable, "-I", "-S", {guard!r}, *arguments, *{command!r}])
print(guard.pid, flush=True)
sys.stdin.read()
"""


def orphaned(code: str, *, delay: float, grace: float) -> "subprocess.Popen[str]":
    """Start `code` under a guard of a parent that is killed once the code has said that it is up. Gives what is left."""
    script = SHORT.format(delay=str(delay), grace=str(grace), guard=str(GUARD), command=python(code))
    parent = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    lines = {parent.stdout.readline().strip(), parent.stdout.readline().strip()}
    assert "up" in lines
    parent.kill()
    parent.wait()
    return parent


def test_an_orphan_that_does_not_react_is_killed() -> None:
    with orphaned(STUBBORN, delay=0, grace=0.3) as parent:
        assert parent.stdout is not None
        # Its end of the pipe is closed when it is gone.
        assert parent.stdout.read() == ""


def test_an_orphan_gets_its_delay() -> None:
    code = "import time; print('up', flush=True); time.sleep(2); print('done', flush=True)"
    with orphaned(code, delay=20, grace=20) as parent:
        assert parent.stdout is not None
        assert parent.stdout.read() == "done\n"
