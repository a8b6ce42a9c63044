"""Java's .properties files: what riverrun writes for servers and reads back."""

import re
from collections.abc import Mapping

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPED = re.compile(r"\\(u[0-9a-fA-F]{4}|.)")
_SPLIT = re.compile(r"((?:\\.|[^\\=:\s])*)\s*[=:\s]?\s*(.*)", re.DOTALL)


def format_properties(values: Mapping[str, str]) -> str:
    """The text of a file that Java reads back as these values, whatever characters are in them."""
    return "".join(f"{_escape(name, key=True)}={_escape(value, key=False)}\n" for name, value in values.items())


def _escape(text: str, *, key: bool) -> str:
    out: list[str] = []
    for position, char in enumerate(text):
        if char == "\\" or (key and char in "=:#! ") or (position == 0 and char == " "):
            out.append("\\" + char)
        elif char in "\t\n\r\f":
            out.append({"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}[char])
        elif " " <= char <= "~":
            out.append(char)
        else:
            # Java before 9 read Latin-1 only, and a loader may still: escapes are read everywhere.
            units = char.encode("utf-16-be")
            out += [f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2)]
    return "".join(out)


def parse_properties(text: str) -> dict[str, str]:
    """Read a file of one property per line, as Kafka and riverrun write them."""
    properties: dict[str, str] = {}
    for line in text.splitlines():
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        if parts := _SPLIT.fullmatch(stripped):
            properties[_unescape(parts[1])] = _unescape(parts[2])
    return properties


def _unescape(text: str) -> str:
    plain = _ESCAPED.sub(
        lambda m: chr(int(m[1][1:], 16)) if m[1][0] == "u" and len(m[1]) == 5 else _ESCAPES.get(m[1], m[1]), text
    )
    return plain.encode("utf-16", "surrogatepass").decode("utf-16")
