"""How many rows range and generate_series make: computed from the text, so that nobody makes a billion of them."""

from datetime import UTC, datetime, timedelta

from sqlglot import exp

from riverrun.errors import QueryError, QueryRefusedError
from riverrun.store.sql.ast_nodes import is_integer_literal
from riverrun.store.sql.intervals import interval_seconds


def series_row_count(bound: list[exp.Expr], *, inclusive: bool) -> tuple[int, str]:
    """How many rows range and generate_series make at most, and their type."""
    if bound and len(bound) <= 3 and all(_number(value) is not None for value in bound):
        values = [_number(value) or 0 for value in bound]
        start, end, step = (0, values[0], 1) if len(values) == 1 else (*values, 1)[:3]
        if step == 0:
            raise QueryError("A series with the step 0 has no end", expected="another step")
        return max(0, (end - start - (0 if inclusive else step // abs(step))) // step + 1), "bigint"
    if len(bound) == 3 and isinstance(bound[2], exp.Interval):
        start_at, end_at = _constant_time(bound[0]), _constant_time(bound[1])
        step_seconds = interval_seconds(bound[2].name)
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
    return int(node.name) if is_integer_literal(node) else None


def _constant_time(node: exp.Expr) -> datetime | None:
    """A time that is constant in the text: now, a literal, or one of them moved by an interval."""
    if isinstance(node, exp.Anonymous) and node.name in ("now", "current_timestamp", "current_date", "today"):
        return datetime.now(UTC)
    if isinstance(node, exp.Cast | exp.TryCast | exp.Paren) or (
        isinstance(node, exp.Anonymous) and node.name == "date_trunc"
    ):
        return _constant_time(node.expressions[1] if isinstance(node, exp.Anonymous) else node.this)
    if isinstance(node, exp.Literal) and node.is_string:
        try:
            time = datetime.fromisoformat(node.name)
        except ValueError:
            return None
        return time if time.tzinfo else time.replace(tzinfo=UTC)
    if isinstance(node, exp.Add | exp.Sub) and isinstance(node.expression, exp.Interval):
        start, seconds = _constant_time(node.this), interval_seconds(node.expression.name)
        if start is None or seconds is None:
            return None
        try:
            return start + timedelta(seconds=seconds if isinstance(node, exp.Add) else -seconds)
        except OverflowError:
            return None
    return None
