"""Secrets of connectors, by reference: what Connect stores, logs and returns is the name of a file, never its content.

Each secret is a file that only the user can read, in `.riverrun/data/connect/secrets`, which the worker that riverrun runs
reads through its config provider. A changed secret gets another name, so that the connector's configuration changes and it
uses the new one. A Connect that runs elsewhere reads files of its own: there connect.references has the references.
"""

import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Self

from riverrun.cluster.connect.plan import CONFIG_PROVIDER, secrets_folder
from riverrun.config import LoadedSettings, Secret
from riverrun.config.load import looks_secret
from riverrun.config.private_files import write_private
from riverrun.config.secret import resolve_secret
from riverrun.errors import ConfigError, DataDirectoryError

# Not a URL such as file:///tmp.
_REFERENCE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*|file:(?!//).+")
# What follows the app in the name of a connector of a pipeline file.
KINDS = ("postgres", "jdbc.")
_UNSAFE_CHARACTERS = re.compile(r"[^A-Za-z0-9._-]")


class Vault:
    """Stores the secrets of connectors. `folder` None: Connect runs elsewhere, and `references` are used instead, by
    `CONNECTOR.PROPERTY`."""

    def __init__(self, folder: Path | None, references: Mapping[str, str] | None = None) -> None:
        self._folder = folder
        self._references = references or {}

    @classmethod
    def of(cls, loaded: LoadedSettings) -> Self:
        """The vault of a project's Connect."""
        folder = None if loaded.connect_attached else secrets_folder(loaded.project.data)
        return cls(folder, loaded.settings.connect.references)

    def hide(self, connector: str, config: Mapping[str, str | Secret]) -> dict[str, str]:
        """The configuration with a reference in place of each secret; ConfigError names all that cannot be stored."""
        hidden: dict[str, str] = {}
        problems: list[str] = []
        for name, value in config.items():
            if not isinstance(value, Secret):
                hidden[name] = value
            elif (reference := self._references.get(f"{connector}.{name}")) is not None:
                hidden[name] = reference
            elif self._folder is not None:
                hidden[name] = self._store_secret(connector, name, value)
            else:
                problems.append(
                    f"{connector}: {name} is a secret, which a Connect that runs elsewhere must have itself: say what "
                    f'stands for it there, connect.references = {{ "{connector}.{name}" = "${{file:PATH:KEY}}" }}'
                )
        if problems:
            raise ConfigError(problems)
        return hidden

    def reveal(self, reference: str) -> Secret | None:
        """The secret behind one of our references; None for one that cannot be read here."""
        if self._folder is None:
            return None
        for file in self._folder.glob("*@*"):
            if self._reference(file) == reference:
                return Secret(file.read_text(encoding="utf-8"))
        return None

    def connectors(self, app: str) -> set[str]:
        """Connectors of an app that were configured here and not removed since: those with secrets."""
        if self._folder is None:
            return set()
        kinds = tuple(f"{_safe_name(app)}.{kind}" for kind in KINDS)
        return {file.name.partition("@")[0] for file in self._folder.glob("*@*") if file.name.startswith(kinds)}

    def forget(self, connector: str, config: Mapping[str, str] | None = None) -> None:
        """Delete the connector's secrets that its configuration (none: it was removed) does not refer to."""
        used = set((config or {}).values())
        for file in self._files(connector):
            if self._reference(file) not in used:
                file.unlink(missing_ok=True)

    def forget_others(self, app: str, used: Iterable[str]) -> None:
        """Delete the secrets of an app's connectors that are none of these: left by a removal that was interrupted."""
        for connector in self.connectors(app) - {_safe_name(name) for name in used}:
            self.forget(connector)

    def _store_secret(self, connector: str, name: str, secret: Secret) -> str:
        stem = f"{_safe_name(connector)}@{_safe_name(name)}@"
        try:
            for file in self._files(connector):
                if file.name.startswith(stem) and file.read_text(encoding="utf-8") == secret.reveal():
                    return self._reference(file)
            folder = self._require_folder()
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = folder / f"{stem}{secrets.token_hex(6)}"
            write_private(file, secret.reveal())
        except (OSError, UnicodeDecodeError) as error:
            raise DataDirectoryError(
                f"The secret {name} of {connector} cannot be kept in {self._folder}: {error}",
                hint="Check the rights of that folder",
                path=self._folder,
            ) from error
        return self._reference(file)

    def _files(self, connector: str) -> Iterator[Path]:
        if self._folder is not None:
            yield from sorted(self._folder.glob(f"{_safe_name(connector)}@*"))

    def _require_folder(self) -> Path:
        if self._folder is None:
            raise ConfigError(["a Connect that runs elsewhere keeps its own secrets"])
        return self._folder

    def _reference(self, file: Path) -> str:
        return f"${{{CONFIG_PROVIDER}:{file.parent.absolute()}:{file.name}}}"


def _safe_name(name: str) -> str:
    return _UNSAFE_CHARACTERS.sub("_", name)


def resolve_secrets(
    config: Mapping[str, str], root: Path, environ: Mapping[str, str] | None = None
) -> dict[str, str | Secret]:
    """A configuration as a user writes it, with its secrets resolved: "env:NAME" and "file:PATH" (from `root`) are looked
    up, and the value of a name such as `…password` is a secret as well. ConfigError names all that are missing."""
    resolved: dict[str, str | Secret] = {}
    problems: list[str] = []
    for name, value in config.items():
        if _REFERENCE.fullmatch(value):
            try:
                resolved[name] = resolve_secret(value, name, root, environ)
            except ConfigError as error:
                problems += error.problems
        elif looks_secret(name) and value and not value.startswith("${"):
            resolved[name] = Secret(value)
        else:
            resolved[name] = value
    if problems:
        raise ConfigError(problems)
    return resolved
