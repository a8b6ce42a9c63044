"""Settings of Spark's session that depend on the machine and on what it is for."""

import pytest

from riverrun.streams import session


@pytest.mark.parametrize(("cores", "master", "less"), [(2, "local[6]", True), (4, "local", True), (8, "local[9]", False),
                                                       (2, "spark://spark.example:7077", False)])  # fmt: skip
def test_one_compiler_where_cores_are_few(monkeypatch: pytest.MonkeyPatch, cores: int, master: str, less: bool) -> None:
    monkeypatch.setattr(session, "cores", lambda: cores)
    assert ("-XX:TieredStopAtLevel=1" in str(session.compiling_less(master))) is less
