"""From the settings to the door: where others are served, and what is asked of them."""

from collections.abc import Callable
from pathlib import Path

from riverrun.config.networks import networks_of
from riverrun.config.project import Project
from riverrun.config.spec import ServeSettings, is_everywhere, is_loopback, listed
from riverrun.dash.door.door import Door
from riverrun.dash.door.oidc import provider_of
from riverrun.dash.door.password import project_password
from riverrun.dash.door.sessions import Sessions
from riverrun.store.listening import Outside


def open_door(settings: ServeSettings, project: Project, notice: Callable[[str], None]) -> tuple[Door, Outside] | None:
    """The door and where it stands; None where only this machine is served. `notice` hears of a password that is made."""
    if not settings.beyond:
        return None
    sessions = Sessions(settings.session_idle_minutes * 60.0, settings.session_hours * 3600.0)
    if settings.oidc_issuer:
        door = Door(provider=provider_of(settings), sessions=sessions)
    else:
        password = project_password(project.home)
        if password.made_in is not None:
            notice(f"a password for the dashboards is made, in {password.made_in}")
        door = Door(password=password, sessions=sessions)
    proxies = networks_of(settings.trusted_proxies)
    if not settings.ssl_certificate_file:
        if not proxies:
            notice("others are served without TLS: whoever is on the way reads the password and all figures")
        elif not is_loopback(settings.host):
            notice("between the proxy and here there is no TLS: whoever is there reads the password and all figures")
    return door, Outside(
        settings.host,
        settings.port,
        names_of(settings),
        door.around,
        _file(project, settings.ssl_certificate_file),
        _file(project, settings.ssl_key_file),
        settings.ssl_key_password,
        proxies=proxies,
        https_only=not settings.insecure,
    )


def names_of(settings: ServeSettings) -> tuple[str, ...]:
    """What browsers may call this machine, as a Host header has it. The first is the one we tell."""
    host = () if is_everywhere(settings.host) else (settings.host,)
    return tuple(_as_header(each.lower()) for each in (*listed(settings.names), *host))


def _as_header(name: str) -> str:
    return f"[{name}]" if ":" in name and not name.startswith("[") else name


def _file(project: Project, name: str) -> Path | None:
    return project.root / Path(name).expanduser() if name else None
