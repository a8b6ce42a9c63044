"""What all errors have: the parts of a message, a code, and what to do about it."""

from collections.abc import Sequence
from typing import Any, ClassVar


def sentence(text: str) -> str:
    """A text with its full stop, which it may have already: parts of messages come from libraries and other messages."""
    text = text.rstrip()
    return text if text.endswith((".", "?", "!")) else f"{text}."


class RiverrunError(Exception):
    """Base of all errors riverrun raises on purpose.

    `what` is one sentence without its full stop; `expected`, `found` and `hint` likewise. `lines` are shown below as they
    are, such as the end of a log. Extra keywords become `fields`.
    """

    code: ClassVar[str] = "RIVERRUN"
    retryable: ClassVar[bool] = False
    exit_code: ClassVar[int] = 1

    def __init__(
        self,
        what: str,
        *,
        expected: str = "",
        found: str = "",
        hint: str = "",
        lines: Sequence[str] = (),
        **fields: Any,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.expected = expected
        self.found = found
        self.hint = hint
        self.lines = tuple(lines)
        self.fields = fields

    def __str__(self) -> str:
        parts = [sentence(self.what)]
        if self.expected and self.found:
            parts.append(sentence(f"Expected {self.expected}; found {self.found}"))
        elif self.expected:
            parts.append(sentence(f"Expected {self.expected}"))
        elif self.found:
            parts.append(sentence(f"Found {self.found}"))
        if self.hint:
            parts.append(sentence(self.hint))
        return "".join([" ".join(parts), *(f"\n  {line}" for line in self.lines)])

    def __repr__(self) -> str:
        fields = "".join(f", {name}={value!r}" for name, value in self.fields.items())
        return f"{type(self).__name__}({self.what!r}{fields})"

    def as_dict(self) -> dict[str, Any]:
        """The error for programs: what `--json` prints on failure."""
        return {
            "code": self.code,
            "message": str(self),
            "retryable": self.retryable,
            "fields": {name: value if isinstance(value, int | float | bool) else str(value)
                       for name, value in self.fields.items()},
        }  # fmt: skip
