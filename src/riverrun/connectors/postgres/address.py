"""The address and login of a database, from the settings; and a connection to it. psycopg's errors are translated here."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from riverrun.config.secret import Secret
from riverrun.config.spec import PostgresSettings
from riverrun.errors import ConfigError, DatabaseError, DatabaseRefusedError, DatabaseUnreachableError

if TYPE_CHECKING:
    import psycopg

APPLICATION = "riverrun"
# Options of an address that both Python's client and Java's driver have, with their names in Java.
OPTIONS = {
    "sslmode": "sslmode",
    "sslrootcert": "sslrootcert",
    "sslcert": "sslcert",
    "sslkey": "sslkey",
    "channel_binding": "channelBinding",
}
_URL_PARTS = ("host", "port", "user", "password", "dbname")
# The settings to use instead of options that an address must not have.
_SETTING_INSTEAD = {"connect_timeout": "postgres.timeout_seconds", "passfile": "postgres.password"}


@dataclass(frozen=True)
class Database:
    """One database and the login for it. `name` is its name in the settings; empty: the one of `postgres.url`."""

    name: str
    host: str
    port: int
    dbname: str
    user: str
    password: Secret
    options: Mapping[str, str] = field(default_factory=dict)
    timeout_seconds: int = 5

    @property
    def java_options(self) -> dict[str, str]:
        """The options by their names in Java's driver."""
        return {OPTIONS[name]: value for name, value in self.options.items()}

    def __str__(self) -> str:
        return f"{self.dbname} at {self.host}:{self.port}"

    @contextmanager
    def connect(self) -> "Iterator[psycopg.Connection[Any]]":
        """A connection that commits each statement. Every error of Postgres or psycopg becomes a DatabaseError."""
        import psycopg

        try:
            connection = psycopg.connect(
                host=self.host, port=self.port, dbname=self.dbname, user=self.user, password=self.password.reveal() or None,
                connect_timeout=self.timeout_seconds, application_name=APPLICATION, autocommit=True,
                options=f"-c statement_timeout={self.timeout_seconds * 1000} -c lock_timeout={self.timeout_seconds * 1000}",
                **self.options,  # type: ignore[arg-type]
            )  # fmt: skip
        except (psycopg.Error, UnicodeError) as error:
            raise self._unreachable(error) from error
        with connection:
            try:
                yield connection
            except psycopg.errors.QueryCanceled as error:
                raise DatabaseUnreachableError(
                    f"The database {self} did not answer in time", found=_error_text(error)
                ) from error
            except psycopg.OperationalError as error:
                raise DatabaseUnreachableError(f"The database {self} is gone", found=_error_text(error)) from error
            except psycopg.Error as error:
                raise DatabaseRefusedError(f"The database {self} refuses", found=_error_text(error)) from error

    def _unreachable(self, error: Exception) -> DatabaseError:
        text = _error_text(error)
        setting = f"postgres.databases.{self.name}" if self.name else "postgres.url and postgres.password"
        refused = (
            "authentication failed",
            "no pg_hba.conf entry",
            "does not exist",
            "no password supplied",
            "permission denied",
        )
        if any(phrase in text for phrase in refused):
            return DatabaseRefusedError(
                f"The database {self} does not let {self.user} in",
                found=text,
                hint=f"Check {setting}",
                database=self.name,
            )
        return DatabaseUnreachableError(
            f"The database {self} does not answer", found=text, hint=f"Is it running? Its address is {setting}",
            database=self.name,
        )  # fmt: skip


def database_of(
    settings: PostgresSettings, name: str, root: Path, environ: Mapping[str, str] | None = None
) -> Database:
    """The database that a connector names; empty is the default. ConfigError when the settings do not have it."""
    environ = os.environ if environ is None else environ
    if not name:
        if not settings.url:
            raise ConfigError(['postgres.url is not set: [postgres] url = "postgresql://USER@HOST:5432/DATABASE"'])
        return _parse_url(settings, "", settings.url, settings.password, "postgres.url")
    if name not in settings.databases:
        known = ", ".join(settings.databases) or "none"
        raise ConfigError([f"postgres.databases has no {name}, which a connector names; it has: {known}"])
    setting = f"postgres.databases.{name}"
    kind, _, where = settings.databases[name].partition(":")
    if kind == "env":
        if where not in environ:
            raise ConfigError([f"{setting} asks for the variable {where}, which is not set"])
        return _parse_url(settings, name, environ[where].strip(), Secret(), setting)
    path = root / Path(where).expanduser()
    try:
        return _parse_url(settings, name, path.read_text(encoding="utf-8").strip(), Secret(), setting)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError([f"{setting} asks for the file {path}, which cannot be read: {reason}"]) from error


def _parse_url(settings: PostgresSettings, name: str, url: str, password: Secret, setting: str) -> Database:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        fields = {key: str(value) for key, value in conninfo_to_dict(url).items()}
    except psycopg.Error as error:
        # psycopg's message may contain the password.
        raise ConfigError([f"{setting} is no address such as postgresql://cdc@127.0.0.1:5432/shop"]) from error
    missing = [
        label for label, key in (("host", "host"), ("user", "user"), ("database", "dbname")) if not fields.get(key)
    ]
    if missing or "," in fields.get("host", "") or fields.get("host", "").startswith("/"):
        what = f"names no {missing[0]}" if missing else "must name one host, by TCP"
        raise ConfigError([f"{setting} {what}: write postgresql://USER@HOST:PORT/DATABASE"])
    if unknown := [option for option in fields if option not in OPTIONS and option not in _URL_PARTS]:
        known = ", ".join(OPTIONS)
        raise ConfigError(
            [
                f"{setting} has the option {option}, which Connect would not hear of: "
                + (
                    f"set {_SETTING_INSTEAD[option]} instead"
                    if option in _SETTING_INSTEAD
                    else f"leave it out; it may have {known}"
                )
                for option in unknown
            ]
        )
    return Database(
        name,
        fields["host"],
        int(fields.get("port") or 5432),
        fields["dbname"],
        fields["user"],
        Secret(fields.get("password", "")) or password,
        {key: fields[key] for key in OPTIONS if key in fields},
        settings.timeout_seconds,
    )


def _error_text(error: BaseException) -> str:
    return " ".join(str(error).split()).strip() or type(error).__name__
