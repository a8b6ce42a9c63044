"""Load every setting: flag, environment, profile, project file, running cluster, default; all problems at once."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from riverrun.config.formats import did_you_mean, format_value, hide_login, truncated
from riverrun.config.networks import parse_networks
from riverrun.config.project import Project, find_project
from riverrun.config.run_state import running_state
from riverrun.config.secret import MASK, MissingSecret, Secret
from riverrun.config.spec import (
    ENVIRONMENT_PREFIX,
    SECTIONS,
    Settings,
    SettingSpec,
    is_loopback,
    is_wildcard_host,
    setting_specs,
)
from riverrun.config.toml_file import MAX_SECRET_BYTES, TomlFile, UnreadableFileError, read_text, read_toml
from riverrun.config.value_parsing import parse_value
from riverrun.errors import ConfigError

# Variables that begin like a setting's and are not one.
OTHER_VARIABLES = frozenset({"RIVERRUN_PROJECT", "RIVERRUN_PROFILE", "RIVERRUN_DEBUG"})
DEFAULT_ORIGIN = "default"
# The origin of an address that nobody configured: that of the project's own servers.
RUNNING_ORIGIN = "running cluster"
# More problems than this are counted, not listed.
_MAX_PROBLEMS = 50


@dataclass(frozen=True)
class LoadedSettings:
    """Checked settings, their project, and the origin of each value."""

    project: Project
    settings: Settings
    profile: str
    origins: Mapping[str, str]

    @property
    def attached(self) -> bool:
        """Whether the settings name a cluster that riverrun does not run."""
        return bool(self.settings.kafka.bootstrap_servers) and not self.origins["kafka.bootstrap_servers"].startswith(
            RUNNING_ORIGIN
        )

    @property
    def druid_attached(self) -> bool:
        """Whether the settings name a Druid that riverrun does not run."""
        return bool(self.settings.druid.url) and not self.origins["druid.url"].startswith(RUNNING_ORIGIN)

    @property
    def connect_attached(self) -> bool:
        """Whether the settings name a Kafka Connect that riverrun does not run."""
        return bool(self.settings.connect.url) and not self.origins["connect.url"].startswith(RUNNING_ORIGIN)

    @property
    def registry_attached(self) -> bool:
        """Whether the settings name a schema registry that riverrun does not run."""
        return bool(self.settings.registry.url) and not self.origins["registry.url"].startswith(RUNNING_ORIGIN)

    def rows(self) -> list[dict[str, Any]]:
        """One row per setting, secrets starred: what `riverrun config` prints."""
        return [
            {
                "setting": spec.key,
                "value": _masked(getattr(getattr(self.settings, spec.section), spec.name)),
                "origin": self.origins[spec.key],
            }
            for spec in setting_specs()
        ]


def _masked(value: Any) -> Any:
    if isinstance(value, Secret):
        return str(value)
    if isinstance(value, Mapping):
        return {name: MASK if looks_secret(name) else entry for name, entry in value.items()}
    return hide_login(value) if isinstance(value, str) else value


def looks_secret(name: str) -> bool:
    """Whether a free-form property's name says that its value is not for the screen."""
    return any(word in name.lower() for word in ("password", "secret", "token", "jaas", "credential", "key.pem"))


def load(
    project: Project | None = None,
    *,
    flags: Mapping[str, Any] | None = None,
    profile: str = "",
    environ: Mapping[str, str] | None = None,
    secrets: bool = True,
) -> LoadedSettings:
    """Load the settings of a project (by default, of the one the current folder is in).

    `flags` maps keys such as "kafka.port" to values; None means that the flag was not given. With `secrets` False, a
    missing secret is a problem only when it is revealed: a command that inspects a pipeline file logs in nowhere.
    """
    environ = os.environ if environ is None else environ
    project = project or find_project(environ=environ)
    origin = "flag --profile" if profile else "environment RIVERRUN_PROFILE"
    profile = profile or environ.get("RIVERRUN_PROFILE", "")
    loader = _Loader(project, environ, secrets=secrets)
    loader.defaults()
    loader.file(profile, origin)
    loader.environment()
    loader.flags(flags or {})
    loader.finish()
    if loader.problems:
        raise ConfigError(loader.problems.listed())
    sections: dict[str, Any] = {
        section: cls(**{s.name: loader.values[s.key] for s in loader.specs.values() if s.section == section})
        for section, cls in SECTIONS.items()
    }
    return LoadedSettings(project, Settings(**sections), profile, loader.origins)


class _Problems(list[str]):
    """The problems, each a short text; past the maximum, only how many more there are."""

    more = 0

    @property
    def full(self) -> bool:
        return len(self) >= _MAX_PROBLEMS

    def append(self, problem: str) -> None:
        if self.full:
            self.more += 1
        else:
            super().append(truncated(problem, 1000))

    def listed(self) -> list[str]:
        return [*self, f"and {self.more} more"] if self.more else list(self)


class _Loader:
    """Applies the layers, lowest first; the last one to name a setting wins."""

    def __init__(self, project: Project, environ: Mapping[str, str], *, secrets: bool = True) -> None:
        self.secrets = secrets
        self.project = project
        self.environ = environ
        self.specs = {spec.key: spec for spec in setting_specs()}
        self.values: dict[str, Any] = {}
        self.origins: dict[str, str] = {}
        self.problems = _Problems()
        # Whether the whole file could be read: only then settings are compared with one another.
        self.complete = True

    def defaults(self) -> None:
        for key, spec in self.specs.items():
            self.values[key] = spec.default
            self.origins[key] = DEFAULT_ORIGIN

    def file(self, profile: str, origin: str) -> None:
        toml = read_toml(self.project.config_file)
        self.complete = not toml.problems
        for problem in toml.problems:
            self.problems.append(problem)
        content = dict(toml.content)
        profiles = content.pop("profile", {})
        self._tables(content, (), toml)
        if not isinstance(profiles, dict):
            self.problems.append(
                f"{toml.location('profile')}: `profile` must hold tables, such as [profile.prod.kafka]"
            )
            return
        for name, tables in profiles.items():
            if isinstance(tables, dict):
                self._tables(tables, ("profile", name), toml, keep=name == profile)
            else:
                self.problems.append(
                    f"{toml.location('profile', name)}: profile.{truncated(name)} "
                    "must hold tables, such as [profile.prod.kafka]"
                )
        if profile and profile not in profiles and self.complete:
            known = did_you_mean(profile, profiles) or f"; it has: {truncated(', '.join(profiles)) or 'none'}"
            self.problems.append(f"{origin}: there is no profile {format_value(profile)} in {toml.name}{known}")

    def _tables(self, content: Mapping[str, Any], above: tuple[str, ...], toml: TomlFile, *, keep: bool = True) -> None:
        """Take the settings of some tables; without `keep`, only check them: they belong to a profile that is not
        selected."""
        for section, table in content.items():
            name = truncated(".".join((*above, section)))
            if section not in SECTIONS:
                self._unknown(
                    toml.location(*above, section), f"unknown section [{name}]", section, [*SECTIONS, "profile"]
                )
            elif not isinstance(table, dict):
                self.problems.append(f"{toml.location(*above, section)}: [{name}] must be a table")
            else:
                for key, value in table.items():
                    self._file_value((*above, section, key), value, toml, keep=keep)

    def _unknown(self, origin: str, what: str, word: str, known: Sequence[str]) -> None:
        self.problems.append("" if self.problems.full else f"{origin}: {what}{did_you_mean(word, known)}")

    def _file_value(self, keys: tuple[str, ...], value: Any, toml: TomlFile, *, keep: bool) -> None:
        origin, key = toml.location(*keys), truncated(".".join(keys))
        section, name = keys[-2:]
        spec = self.specs.get(f"{section}.{name}")
        if spec is None:
            known = [spec.name for spec in self.specs.values() if spec.section == section]
            self._unknown(origin, f"unknown setting {key}", name, known)
        elif spec.secret:
            self._file_secret(spec, key, value, origin, keep=keep)
        else:
            self._set(spec, value, origin, key=key, keep=keep)

    def _file_secret(self, spec: SettingSpec, key: str, value: Any, origin: str, *, keep: bool) -> None:
        match value:
            case {"env": str(name)} if len(value) == 1:
                if keep and name not in self.environ:
                    self._missing_secret(
                        spec, f"{origin}: {key} asks for the variable {truncated(name)}, which is not set"
                    )
                elif keep:
                    self.values[spec.key] = Secret(self.environ[name])
                    self.origins[spec.key] = f"{origin} → variable {name}"
            case {"file": str(name)} if len(value) == 1:
                if keep:
                    self._secret_file(spec, self.project.root / Path(name).expanduser(), origin)
            case _:
                self.problems.append(
                    f'{origin}: {key} is a secret and does not belong here: write {{ env = "NAME" }} or '
                    '{ file = "PATH" } instead of its value'
                )

    def _secret_file(self, spec: SettingSpec, path: Path, origin: str) -> None:
        try:
            self.values[spec.key] = Secret(read_text(path, MAX_SECRET_BYTES, "a secret has").rstrip("\r\n"))
            self.origins[spec.key] = f"{origin} → file {path}"
        except UnreadableFileError as error:
            reason = str(error).removeprefix("cannot be read: ")
            self._missing_secret(
                spec,
                f"{origin}: {spec.key} asks for the file {truncated(str(path))}, which cannot be read: {reason}",
            )

    def _missing_secret(self, spec: SettingSpec, problem: str) -> None:
        if self.secrets:
            self.problems.append(problem)
        else:
            self.values[spec.key], self.origins[spec.key] = MissingSecret(problem), "nowhere"

    def environment(self) -> None:
        known = {spec.environment: spec for spec in self.specs.values() if not spec.table}
        for name, value in self.environ.items():
            if not name.startswith(ENVIRONMENT_PREFIX) or name in OTHER_VARIABLES:
                continue
            origin = f"environment {truncated(name)}"
            if name.endswith("_FILE") and (spec := known.get(name.removesuffix("_FILE"))) and spec.secret:
                self._secret_file(spec, Path(value), origin)
            elif (spec := known.get(name)) is None:
                self._unknown(origin, "no such setting", name, list(known))
            elif spec.secret:
                self.values[spec.key], self.origins[spec.key] = Secret(value), origin
            else:
                self._set(spec, value, origin, from_text=True)

    def flags(self, flags: Mapping[str, Any]) -> None:
        for key, value in flags.items():
            if value is not None:
                self._set(self.specs[key], value, f"flag --{self.specs[key].name.replace('_', '-')}")

    def _set(
        self, spec: SettingSpec, value: Any, origin: str, *, key: str = "", from_text: bool = False, keep: bool = True
    ) -> None:
        try:
            parsed_value = parse_value(spec, value, from_text=from_text)
        except ValueError as error:
            self.problems.append(f"{origin}: {key or spec.key} {error}")
            return
        if keep:
            self.values[spec.key], self.origins[spec.key] = parsed_value, origin

    def finish(self) -> None:
        """Check what depends on several settings, and apply the running cluster."""
        if not self.complete:
            return
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
        self._check_spark()
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
                self.origins[key] = f"{RUNNING_ORIGIN} (pid {state.pid})"

    def _login_of(self, server: str) -> dict[str, Any]:
        """The login for a server that the runner runs (connect, registry): it stored the password."""
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
        if self.values["registry.token"] and self.values["registry.username"]:
            self.problems.append(
                f"{self.origins['registry.token']}: registry.token and registry.username cannot be had at once"
            )

    def _check_postgres(self) -> None:
        url = self.values["postgres.url"]
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

    def _check_spark(self) -> None:
        if master := self.values["spark.config"].get("spark.master"):
            self.problems.append(
                f"{self.origins['spark.config']}: spark.config sets spark.master, which is a setting of its own: "
                f"write [spark] master = {format_value(master)}"
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
        proxied = self._check_proxies(wrong)
        if is_loopback(host):
            return
        if is_wildcard_host(host) and not value("names").strip(" ,"):
            wrong("host", f"is {host}: say in serve.names by which names browsers call this machine")
        if not secured and not proxied and not value("insecure"):
            wrong(
                "host",
                f"is {host}, and a login does not go through a network in clear: set serve.ssl_certificate_file and "
                "serve.ssl_key_file, name the proxy that has them in serve.trusted_proxies, or say serve.insecure = true "
                "(--insecure) where the network is all yours",
            )

    def _check_proxies(self, wrong: Callable[[str, str], None]) -> bool:
        """Whether proxies are configured that serve other machines for us."""
        try:
            proxied = bool(parse_networks(self.values["serve.trusted_proxies"]))
        except ValueError as error:
            wrong("trusted_proxies", f"names what is no proxy: {error}")
            return True
        if proxied and not self.values["serve.names"].strip(" ,"):
            wrong("trusted_proxies", "needs serve.names: by which names browsers call the proxy")
        return proxied
