"""How long `riverrun --help` takes, beside a bare interpreter: python bench/cli_help.py [repeats]"""

import subprocess
import sys
from pathlib import Path

from measure import alternate, report, timed

RIVERRUN = Path(sys.executable).with_name("riverrun")


def run(*command: str) -> float:
    return timed(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    contenders = {
        "python -c pass": lambda: run(sys.executable, "-c", "pass"),
        "python -c 'import click'": lambda: run(sys.executable, "-c", "import click"),
        "riverrun --help": lambda: run(str(RIVERRUN), "--help"),
        "riverrun topics --help": lambda: run(str(RIVERRUN), "topics", "--help"),
    }
    report("Time to print help", alternate(contenders, repeats), "seconds", against="python -c pass")


if __name__ == "__main__":
    main()
