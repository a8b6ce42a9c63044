"""Builds the login gate and the public listener from the settings."""

from collections.abc import Callable
from pathlib import Path

from riverrun.config.networks import parse_networks
from riverrun.config.project import Project
from riverrun.config.spec import ServeSettings, is_loopback, is_wildcard_host, split_list
from riverrun.dashboard.login import LoginGate
from riverrun.web.auth.oidc import provider_of
from riverrun.web.auth.password import project_password
from riverrun.web.auth.sessions import LoginSessions
from riverrun.web.server import PublicListener


def open_login_gate(
    settings: ServeSettings, project: Project, notice: Callable[[str], None]
) -> tuple[LoginGate, PublicListener] | None:
    """The login gate and its listener; None when only this machine is served. `notice` gets a new password's file."""
    if not settings.beyond:
        return None
    sessions = LoginSessions(settings.session_idle_minutes * 60.0, settings.session_hours * 3600.0)
    if settings.oidc_issuer:
        gate = LoginGate(provider=provider_of(settings), sessions=sessions)
    else:
        password = project_password(project.home)
        if password.created_file is not None:
            notice(f"a password for the dashboards is made, in {password.created_file}")
        gate = LoginGate(password=password, sessions=sessions)
    proxies = parse_networks(settings.trusted_proxies)
    if not settings.ssl_certificate_file:
        if not proxies:
            notice("others are served without TLS: whoever is on the way reads the password and all figures")
        elif not is_loopback(settings.host):
            notice("between the proxy and here there is no TLS: whoever is there reads the password and all figures")
    return gate, PublicListener(
        settings.host,
        settings.port,
        allowed_hosts(settings),
        gate.middleware,
        _file(project, settings.ssl_certificate_file),
        _file(project, settings.ssl_key_file),
        settings.ssl_key_password,
        proxies=proxies,
        https_only=not settings.insecure,
    )


def allowed_hosts(settings: ServeSettings) -> tuple[str, ...]:
    """The allowed Host headers of public requests. The first one is shown to users."""
    host = () if is_wildcard_host(settings.host) else (settings.host,)
    return tuple(_host_header(name.lower()) for name in (*split_list(settings.names), *host))


def _host_header(name: str) -> str:
    return f"[{name}]" if ":" in name and not name.startswith("[") else name


def _file(project: Project, name: str) -> Path | None:
    return project.root / Path(name).expanduser() if name else None
