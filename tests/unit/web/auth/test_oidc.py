"""Logging in at a provider: the way there and back works, and nothing that is wrong on it lets anybody in."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from joserfc.jwk import RSAKey

from riverrun.config.secret import Secret
from riverrun.config.spec import ServeSettings
from riverrun.errors import ConfigError
from riverrun.web.auth import oidc
from riverrun.web.auth.oidc import AllowedUsers, OidcLogin, OidcProvider, PendingOidcLogins, provider_of
from support.city import City, city_app
from support.guarded import Guarded, cookie_parts
from support.provider import CLIENT, SECRET, TestProvider

ALLOWED = AllowedUsers(frozenset({"ada@example.org"}), frozenset({"energy.example"}), frozenset({"ops"}))
_addresses = iter(f"127.0.3.{number}" for number in range(1, 255))


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[TestProvider, Guarded]]:
    with TestProvider() as there:
        provider = OidcProvider(there.issuer, CLIENT, Secret(SECRET), ALLOWED)
        with Guarded(city_app(), City(2).store, provider=provider) as guarded:
            yield there, guarded


@pytest.fixture
def there(running: tuple[TestProvider, Guarded], monkeypatch: pytest.MonkeyPatch) -> Iterator[TestProvider]:
    # Each test may sign with a key of its own.
    monkeypatch.setattr(oidc, "MIN_KEY_REFRESH_SECONDS", 0.0)
    found = running[0]
    claims, key = dict(found.claims), found.key
    yield found
    found.claims, found.lies, found.denies = claims, {}, False
    found.key = found.signing = key
    found.algorithm = "RS256"


@pytest.fixture
def guarded(running: tuple[TestProvider, Guarded]) -> Guarded:
    return running[1]


@pytest.fixture
def client(guarded: Guarded) -> Iterator[httpx.Client]:
    with guarded.client(address=next(_addresses)) as made:
        yield made


def go(client: httpx.Client, then: str = "/?d=more") -> str:
    """To the provider; gives the address it sends us back to."""
    led = client.get("/login/oidc", params={"next": then})
    assert led.status_code == 303, led.headers
    found = cookie_parts(led, "riverrun-visit")
    assert found["samesite"] == "lax"
    assert "httponly" in found
    with httpx.Client(trust_env=False) as browser:
        return browser.get(led.headers["location"]).headers["location"]


def failed(client: httpx.Client, answer: httpx.Response) -> str:
    """Why one did not get in."""
    assert answer.status_code == 303
    assert not [each for each in answer.headers.get_list("set-cookie") if each.startswith("riverrun=")]
    assert client.get("/api/login").json()["in"] is False
    assert client.get("/api/dashboards").status_code == 401
    return parse_qs(urlsplit(answer.headers["location"]).query)["failed"][0]


def test_there_and_back(client: httpx.Client, there: TestProvider) -> None:
    assert client.get("/api/login").json() == {"login": "provider", "in": False, "who": ""}
    answer = client.get(go(client))
    assert answer.headers["location"] == "/login?next=%2F%3Fd%3Dmore"
    assert cookie_parts(answer)["samesite"] == "strict"
    assert client.get("/api/login").json() == {"login": "provider", "in": True, "who": "ada@example.org"}
    assert client.get("/api/dashboards").status_code == 200
    # A password is not looked at here.
    assert client.post("/login", json={"password": "x"}).status_code == 403


def test_a_code_is_good_once(client: httpx.Client, there: TestProvider) -> None:
    back = go(client)
    assert "next" in client.get(back).headers["location"]
    client.cookies.clear()
    assert failed(client, client.get(back)) == "state"


def test_somebody_elses_way_back(client: httpx.Client, guarded: Guarded, there: TestProvider) -> None:
    """Login CSRF: an address made by another browser does not log this one in, with or without a visit of its own."""
    with guarded.client(address=next(_addresses)) as attacker:
        theirs = go(attacker)
    assert failed(client, client.get(theirs)) == "state"
    go(client)
    assert failed(client, client.get(theirs)) == "state"


@pytest.mark.parametrize("change", ["state=x", "state=", "nothing=1"])
def test_a_wrong_state(client: httpx.Client, there: TestProvider, change: str) -> None:
    code = parse_qs(urlsplit(go(client)).query)["code"][0]
    assert failed(client, client.get(f"/login/back?code={code}&{change}")) == "state"


def test_an_answer_by_another_provider(client: httpx.Client, there: TestProvider) -> None:
    assert failed(client, client.get(go(client) + "&iss=https%3A%2F%2Fother.test")) == "state"


@pytest.mark.parametrize(
    "lies",
    [
        {"nonce": "another"},
        {"nonce": None},
        {"aud": "another"},
        {"aud": None},
        {"aud": [CLIENT, "another"], "azp": "another"},
        {"iss": "https://other.test"},
        {"iss": None},
        {"exp": 1_000_000_000},
        {"exp": None},
        {"iat": 4_000_000_000},
        {"sub": None},
    ],
    ids=str,
)
def test_a_token_that_is_not_for_this(client: httpx.Client, there: TestProvider, lies: dict[str, Any]) -> None:
    there.lies = lies
    assert failed(client, client.get(go(client))) == "token"


def test_a_token_that_another_key_has_signed(client: httpx.Client, there: TestProvider) -> None:
    there.signing = RSAKey.generate_key(2048, {"kid": "one"})
    assert failed(client, client.get(go(client))) == "token"


@pytest.mark.parametrize("algorithm", ["none", "HS256"])
def test_a_token_that_anybody_could_have_signed(client: httpx.Client, there: TestProvider, algorithm: str) -> None:
    there.algorithm = algorithm
    assert failed(client, client.get(go(client))) == "token"


def test_new_keys_are_fetched_but_not_for_every_token(
    client: httpx.Client, there: TestProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    there.key = there.signing = RSAKey.generate_key(2048, {"kid": "two"})
    assert "next" in client.get(go(client)).headers["location"]
    monkeypatch.setattr(oidc, "MIN_KEY_REFRESH_SECONDS", 30.0)
    there.signing = RSAKey.generate_key(2048, {"kid": "three"})
    there.asked.clear()
    client.cookies.clear()
    assert failed(client, client.get(go(client))) == "token"
    assert "keys" not in there.asked


@pytest.mark.parametrize(
    ("claims", "gets_in"),
    [
        ({"email": "ADA@example.org"}, True),
        ({"email": "ada@example.org", "email_verified": False}, False),
        ({"email": "ada@example.org", "email_verified": None}, False),
        ({"email": "ada@example.org", "email_verified": "true"}, False),
        ({"email": "eve@example.org"}, False),
        ({"email": "bo@energy.example"}, True),
        ({"email": "bo@evil.energy.example"}, False),
        ({"email": "bo@energy.example@evil.test"}, False),
        ({"email": "@energy.example"}, False),
        ({"email": None, "groups": ["ops"]}, True),
        ({"email": None, "groups": "ops"}, False),
        ({"email": None, "groups": [["ops"], 1]}, False),
        ({"email": ["ada@example.org"]}, False),
    ],
)
def test_only_who_is_on_a_list(
    client: httpx.Client, there: TestProvider, claims: dict[str, Any], gets_in: bool
) -> None:
    there.claims |= claims
    answer = client.get(go(client))
    if gets_in:
        assert client.get("/api/dashboards").status_code == 200
    else:
        assert failed(client, answer) == "not-allowed"


def test_who_is_denied_there(client: httpx.Client, there: TestProvider) -> None:
    there.denies = True
    assert failed(client, client.get(go(client))) == "denied"


def test_a_provider_that_does_not_help() -> None:
    nobody = OidcProvider("http://127.0.0.1:9", CLIENT, Secret(), ALLOWED)
    with Guarded(city_app(), City(2).store, provider=nobody) as guarded, guarded.client() as client:
        assert failed(client, client.get("/login/oidc")) == "provider"
    with TestProvider() as there:
        there.issuer_says = "https://other.test"
        provider = OidcProvider(there.issuer, CLIENT, Secret(SECRET), ALLOWED)
        with Guarded(city_app(), City(2).store, provider=provider) as guarded, guarded.client() as client:
            assert failed(client, client.get("/login/oidc")) == "provider"


def test_small_parts() -> None:
    with pytest.raises(ConfigError, match="is not an https address"):
        provider_of(ServeSettings(oidc_issuer="http://login.test", oidc_client_id="x", oidc_emails="a@b.test"))
    assert isinstance(
        provider_of(ServeSettings(oidc_issuer="https://login.test", oidc_client_id="x", oidc_emails="a@b.test")),
        OidcProvider,
    )
    now = 0.0
    visits = PendingOidcLogins(lambda: now)
    number, visit = visits.begin(OidcLogin("x", "/")), OidcLogin("y", "/")
    late = visits.begin(visit)
    assert visits.end(number) is not None
    assert visits.end(number) is None
    now = 601
    assert visits.end(late) is None
    assert visit.state not in repr(visit)
    for _ in range(PendingOidcLogins.MAX_PENDING + 10):
        visits.begin(visit)
    assert len(visits._pending) == PendingOidcLogins.MAX_PENDING
