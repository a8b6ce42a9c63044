"""What `riverrun verify` ends with."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from riverrun.cli import main, verify
from riverrun.streams.verify.verifier import Verdict

LATE = Verdict("per_minute", "per_minute", batch=7, records=900, rows=60, equal=49, late=11, dropped=11)


@pytest.mark.parametrize(
    ("verdicts", "code", "words"),
    [
        ([LATE], 0, "equal, but for 11 rows that late records can explain"),
        ([LATE, Verdict("high", "high", rows=3, wrong={"missing": 1})], 1, "high: differs"),
        ([LATE, Verdict("high", "high", unproved="its input is gone")], 3, "high: cannot be told"),
    ],
    ids=["late only", "late and missing", "late and unproved"],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_rows_that_only_lack_late_records_are_no_failure(
    verdicts: list[Verdict],
    code: int,
    words: str,
    as_json: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It ended with 1 whenever late records had been dropped."""

    def found(*_: Any) -> Iterator[Verdict]:
        yield from verdicts

    (tmp_path / "app.py").write_text('import riverrun as rr\n\napp = rr.App("meters")\n')
    (tmp_path / "riverrun.toml").write_text('[project]\napp = "app.py"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(verify, "_verdicts", found)
    assert main.run(["verify", *(["--json"] if as_json else [])]) == code
    if not as_json:
        assert words in capsys.readouterr().out
