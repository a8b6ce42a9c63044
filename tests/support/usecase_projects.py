"""The tests that ship with every use case, run as a user runs them: in a project that `riverrun new` made.

`script/test-usecases` is the command. It takes some minutes a use case; tests/integration/test_usecases.py has the figures
of each on a real broker, and tests/e2e/test_tutorial.py one of these projects.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from riverrun.cli.main import run
from riverrun.demo.use_cases import use_cases

SECONDS = 1500


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which (default: {', '.join(use_cases())})")
    failed = [name for name in parser.parse_args().names or use_cases() if not passes(name)]
    print(f"failed: {', '.join(failed)}" if failed else "All passed.")
    return 1 if failed else 0


def passes(name: str) -> bool:
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="riverrun-usecase-") as folder:
        project = Path(folder) / "mine"
        if run(["new", str(project), "--from", name]) != 0:
            return False
        command = [sys.executable, "-m", "riverrun", "test", "-q"]
        done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode != 0:
        print(done.stdout[-4000:] + done.stderr[-2000:])
    last = (done.stdout.strip().splitlines() or ["it said nothing"])[-1]
    print(f"{name}: {last} ({time.monotonic() - begun:.0f} s in all)", flush=True)
    return done.returncode == 0


if __name__ == "__main__":
    raise SystemExit(main())
