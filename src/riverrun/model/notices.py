"""Notices: sentences for people that begin with a capital, unless they begin with a name."""

from collections.abc import Callable, Collection

from riverrun.errors.base import sentence


def notice_text(text: str, names: Collection[str] = ()) -> str:
    """A notice as people read it: with a capital, unless it begins with one of these names, and one full stop."""
    return sentence(_first_letter(text, names, str.upper))


def phrase_of(line: str, names: Collection[str] = ()) -> str:
    """A sentence from another process, as a notice: without its capital, unless it begins with a name, and full stop."""
    return _first_letter(line, names, str.lower).rstrip(".")


def _first_letter(text: str, names: Collection[str], change: Callable[[str], str]) -> str:
    """The text with its first letter changed, unless its first word is a name: one of these, with or without a suffix
    (`gates/0`), or one that is no English word (`house_load`, `shop.postgres`)."""
    words = text.split(maxsplit=1)
    first = words[0].rstrip(":,;.!?").partition("'")[0] if words else ""
    is_name = first in names or first.partition("/")[0] in names or "_" in first or "." in first
    return text if is_name else change(text[:1]) + text[1:]
