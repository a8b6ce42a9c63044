"""A value that does not print itself."""

STARS = "******"


class Secret:
    """Holds a password or key. `str` and `repr` give stars; `reveal` gives the value, for the library that needs it."""

    __slots__ = ("_value",)

    def __init__(self, value: str = "") -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __bool__(self) -> bool:
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __str__(self) -> str:
        return STARS if self._value else ""

    def __repr__(self) -> str:
        return f"Secret({str(self)!r})"
