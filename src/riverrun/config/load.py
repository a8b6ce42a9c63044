"""Find every setting: flag, environment, profile, project file, running cluster, default; all problems at once."""

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from riverrun.config.project import Project, find_project
from riverrun.config.run_state import running_state
from riverrun.config.secret import STARS, Secret
from riverrun.config.spec import ENVIRONMENT_PREFIX, SECTIONS, Settings, Spec, is_everywhere, is_loopback, specs
from riverrun.errors import ConfigError

# Names that begin like a setting's and are not one.
OTHER_VARIABLES = frozenset({"RIVERRUN_PROJECT", "RIVERRUN_PROFILE", "RIVERRUN_DEBUG"})
DEFAULT = "default"
# The origin of an address that nobody configured: the project's own servers have it.
RUNNING = "running cluster"

_LOGIN = re.compile(r"://[^/@\s]+@")
_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})


@dataclass(frozen=True)
class Loaded:
    """Checked settings, the project they are for, and where each value came from."""

    project: Project
    settings: Settings
    profile: str
    origins: Mapping[str, str]

    @property
    def attached(self) -> bool:
        """Whether the settings name a cluster that riverrun does not run."""
        return bool(self.settings.kafka.bootstrap_servers) and not self.origins["kafka.bootstrap_servers"].startswith(
            RUNNING
        )

    @property
    def druid_attached(self) -> bool:
        """Whether the settings name a Druid that riverrun does not run."""
        return bool(self.settings.druid.url) and not self.origins["druid.url"].startswith(RUNNING)

    @property
    def connect_attached(self) -> bool:
        """Whether the settings name a Kafka Connect that riverrun does not run."""
        return bool(self.settings.connect.url) and not self.origins["connect.url"].startswith(RUNNING)

    @property
    def registry_attached(self) -> bool:
        """Whether the settings name a schema registry that riverrun does not run."""
        return bool(self.settings.registry.url) and not self.origins["registry.url"].startswith(RUNNING)

    def rows(self) -> list[dict[str, Any]]:
        """One row per setting, secrets starred: what `riverrun config` prints."""
        return [
            {
                "setting": spec.key,
                "value": _shown(getattr(getattr(self.settings, spec.section), spec.name)),
                "origin": self.origins[spec.key],
            }
            for spec in specs()
        ]


def _shown(value: Any) -> Any:
    if isinstance(value, Secret):
        return str(value)
    if isinstance(value, Mapping):
        return {name: STARS if looks_secret(name) else each for name, each in value.items()}
    # An address may carry its login: https://user:password@host/.
    return _LOGIN.sub(rf"://{STARS}@", value) if isinstance(value, str) else value


def looks_secret(name: str) -> bool:
    """Whether a free-form property's name says that its value is not for the screen."""
    return any(word in name.lower() for word in ("password", "secret", "token", "jaas", "credential", "key.pem"))


def load(
    project: Project | None = None,
    *,
    flags: Mapping[str, Any] | None = None,
    profile: str = "",
    environ: Mapping[str, str] | None = None,
) -> Loaded:
    """Load the settings of a project (by default, of the one the current folder is in).

    `flags` maps keys such as "kafka.port" to values; None means that the flag was not given.
    """
    environ = os.environ if environ is None else environ
    project = project or find_project(environ=environ)
    profile = profile or environ.get("RIVERRUN_PROFILE", "")
    loader = _Loader(project, environ)
    loader.defaults()
    loader.file(profile)
    loader.environment()
    loader.flags(flags or {})
    loader.finish()
    if loader.problems:
        raise ConfigError(loader.problems)
    sections: dict[str, Any] = {
        section: cls(**{s.name: loader.values[s.key] for s in loader.specs.values() if s.section == section})
        for section, cls in SECTIONS.items()
    }
    return Loaded(project, Settings(**sections), profile, loader.origins)


class _Loader:
    """Applies the layers, lowest first; the last one to name a setting wins."""

    def __init__(self, project: Project, environ: Mapping[str, str]) -> None:
        self.project = project
        self.environ = environ
        self.specs = {spec.key: spec for spec in specs()}
        self.values: dict[str, Any] = {}
        self.origins: dict[str, str] = {}
        self.problems: list[str] = []

    def defaults(self) -> None:
        for key, spec in self.specs.items():
            self.values[key] = spec.default
            self.origins[key] = DEFAULT

    def file(self, profile: str) -> None:
        path = self.project.config_file
        text, content = self._parse(path)
        profiles = content.pop("profile", {})
        where = _Places(path, text)
        self._tables(content, "", where)
        if not isinstance(profiles, dict):
            self.problems.append(f"{where.of('profile')}: `profile` must hold tables, such as [profile.prod.kafka]")
            return
        for name, tables in profiles.items():
            if name == profile and isinstance(tables, dict):
                self._tables(tables, f"profile.{name}.", where)
        if profile and profile not in profiles:
            known = ", ".join(profiles) or "none"
            self.problems.append(f"{path.name}: there is no profile {profile!r}; it has: {known}")

    def _parse(self, path: Path) -> tuple[str, dict[str, Any]]:
        try:
            text = path.read_text(encoding="utf-8")
            return text, tomllib.loads(text)
        except FileNotFoundError:
            return "", {}
        except tomllib.TOMLDecodeError as error:
            self.problems.append(f"{path.name}: this is not TOML: {error}")
        except UnicodeDecodeError as error:
            self.problems.append(f"{path.name}: this is not UTF-8 text: {error}")
        except OSError as error:
            self.problems.append(f"{path.name}: cannot be read: {error.strerror}")
        return "", {}

    def _tables(self, content: Mapping[str, Any], prefix: str, where: "_Places") -> None:
        for section, table in content.items():
            if section not in SECTIONS:
                hint = did_you_mean(section, [*SECTIONS, "profile"])
                self.problems.append(f"{where.of(prefix + section)}: unknown section [{prefix}{section}]{hint}")
            elif not isinstance(table, dict):
                self.problems.append(f"{where.of(prefix + section)}: [{prefix}{section}] must be a table")
            else:
                for name, value in table.items():
                    self._file_value(section, name, value, prefix, where)

    def _file_value(self, section: str, name: str, value: Any, prefix: str, where: "_Places") -> None:
        place = where.of(f"{prefix}{section}.{name}")
        spec = self.specs.get(f"{section}.{name}")
        if spec is None:
            hint = did_you_mean(name, [s.name for s in self.specs.values() if s.section == section])
            self.problems.append(f"{place}: unknown setting {prefix}{section}.{name}{hint}")
        elif spec.secret:
            self._file_secret(spec, value, place)
        else:
            self._take(spec, value, place, parse_text=False)

    def _file_secret(self, spec: Spec, value: Any, place: str) -> None:
        match value:
            case {"env": str(name)} if len(value) == 1:
                if name not in self.environ:
                    self.problems.append(f"{place}: {spec.key} asks for the variable {name}, which is not set")
                else:
                    self.values[spec.key] = Secret(self.environ[name])
                    self.origins[spec.key] = f"{place} → variable {name}"
            case {"file": str(name)} if len(value) == 1:
                self._secret_file(spec, self.project.root / Path(name).expanduser(), place)
            case _:
                self.problems.append(
                    f'{place}: {spec.key} is a secret and does not belong here: write {{ env = "NAME" }} or '
                    '{ file = "PATH" } instead of its value'
                )

    def _secret_file(self, spec: Spec, path: Path, place: str) -> None:
        try:
            self.values[spec.key] = Secret(path.read_text(encoding="utf-8").rstrip("\r\n"))
            self.origins[spec.key] = f"{place} → file {path}"
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            self.problems.append(f"{place}: {spec.key} asks for the file {path}, which cannot be read: {reason}")

    def environment(self) -> None:
        known = {spec.environment: spec for spec in self.specs.values() if not spec.table}
        for name, value in self.environ.items():
            if not name.startswith(ENVIRONMENT_PREFIX) or name in OTHER_VARIABLES:
                continue
            place = f"environment {name}"
            if name.endswith("_FILE") and (spec := known.get(name.removesuffix("_FILE"))) and spec.secret:
                self._secret_file(spec, Path(value), place)
            elif (spec := known.get(name)) is None:
                self.problems.append(f"{place}: no such setting{did_you_mean(name, known)}")
            elif spec.secret:
                self.values[spec.key], self.origins[spec.key] = Secret(value), place
            else:
                self._take(spec, value, place, parse_text=True)

    def flags(self, flags: Mapping[str, Any]) -> None:
        for key, value in flags.items():
            if value is not None:
                self._take(self.specs[key], value, f"flag --{self.specs[key].name.replace('_', '-')}", parse_text=False)

    def _take(self, spec: Spec, value: Any, place: str, *, parse_text: bool) -> None:
        try:
            parsed = _from_text(spec, value) if parse_text else _from_file(spec, value)
            _check(spec, parsed)
        except ValueError as error:
            self.problems.append(f"{place}: {spec.key} {error}")
            return
        self.values[spec.key], self.origins[spec.key] = parsed, place

    def finish(self) -> None:
        """What depends on several settings, and the cluster that runs."""
        replication = self.values["kafka.replication"]
        brokers = self.values["kafka.brokers"]
        attached = bool(self.values["kafka.bootstrap_servers"])
        if not attached and replication > brokers:
            self.problems.append(
                f"{self.origins['kafka.replication']}: kafka.replication is {replication}, and there are only "
                f"kafka.brokers = {brokers} to hold the copies"
            )
        if replication and self.values["kafka.min_insync"] > replication:
            self.problems.append(
                f"{self.origins['kafka.min_insync']}: kafka.min_insync is {self.values['kafka.min_insync']}, more than "
                f"kafka.replication = {replication}: nothing could ever be written"
            )
        self._check_login()
        self._check_serve()
        self._check_postgres()
        self._check_registry()
        self._check_ingest()
        for key in ("alerts.channels", "ingest.keys"):
            for name, reference in self.values[key].items():
                if not reference.startswith(("env:", "file:")):
                    self.problems.append(
                        f"{self.origins[key]}: {key}.{name} may hold a secret, which does not belong "
                        'here: write "env:NAME" or "file:PATH"'
                    )
        if attached or (state := running_state(self.project)) is None:
            return
        running: dict[str, Any] = {"kafka.bootstrap_servers": state.bootstrap_servers, "druid.url": state.druid_url}
        if state.connect_url and not self.values["connect.url"]:
            running |= {"connect.url": state.connect_url, **self._login_of("connect")}
        if state.registry_url and not self.values["registry.url"]:
            running |= {"registry.url": state.registry_url, **self._login_of("registry")}
        for key, address in running.items():
            if address and not self.values[key]:
                self.values[key] = address
                self.origins[key] = f"{RUNNING} (pid {state.pid})"

    def _login_of(self, server: str) -> dict[str, Any]:
        """How to log in to a server that the runner runs (connect, registry): it wrote the password down."""
        try:
            password = (self.project.data / server / "password").read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            return {}
        return {f"{server}.username": "riverrun", f"{server}.password": Secret(password)}

    def _check_login(self) -> None:
        protocol, mechanism = self.values["kafka.security_protocol"], self.values["kafka.sasl_mechanism"]
        if mechanism and not protocol.startswith("SASL"):
            self.problems.append(
                f"{self.origins['kafka.sasl_mechanism']}: kafka.sasl_mechanism is {mechanism}, and "
                f"kafka.security_protocol is {protocol}, which does not log in: set it to SASL_SSL"
            )
        if protocol.startswith("SASL") and not mechanism:
            self.problems.append(
                f"{self.origins['kafka.security_protocol']}: kafka.security_protocol is {protocol} and needs "
                "kafka.sasl_mechanism (PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER)"
            )
        needed = {"OAUTHBEARER": ("oauth_token_url", "oauth_client_id", "oauth_client_secret")}.get(
            mechanism, ("sasl_username", "sasl_password") if mechanism else ()
        )
        missing = [f"kafka.{name}" for name in needed if not self.values[f"kafka.{name}"]]
        if missing:
            self.problems.append(
                f"{self.origins['kafka.sasl_mechanism']}: kafka.sasl_mechanism is {mechanism} and needs {', '.join(missing)}"
            )

    def _check_registry(self) -> None:
        url = self.values["registry.url"]
        if url and (not url.startswith(("http://", "https://")) or "@" in url.partition("://")[2].partition("/")[0]):
            self.problems.append(
                f"{self.origins['registry.url']}: registry.url must be an address such as https://registry.example:8081, "
                "without a login: that is registry.username and registry.password, or registry.token"
            )
        if self.values["registry.token"] and self.values["registry.username"]:
            self.problems.append(
                f"{self.origins['registry.token']}: registry.token and registry.username cannot be had at once"
            )

    def _check_postgres(self) -> None:
        url = self.values["postgres.url"]
        if url and not url.startswith(("postgresql://", "postgres://")):
            self.problems.append(
                f"{self.origins['postgres.url']}: postgres.url must be an address such as postgresql://cdc@db:5432/shop"
            )
        if re.match(r"[a-z]+://[^/@:]*:[^/@]*@", url) or "password=" in url:
            self.problems.append(
                f"{self.origins['postgres.url']}: postgres.url holds a password, which does not belong here: leave it out, "
                'and set postgres.password = { env = "NAME" }'
            )
        for name, reference in self.values["postgres.databases"].items():
            if not reference.startswith(("env:", "file:")):
                self.problems.append(
                    f"{self.origins['postgres.databases']}: postgres.databases.{name} may hold a password, which does not "
                    'belong here: write "env:NAME" or "file:PATH"'
                )

    def _check_ingest(self) -> None:
        def wrong(name: str, text: str) -> None:
            self.problems.append(f"{self.origins[f'ingest.{name}']}: ingest.{name} {text}")

        host = self.values["ingest.host"]
        pair = ("ssl_certificate_file", "ssl_key_file")
        for name, other in (pair, pair[::-1]):
            if self.values[f"ingest.{name}"] and not self.values[f"ingest.{other}"]:
                wrong(name, f"needs ingest.{other}")
        if not host:
            wrong("host", "is empty: 127.0.0.1 is this machine alone, 0.0.0.0 all of its addresses")
        elif not is_loopback(host) and not self.values["ingest.ssl_key_file"] and not self.values["ingest.insecure"]:
            wrong(
                "host",
                f"is {host}, and a key does not go through a network in clear: set ingest.ssl_certificate_file and "
                "ingest.ssl_key_file, or say ingest.insecure = true where a proxy has them or the network is all yours",
            )
        for name in self.values["ingest.key_topics"]:
            if name not in self.values["ingest.keys"]:
                wrong("key_topics", f"names the key {name}, which is not in ingest.keys")

    def _check_serve(self) -> None:
        def value(name: str) -> Any:
            return self.values[f"serve.{name}"]

        def wrong(name: str, text: str) -> None:
            self.problems.append(f"{self.origins[f'serve.{name}']}: serve.{name} {text}")

        host, secured = value("host"), value("ssl_certificate_file") and value("ssl_key_file")
        if not host:
            wrong("host", "is empty: 127.0.0.1 is this machine alone, 0.0.0.0 all of its addresses")
            return
        for name, other in (("ssl_certificate_file", "ssl_key_file"), ("ssl_key_file", "ssl_certificate_file")):
            if value(name) and not value(other):
                wrong(name, f"needs serve.{other}")
        if value("oidc_issuer"):
            if not value("oidc_client_id"):
                wrong("oidc_issuer", "needs serve.oidc_client_id")
            if not any(value(name).strip(" ,") for name in ("oidc_emails", "oidc_domains", "oidc_groups")):
                wrong(
                    "oidc_issuer",
                    "lets in everybody who has an account there: say who may look, in serve.oidc_emails, "
                    "serve.oidc_domains or serve.oidc_groups",
                )
        if is_loopback(host):
            return
        if is_everywhere(host) and not value("names").strip(" ,"):
            wrong("host", f"is {host}: say in serve.names by which names browsers call this machine")
        if not secured and not value("insecure"):
            wrong(
                "host",
                f"is {host}, and a login does not go through a network in clear: set serve.ssl_certificate_file and "
                "serve.ssl_key_file, or say serve.insecure = true (--insecure) where the network is all yours",
            )


class _Places:
    """Says in which line a key stands. tomllib does not tell, and a user with fifty lines wants to know."""

    _HEADER = re.compile(r"\s*\[+\s*([^\]]+?)\s*\]+")
    _KEY = re.compile(r"""\s*["']?([A-Za-z0-9_.-]+)["']?\s*=""")

    def __init__(self, path: Path, text: str) -> None:
        self._name = path.name
        self._lines: dict[str, int] = {}
        table = ""
        for number, line in enumerate(text.splitlines(), start=1):
            if header := self._HEADER.match(line):
                table = header[1].replace('"', "")
                self._lines.setdefault(table, number)
            elif key := self._KEY.match(line):
                self._lines.setdefault(f"{table}.{key[1]}" if table else key[1], number)

    def of(self, key: str) -> str:
        line = self._lines.get(key)
        return f"{self._name}:{line}" if line else self._name


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean …?` when one known word is close, else an empty string."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


def _from_text(spec: Spec, value: str) -> Any:
    if spec.kind is bool:
        if value.lower() in _TRUE:
            return True
        if value.lower() in _FALSE:
            return False
        raise ValueError(f"must be true or false, not {value!r}")
    if spec.kind is int:
        try:
            return int(value)
        except ValueError:
            raise ValueError(f"must be a whole number, not {value!r}") from None
    return value


def _from_file(spec: Spec, value: Any) -> Any:
    if spec.table:
        if not isinstance(value, dict) or not all(isinstance(each, str | int | bool) for each in value.values()):
            raise ValueError("must be a table of text, numbers or true/false")
        return {name: str(each).lower() if isinstance(each, bool) else str(each) for name, each in value.items()}
    names = {int: "a whole number", str: "text", bool: "true or false"}
    if type(value) is not spec.kind:
        raise ValueError(f"must be {names[spec.kind]}, not {value!r}")
    return value


def _check(spec: Spec, value: Any) -> None:
    if spec.choices and value not in spec.choices:
        shown = ", ".join(repr(choice) for choice in spec.choices if choice)
        raise ValueError(f"must be one of {shown}, not {value!r}{did_you_mean(str(value), spec.choices)}")
    if spec.minimum is not None and value < spec.minimum:
        raise ValueError(f"must be at least {spec.minimum}, not {value}")
    if spec.maximum is not None and value > spec.maximum:
        raise ValueError(f"must be at most {spec.maximum}, not {value}")
