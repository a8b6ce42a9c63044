"""How many rows range and generate_series make: told from the text, so that nobody makes a billion of them."""

from datetime import UTC, datetime, timedelta

from sqlglot import exp

from riverrun.errors import QueryError, QueryRefusedError
from riverrun.store.sql.periods import seconds_of
from riverrun.store.sql.trees import is_whole


def row_count(bound: list[exp.Expr], *, inclusive: bool) -> tuple[int, str]:
    """How many rows range and generate_series make at most, and of what."""
    if bound and len(bound) <= 3 and all(_number(each) is not None for each in bound):
        values = [_number(each) or 0 for each in bound]
        start, end, step = (0, values[0], 1) if len(values) == 1 else (*values, 1)[:3]
        if step == 0:
            raise QueryError("A series with the step 0 has no end", expected="another step")
        return max(0, (end - start - (0 if inclusive else step // abs(step))) // step + 1), "bigint"
    if len(bound) == 3 and isinstance(bound[2], exp.Interval):
        start_at, end_at = _moment(bound[0]), _moment(bound[1])
        step_seconds = seconds_of(bound[2].name)
        if start_at is not None and end_at is not None and step_seconds:
            return max(0, int((end_at - start_at).total_seconds() / step_seconds) + 1), "timestamp"
    raise QueryRefusedError(
        "The bounds of a series are written out, so that its length is known",
        expected="numbers; or times: generate_series(now() - interval '1 hour', now(), interval '1 minute')",
    )


def _number(node: exp.Expr) -> int | None:
    if isinstance(node, exp.Neg):
        inner = _number(node.this)
        return None if inner is None else -inner
    return int(node.name) if is_whole(node) else None


def _moment(node: exp.Expr) -> datetime | None:
    """A time that can be told from the text: now, a literal, or one of them moved by an interval."""
    if isinstance(node, exp.Anonymous) and node.name in ("now", "current_timestamp", "current_date", "today"):
        return datetime.now(UTC)
    if isinstance(node, exp.Cast | exp.TryCast | exp.Paren) or (
        isinstance(node, exp.Anonymous) and node.name == "date_trunc"
    ):
        return _moment(node.expressions[1] if isinstance(node, exp.Anonymous) else node.this)
    if isinstance(node, exp.Literal) and node.is_string:
        try:
            found = datetime.fromisoformat(node.name)
        except ValueError:
            return None
        return found if found.tzinfo else found.replace(tzinfo=UTC)
    if isinstance(node, exp.Add | exp.Sub) and isinstance(node.expression, exp.Interval):
        start, seconds = _moment(node.this), seconds_of(node.expression.name)
        if start is None or seconds is None:
            return None
        try:
            return start + timedelta(seconds=seconds if isinstance(node, exp.Add) else -seconds)
        except OverflowError:
            return None
    return None
