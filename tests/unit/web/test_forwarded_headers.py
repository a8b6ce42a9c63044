"""Behind a proxy that ends TLS: one can log in, and nobody else's word is taken for the proxy's."""

import contextlib
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
import trustme
from starlette.requests import Request

from riverrun.config import Project
from riverrun.config.networks import parse_networks
from riverrun.config.secret import Secret
from riverrun.config.spec import ServeSettings
from riverrun.dashboard.public_access import open_login_gate
from riverrun.web.auth.oidc import AllowedUsers, OidcProvider
from riverrun.web.auth.password import Password
from riverrun.web.forwarded_headers import apply_forwarded
from support.city import City, city_app
from support.guarded import PASSWORD, Guarded, cookie_parts
from support.provider import CLIENT, SECRET, TestProvider
from support.proxy import Forwarding, TlsProxy, usual

PROXY = "127.0.0.77"


@pytest.fixture(scope="module")
def city() -> City:
    made = City(2)
    made.run(2)
    return made


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, ssl.SSLContext]:
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    own = authority.issue_cert("127.0.0.1")
    own.cert_chain_pems[0].write_to_path(str(folder / "certificate.pem"))
    own.private_key_pem.write_to_path(str(folder / "key.pem"))
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return folder / "certificate.pem", folder / "key.pem", context


@contextlib.contextmanager
def behind(
    city: City,
    certificate: tuple[Path, Path, ssl.SSLContext],
    *,
    forwarding: Forwarding = usual,
    calls_from: str = PROXY,
    trusted: str = PROXY,
    **options: Any,
) -> Iterator[tuple[Guarded, httpx.Client, TlsProxy]]:
    """A server, a proxy in front of it, and a browser's client for the proxy, which sends its Origin as pages do."""
    with Guarded(city_app(), city.store, trusted_proxies=trusted, https_only=True, **options) as guarded:
        at = f"http://127.0.0.1:{guarded.port}"
        with TlsProxy(at, *certificate[:2], forwarding=forwarding, local_address=calls_from) as proxy:
            headers = {"origin": proxy.address}
            with httpx.Client(
                base_url=proxy.address, verify=certificate[2], trust_env=False, headers=headers
            ) as client:
                yield guarded, client, proxy


def test_one_logs_in_behind_a_proxy(city: City, certificate: tuple[Path, Path, ssl.SSLContext]) -> None:
    with behind(city, certificate) as (guarded, client, _):
        assert client.get("/api/dashboards").status_code == 401
        answer = client.post("/login", json={"password": PASSWORD})
        assert answer.status_code == 200, answer.text
        assert {"secure", "httponly"} <= set(cookie_parts(answer, "__Host-riverrun"))
        assert client.get("/api/dashboards").status_code == 200
        assert client.post("/api/query", json={"sql": "select 1 as n from prices limit 1"}).status_code == 200
        assert guarded.outside == "https://127.0.0.1"
        # Another page is still another page.
        foreign = client.post("/logout", json={}, headers={"origin": "https://evil.test"})
        assert foreign.status_code == 403
        assert "pages of others" in foreign.text
        assert client.post("/logout", json={}).status_code == 200


def test_a_provider_sends_back_to_the_proxy(city: City, certificate: tuple[Path, Path, ssl.SSLContext]) -> None:
    with TestProvider() as there:
        allowed = AllowedUsers(frozenset({"ada@example.org"}), frozenset(), frozenset())
        provider = OidcProvider(there.issuer, CLIENT, Secret(SECRET), allowed)
        with behind(city, certificate, provider=provider) as (_, client, proxy):
            led = client.get("/login/oidc")
            redirect = parse_qs(urlsplit(led.headers["location"]).query)["redirect_uri"][0]
            assert redirect == f"{proxy.address}/login/back"
            with httpx.Client(trust_env=False) as browser:
                back = browser.get(led.headers["location"]).headers["location"]
            assert cookie_parts(client.get(back), "__Host-riverrun")["value"]
            assert client.get("/api/login").json()["who"] == "ada@example.org"


def test_a_stranger_is_no_proxy(city: City, certificate: tuple[Path, Path, ssl.SSLContext]) -> None:
    """What an address says that is not trusted is not read: neither how it was called, nor by whom."""
    with behind(city, certificate, calls_from="127.0.0.78") as (_, client, _):
        refused = client.post("/login", json={"password": PASSWORD})
        assert refused.status_code == 403
        assert "serve.trusted_proxies names its address" in refused.json()["error"]["message"]
        assert client.get("/login", headers={"accept": "text/html"}).status_code == 403


def test_a_proxy_that_is_called_by_http(city: City, certificate: tuple[Path, Path, ssl.SSLContext]) -> None:
    def forwarding(request: Request) -> list[tuple[str, str]]:
        return [("host", request.headers["host"]), ("x-forwarded-proto", "http")]

    with behind(city, certificate, forwarding=forwarding) as (_, client, proxy):
        refused = client.get("/login", headers={"origin": proxy.address.replace("https", "http")})
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "HTTPS_ONLY")


def test_a_proxy_that_says_too_little(city: City, certificate: tuple[Path, Path, ssl.SSLContext]) -> None:
    with behind(city, certificate, forwarding=lambda request: [("host", request.headers["host"])]) as (_, client, _):
        refused = client.post("/login", json={"password": PASSWORD})
        assert refused.status_code == 403
        assert "the proxy has to send X-Forwarded-Proto" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    "added",
    [
        [("x-forwarded-proto", "https, http")],
        [("x-forwarded-proto", "https"), ("x-forwarded-proto", "https")],
        [("x-forwarded-proto", "gopher")],
        [("x-forwarded-proto", "https"), ("x-forwarded-host", "127.0.0.1, evil.test")],
    ],
)
def test_what_can_be_read_in_two_ways(
    city: City, certificate: tuple[Path, Path, ssl.SSLContext], added: list[tuple[str, str]]
) -> None:
    def forwarding(request: Request) -> list[tuple[str, str]]:
        return [("host", request.headers["host"]), *added]

    with behind(city, certificate, forwarding=forwarding) as (_, client, _):
        refused = client.get("/login")
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "BAD_PROXY_HEADERS")


def test_a_forwarded_name_must_be_ours(city: City, certificate: tuple[Path, Path, ssl.SSLContext]) -> None:
    def forwarding(request: Request) -> list[tuple[str, str]]:
        name = request.query_params["name"]
        return [("host", "127.0.0.1"), ("x-forwarded-proto", "https"), ("x-forwarded-host", name)]

    with behind(city, certificate, forwarding=forwarding) as (_, client, _):
        del client.headers["origin"]
        assert client.get("/login?name=dash.test").status_code == 200
        assert client.get("/login?name=evil.test").status_code == 403


def test_tries_are_counted_by_the_callers_address(
    city: City, certificate: tuple[Path, Path, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Password, "matches", lambda _, text: text == PASSWORD)

    def forwarding(request: Request) -> list[tuple[str, str]]:
        # The guesser makes up addresses; the proxy adds the one it sees.
        caller = request.query_params["caller"]
        lies = request.headers.get("x-forwarded-for", "")
        return [*usual(request)[:2], ("x-forwarded-for", f"{lies}, {caller}")]

    with behind(city, certificate, forwarding=forwarding) as (_, client, _):
        guesses = [
            client.post("/login?caller=192.0.2.1", json={"password": "x"}, headers={"x-forwarded-for": f"192.0.2.{n}"})
            for n in range(10, 17)
        ]
        assert [guess.status_code for guess in guesses] == [401] * 5 + [429] * 2
        assert client.post("/login?caller=192.0.2.2", json={"password": PASSWORD}).status_code == 200


@pytest.mark.parametrize(
    ("forwarded", "caller"),
    [
        ([], "10.0.0.9"),
        (["192.0.2.1"], "192.0.2.1"),
        (["6.6.6.6, 192.0.2.1"], "192.0.2.1"),
        (["6.6.6.6", "192.0.2.1, 10.0.0.8"], "192.0.2.1"),
        (["192.0.2.1:4711"], "192.0.2.1"),
        (["[2001:db8::7]:4711"], "2001:db8::7"),
        (["::ffff:192.0.2.1"], "192.0.2.1"),
        (["192.0.2.1, nonsense"], "10.0.0.9"),
        (["10.0.0.7, 10.0.0.8"], "10.0.0.7"),
    ],
)
def test_who_called(forwarded: list[str], caller: str) -> None:
    headers = [(b"host", b"dash.test"), *((b"x-forwarded-for", each.encode()) for each in forwarded)]
    scope = {"type": "http", "scheme": "http", "client": ("10.0.0.9", 1), "headers": headers}
    apply_forwarded(scope, parse_networks("10.0.0.0/8"))
    assert scope["client"] == (caller, 0)


def test_a_proxy_on_this_machine_serves_others(tmp_path: Path) -> None:
    """So a login is asked for, although the address is a loopback one; and no TLS of ours is needed for it."""
    settings = ServeSettings(names="dash.test", trusted_proxies="127.0.0.1")
    assert settings.beyond
    said: list[str] = []
    opened = open_login_gate(settings, Project(tmp_path), said.append)
    assert opened is not None
    assert opened[1].https_only
    assert opened[1].address(8440) == "https://dash.test"
    assert not [each for each in said if "TLS" in each]
