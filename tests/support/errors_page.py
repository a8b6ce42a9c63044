"""docs/reference/errors.md: one table of mistakes without streams and one of mistakes with them, a row for each case."""

import re
from pathlib import Path

from support import bad_inputs, bad_registry, bad_streams
from support.bad_inputs import Case

# It adds its cases to those of bad_inputs.
assert bad_registry.APP
PAGE = Path(__file__).parents[2] / "docs/reference/errors.md"
_TABLE = """
| what you did | what it says |
| --- | --- |
"""
HEADER = f"""# What each mistake says

Each row was made for real by `tests/integration/test_bad_inputs.py` and `test_bad_streams.py`, which compare what they got
with this page; `script/docs` writes it. What differs from run to run stands as a word in capitals (`PROJECT`, `HOST:PORT`).
The first word of a message is its stable code; the exit code is 2 where the command or configuration was wrong, 1
where it failed.
{_TABLE}"""
STREAMS = f"""
## Streams

`riverrun validate FILE` finds all of these that do not need a record to be found, without a broker.
{_TABLE}"""


def row(case: Case, message: str) -> str:
    shown = "<br>".join(
        f"`{line.strip()}`" for line in message.replace("`", "'").replace("|", "\\|").splitlines() if line
    )
    return f"| {case.heading} | {shown} |"


def rows_of_page() -> dict[str, str]:
    text = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    return {found[1].strip(): line for line in text.splitlines() if (found := re.match(r"\| (.+?) \| `", line))}


def headings() -> list[str]:
    """Of all cases, in the page's order."""
    return [case.heading for case in [*bad_inputs.CASES, *bad_streams.CASES]]


def write_row(case: Case, made: str) -> None:
    """Put a row into its place; rows of cases that are gone go."""
    rows = rows_of_page() | {case.heading: made}
    tables = (
        header + "".join(f"{rows[each.heading]}\n" for each in cases if each.heading in rows)
        for header, cases in ((HEADER, bad_inputs.CASES), (STREAMS, bad_streams.CASES))
    )
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text("".join(tables), encoding="utf-8")
