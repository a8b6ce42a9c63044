"""A value that does not print itself, and where to find one."""

import os
from collections.abc import Mapping
from pathlib import Path

from riverrun.config.toml_file import MAX_SECRET_BYTES, UnreadableFileError, read_text
from riverrun.errors import ConfigError

MASK = "******"


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
        return MASK if self._value else ""

    def __repr__(self) -> str:
        return f"Secret({str(self)!r})"


class MissingSecret(Secret):
    """A secret that is missing where it should be: ConfigError when it is revealed."""

    __slots__ = ()

    def reveal(self) -> str:
        raise ConfigError([self._value])


def resolve_secret(reference: str, what: str, root: Path, environ: Mapping[str, str] | None = None) -> Secret:
    """The secret behind "env:NAME" or "file:PATH" (from `root`); `what` names the setting for people. Nothing for an
    empty reference; ConfigError when it is missing, or when this is not a reference."""
    if not reference:
        return Secret()
    kind, _, where = reference.partition(":")
    if kind == "env" and where:
        value = (os.environ if environ is None else environ).get(where)
        if value is None:
            raise ConfigError([f"{what} asks for the variable {where}, which is not set"])
        return Secret(value.strip())
    if kind == "file" and where:
        path = root / Path(where).expanduser()
        try:
            return Secret(read_text(path, MAX_SECRET_BYTES, "a secret has").strip())
        except UnreadableFileError as error:
            reason = str(error).removeprefix("cannot be read: ")
            raise ConfigError([f"{what} asks for the file {path}, which cannot be read: {reason}"]) from error
    raise ConfigError([f'{what} may hold a secret, which does not belong here: write "env:NAME" or "file:PATH"'])
