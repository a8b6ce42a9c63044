"""Parses one value of a setting, from text or TOML, and checks it. ValueError says what it must be."""

from typing import Any

from riverrun.config.formats import MAX_CHARACTERS, FormatError, did_you_mean, format_value
from riverrun.config.spec import SettingSpec

_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})
_KINDS = {int: "a whole number", str: "text", bool: "true or false"}


def parse_value(spec: SettingSpec, value: Any, *, from_text: bool) -> Any:
    """The value of a setting; `from_text` for what comes from the environment, where everything is text."""
    result = _from_text(spec, value) if from_text else _from_toml(spec, value)
    _check(spec, result)
    return result


def _from_text(spec: SettingSpec, value: str) -> Any:
    if spec.kind is bool:
        if value.lower() in _TRUE:
            return True
        if value.lower() in _FALSE:
            return False
        raise ValueError(f"must be true or false, not {format_value(value)}")
    if spec.kind is int:
        try:
            return int(value)
        except ValueError:
            raise ValueError(f"must be a whole number, not {format_value(value)}") from None
    return value


def _from_toml(spec: SettingSpec, value: Any) -> Any:
    if spec.table:
        if not isinstance(value, dict) or not all(isinstance(entry, str | int | bool) for entry in value.values()):
            raise ValueError("must be a table of text, numbers or true/false")
        entries = {name: str(entry).lower() if isinstance(entry, bool) else str(entry) for name, entry in value.items()}
        for name, text in entries.items():
            _check_text(name)
            # A certificate in PEM has many lines.
            _check_text(text, allowed="\n\r\t")
        return entries
    if type(value) is not spec.kind:
        raise ValueError(f"must be {_KINDS[spec.kind]}, not {format_value(value)}")
    return value


def _check(spec: SettingSpec, value: Any) -> None:
    if spec.choices and value not in spec.choices:
        choices = ", ".join(repr(choice) for choice in spec.choices if choice)
        raise ValueError(f"must be one of {choices}, not {format_value(value)}{did_you_mean(str(value), spec.choices)}")
    if spec.minimum is not None and value < spec.minimum:
        raise ValueError(f"must be at least {spec.minimum}, not {format_value(value)}")
    if spec.maximum is not None and value > spec.maximum:
        raise ValueError(f"must be at most {spec.maximum}, not {format_value(value)}")
    if spec.minimum_nonzero is not None and 0 < value < spec.minimum_nonzero:
        raise ValueError(f"must be 0 or at least {spec.minimum_nonzero}, not {value}")
    if isinstance(value, str):
        _check_text(value)
        # Empty means what the setting's description says, where that is the default.
        if spec.format is not None and (value or spec.default):
            try:
                spec.format.check(value)
            except FormatError as error:
                raise ValueError(f"must be {spec.format.expected}, not {format_value(value)}{error.hint}") from error


def _check_text(value: str, *, allowed: str = "") -> None:
    if len(value) > MAX_CHARACTERS:
        raise ValueError(f"must have at most {MAX_CHARACTERS} characters, not {len(value)}")
    if any((ord(character) < 32 or ord(character) == 127) and character not in allowed for character in value):
        example = ", such as a line's end" if not allowed else " other than tabs and line ends"
        raise ValueError(f"must not hold control characters{example}")
