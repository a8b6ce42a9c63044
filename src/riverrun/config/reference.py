"""Where a secret is kept, as a setting or a pipeline file says it: "env:NAME" or "file:PATH". Never the secret itself."""

from collections.abc import Mapping
from pathlib import Path

from riverrun.config.secret import Secret
from riverrun.errors import ConfigError


def secret_of(what: str, reference: str, root: Path, environ: Mapping[str, str]) -> Secret:
    """The secret that `reference` leads to; `what` names the setting in the ConfigError of one that leads nowhere."""
    kind, _, where = reference.partition(":")
    if kind == "env" and where:
        if where not in environ:
            raise ConfigError([f"{what} asks for the variable {where}, which is not set"])
        return Secret(environ[where].strip())
    if kind == "file" and where:
        path = root / Path(where).expanduser()
        try:
            return Secret(path.read_text(encoding="utf-8").strip())
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise ConfigError([f"{what} asks for the file {path}, which cannot be read: {reason}"]) from error
    raise ConfigError([f'{what} may hold a secret, which does not belong here: write "env:NAME" or "file:PATH"'])
