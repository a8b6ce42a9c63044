"""Message templates: text with columns in braces, as `{owner}: {load_kw:.1f} kW since {minute:%H:%M}`.

Less than Python's formatting: a plain column and a plain format, no attributes, no calls. Values come from events, and
anybody may write those: they are cut short, kept on one line, and cannot change the text's direction.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, tzinfo
from decimal import Decimal
from string import Formatter
from typing import Any

from riverrun.alerts.condition import unknown_column, value_kind
from riverrun.errors import DeclarationError
from riverrun.model.table import Column

MAX_CHARACTERS = 1000
MAX_VALUE_CHARACTERS = 200
_FORMATS = {
    "number": re.compile(r"\+?,?(\.\d)?[dfgeE%]?"),
    "time": re.compile(r"(%[YmdHMSyIpbBaAjZ]|[^%{}]){0,40}"),
    "date": re.compile(r"(%[YmdybBaAj]|[^%{}]){0,40}"),
    "text": re.compile(r""),
    "boolean": re.compile(r""),
}
_EXAMPLES = {"number": "{%s:.1f}", "time": "{%s:%%H:%%M}", "date": "{%s:%%d %%B}", "text": "{%s}", "boolean": "{%s}"}
_SAMPLES: dict[str, Any] = {"bigint": 1, "double": 1.5}
_MISSING = "–"  # noqa: RUF001  -- a dash for people
# Control characters, line separators, and those that change the direction of what follows.
_CONTROL_CHARACTERS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_BIDI_CONTROLS = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True)
class Template:
    """A parsed template; `parts` are (text before, column or "", format)."""

    text: str
    parts: tuple[tuple[str, str, str], ...]

    @property
    def columns(self) -> frozenset[str]:
        return frozenset(name for _, name, _ in self.parts if name)

    def render(self, row: Mapping[str, Any], zone: tzinfo = UTC) -> str:
        """The text for a row, with its times in `zone`."""
        rendered = "".join(
            before + (_format_value(row.get(name), style, zone) if name else "") for before, name, style in self.parts
        )
        return truncate(rendered, MAX_CHARACTERS)


def parse_template(text: str, columns: Sequence[Column], what: str, table: str) -> Template:
    """Parse the template in `text`; DeclarationError, which begins with `what`, when it does not fit these columns."""
    if len(text) > MAX_CHARACTERS:
        raise DeclarationError(f"{what} has {len(text)} characters", expected=f"at most {MAX_CHARACTERS}")
    types = {column.name: column.type for column in columns}
    try:
        fields = list(Formatter().parse(text))
    except ValueError as error:
        raise DeclarationError(
            f"{what} cannot be understood: {error}", hint="A brace that is meant as one is written twice"
        ) from error
    parts = []
    for before, name, style, conversion in fields:
        if name is None:
            parts.append((before, "", ""))
            continue
        if conversion or not name.isidentifier():
            sign = f"!{conversion}" if conversion else ""
            raise DeclarationError(
                f"{what} has {{{name}{sign}}}", expected="the name of a column in braces", found=repr(text)
            )
        if name not in types:
            raise unknown_column(what, name, types, table)
        _check_format(what, name, style or "", types[name])
        parts.append((before, name, style or ""))
    return Template(text, tuple(parts))


def _check_format(what: str, name: str, style: str, column_type: str) -> None:
    kind = value_kind(column_type)
    good = _FORMATS[kind].fullmatch(style) is not None
    if good and kind == "number":
        try:
            format(_SAMPLES.get(column_type, Decimal("1.5")), style)
        except ValueError:
            good = False
    if not good:
        raise DeclarationError(
            f"{what} shows {name}, a {kind}, as {style!r}", expected=f"such as {_EXAMPLES[kind] % name}", column=name
        )


def _format_value(value: Any, style: str, zone: tzinfo) -> str:
    if value is None:
        return _MISSING
    if isinstance(value, bool):
        return "true" if value else "false"
    try:
        if isinstance(value, datetime):
            return format(value.astimezone(zone), style or "%Y-%m-%d %H:%M")
        if isinstance(value, int | float | Decimal | date):
            return truncate(format(value, style), MAX_VALUE_CHARACTERS)
    except (ValueError, OverflowError, ArithmeticError):
        return single_line(str(value))
    return single_line(str(value))


def single_line(text: str) -> str:
    """Text of an event, made safe for one line of a message."""
    return truncate(
        _BIDI_CONTROLS.sub("", _CONTROL_CHARACTERS.sub(" ", text[: 4 * MAX_VALUE_CHARACTERS])).strip(),
        MAX_VALUE_CHARACTERS,
    )


def truncate(text: str, max_length: int) -> str:
    return text if len(text) <= max_length else text[: max_length - 1] + "…"
