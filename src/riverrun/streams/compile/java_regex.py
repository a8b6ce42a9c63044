"""Translates regular expressions of Python's `re`, as events declare them, into Java's, which Spark uses."""

import re

from riverrun.errors import DeclarationError

_SAME_GROUPS = ("(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>")
_FLAGS = {"(?i)": "(?iu)", "(?s)": "(?s)", "(?m)": "(?m)"}
_QUANTIFIER = re.compile(r"\{(\d*)(,?)(\d*)\}")
_NAMED = re.compile(r"\(\?P<\w+>")


def java_pattern(pattern: str) -> str:
    """The same pattern for Java; DeclarationError for what Java cannot express.

    As in Python, only a newline ends a line and, where it matters, letters and digits are Unicode's.
    """
    parts: list[str] = []
    flags = "d"
    position = 0
    while position < len(pattern):
        length, part = (
            _escape(pattern, position)
            or _character_class(pattern, position)
            or _group(pattern, position)
            or _brace(pattern, position)
        )
        parts.append(part)
        position += length
    translated = "".join(parts)
    if re.search(r"\\[dDwWsSbB]", translated):
        flags += "U"
    return f"(?{flags}){translated}"


def _escape(pattern: str, position: int) -> tuple[int, str] | None:
    if pattern[position] != "\\":
        return None
    letter = pattern[position + 1]
    if letter in "NU0":
        raise _unsupported(pattern, pattern[position : position + 2])
    return 2, {"Z": r"\z"}.get(letter, pattern[position : position + 2])


def _character_class(pattern: str, position: int) -> tuple[int, str] | None:
    """A character class. Inside one, Java gives a bracket and && a meaning, so they are escaped."""
    if pattern[position] != "[":
        return None
    end, parts = position + 1, ["["]
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
    return end + 1 - position, "".join([*parts, "]"])


def _group(pattern: str, position: int) -> tuple[int, str] | None:
    if not pattern.startswith("(?", position):
        return None
    for start in _SAME_GROUPS:
        if pattern.startswith(start, position):
            return len(start), start
    for flag, java_flag in _FLAGS.items():
        if pattern.startswith(flag, position):
            return len(flag), java_flag
    if named := _NAMED.match(pattern, position):
        return len(named[0]), "("
    raise _unsupported(pattern, pattern[position : position + 4])


def _brace(pattern: str, position: int) -> tuple[int, str]:
    """Any other character. In Python, a brace that is not a quantifier stands for itself."""
    if pattern[position] not in "{}":
        return 1, pattern[position]
    quantifier = _QUANTIFIER.match(pattern, position)
    if quantifier is None or not (quantifier[1] or quantifier[3]):
        return 1, "\\" + pattern[position]
    return len(quantifier[0]), f"{{{quantifier[1] or 0}{quantifier[2]}{quantifier[3]}}}"


def _unsupported(pattern: str, part: str) -> DeclarationError:
    return DeclarationError(
        f"The pattern {pattern!r} cannot be checked by Spark",
        found=f"{part!r}, which Java's regular expressions do not have",
        hint="Write it with plain groups, sets and repetitions",
        pattern=pattern,
    )
