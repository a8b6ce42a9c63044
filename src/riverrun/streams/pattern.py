"""Regular expressions of Python's `re`, as an event declares them, in the words of Java's, which Spark runs."""

import re

from riverrun.errors import DeclarationError

_SAME_GROUPS = ("(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>")
_FLAGS = {"(?i)": "(?iu)", "(?s)": "(?s)", "(?m)": "(?m)"}
_QUANTIFIER = re.compile(r"\{(\d*)(,?)(\d*)\}")
_NAMED = re.compile(r"\(\?P<\w+>")


def java_pattern(pattern: str) -> str:
    """The same pattern for Java: DeclarationError for what Java cannot say.

    Java is told that only a newline ends a line and, where it matters, that letters and digits are Unicode's, as in Python.
    """
    parts: list[str] = []
    flags = "d"
    at = 0
    while at < len(pattern):
        taken, part = _escape(pattern, at) or _class(pattern, at) or _group(pattern, at) or _brace(pattern, at)
        parts.append(part)
        at += taken
    said = "".join(parts)
    if re.search(r"\\[dDwWsSbB]", said):
        flags += "U"
    return f"(?{flags}){said}"


def _escape(pattern: str, at: int) -> tuple[int, str] | None:
    if pattern[at] != "\\":
        return None
    letter = pattern[at + 1]
    if letter in "NU0":
        raise _refused(pattern, pattern[at : at + 2])
    return 2, {"Z": r"\z"}.get(letter, pattern[at : at + 2])


def _class(pattern: str, at: int) -> tuple[int, str] | None:
    """A set in brackets. Java gives a meaning to a bracket and to && inside one."""
    if pattern[at] != "[":
        return None
    end, parts = at + 1, ["["]
    if pattern[end] == "^":
        parts.append("^")
        end += 1
    first = end
    while pattern[end] != "]" or end == first:
        if escape := _escape(pattern, end):
            parts.append(escape[1])
            end += escape[0]
            continue
        parts.append("\\" + pattern[end] if pattern[end] in "[]&" else pattern[end])
        end += 1
    return end + 1 - at, "".join([*parts, "]"])


def _group(pattern: str, at: int) -> tuple[int, str] | None:
    if not pattern.startswith("(?", at):
        return None
    for start in _SAME_GROUPS:
        if pattern.startswith(start, at):
            return len(start), start
    for flag, said in _FLAGS.items():
        if pattern.startswith(flag, at):
            return len(flag), said
    if named := _NAMED.match(pattern, at):
        return len(named[0]), "("
    raise _refused(pattern, pattern[at : at + 4])


def _brace(pattern: str, at: int) -> tuple[int, str]:
    """Any other character. A brace that does not say how often is itself, in Python."""
    if pattern[at] not in "{}":
        return 1, pattern[at]
    times = _QUANTIFIER.match(pattern, at)
    if times is None or not (times[1] or times[3]):
        return 1, "\\" + pattern[at]
    return len(times[0]), f"{{{times[1] or 0}{times[2]}{times[3]}}}"


def _refused(pattern: str, part: str) -> DeclarationError:
    return DeclarationError(
        f"The pattern {pattern!r} cannot be checked by Spark",
        found=f"{part!r}, which Java's regular expressions do not have",
        hint="Write it with plain groups, sets and repetitions",
        pattern=pattern,
    )
