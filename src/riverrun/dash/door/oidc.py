"""Logging in at an OpenID Connect provider: the code flow with PKCE, by Authlib's parts and our HTTP client.

A `Visit` is one way there and back: it is remembered here, under a random number in a cookie, and ends when the browser
comes back. What the provider says is believed when the state is the visit's, and the token is signed by a key of the
provider's, made by it, for us, for this visit and not too old; and only who is on a list gets in.
"""

import hmac
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx

from riverrun.config.secret import Secret
from riverrun.config.spec import ServeSettings, is_loopback, listed
from riverrun.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from joserfc.jwk import KeySet

# A provider's description and keys are asked for again after this long, and keys when a token names one we do not have.
KEEP_SECONDS = 3600.0
KEYS_SECONDS = 30.0
CALL_SECONDS = 10.0
# Clocks differ.
LEEWAY_SECONDS = 60
# Never `none`, and nothing that is signed with a secret we share.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
_LOG = logging.getLogger(__name__)


class Refused(Exception):  # noqa: N818  -- an answer, not an error of riverrun's
    """Who came back does not get in. `why` is one of a few words, for the login page."""

    def __init__(self, why: str, detail: str = "") -> None:
        super().__init__(detail or why)
        self.why = why


def _random() -> str:
    return secrets.token_urlsafe(32)


@dataclass(frozen=True)
class Visit:
    """One way to the provider and back. `back` is the address it sends the browser to, `then` where that goes on to."""

    back: str
    then: str
    state: str = field(default_factory=_random, repr=False)
    nonce: str = field(default_factory=_random, repr=False)
    verifier: str = field(default_factory=lambda: secrets.token_urlsafe(48), repr=False)


class Visits:
    """Those who are on their way. Each comes back once."""

    MOST = 1000
    MOST_SECONDS = 600.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._found: dict[str, tuple[float, Visit]] = {}

    def begin(self, visit: Visit) -> str:
        while len(self._found) >= self.MOST:
            del self._found[next(iter(self._found))]
        number = _random()
        self._found[number] = (self._clock(), visit)
        return number

    def end(self, number: str) -> Visit | None:
        began, visit = self._found.pop(number, (0.0, None))
        return visit if visit is not None and self._clock() - began <= self.MOST_SECONDS else None


@dataclass(frozen=True)
class Allowed:
    """Who may look. An e-mail address counts when the provider has verified it."""

    emails: frozenset[str] = frozenset()
    domains: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()

    def lets_in(self, claims: Mapping[str, Any]) -> bool:
        email = claims.get("email")
        if isinstance(email, str) and claims.get("email_verified") is True:
            name, at, domain = email.lower().rpartition("@")
            if email.lower() in self.emails or (name and at and domain in self.domains):
                return True
        groups = claims.get("groups")
        return isinstance(groups, list) and any(isinstance(each, str) and each in self.groups for each in groups)


class Provider:
    """The provider that the settings name."""

    def __init__(
        self, issuer: str, client_id: str, secret: Secret, allowed: Allowed, scope: str = "openid email profile"
    ) -> None:
        if not is_safe(issuer):
            raise ConfigError([f"serve.oidc_issuer {issuer} is not an https address"])
        self._issuer, self._client_id, self._secret = issuer, client_id, secret
        self._allowed, self._scope = allowed, scope
        self._told: Mapping[str, Any] = {}
        self._told_at = 0.0
        self._keys: KeySet | None = None
        self._keys_at = 0.0
        # Made once: it takes a while.
        self._tls = httpx.create_ssl_context()

    async def address(self, visit: Visit) -> str:
        """Where the browser has to go."""
        from authlib.oauth2.rfc6749.parameters import prepare_grant_uri
        from authlib.oauth2.rfc7636 import create_s256_code_challenge

        told = await self._description()
        found: str = prepare_grant_uri(
            told["authorization_endpoint"],
            client_id=self._client_id,
            response_type="code",
            redirect_uri=visit.back,
            scope=self._scope,
            state=visit.state,
            nonce=visit.nonce,
            code_challenge=create_s256_code_challenge(visit.verifier),
            code_challenge_method="S256",
        )
        return found

    async def who(self, visit: Visit, came_with: Mapping[str, str]) -> str:
        """Who came back. Refused says why they do not get in."""
        if not hmac.compare_digest(came_with.get("state", "").encode(), visit.state.encode()):
            raise Refused("state")
        told = await self._description()
        # RFC 9207: who answers says who they are, where they can.
        if (issuer := came_with.get("iss")) is not None and issuer != self._issuer:
            raise Refused("state", f"the answer is by {issuer!r}")
        if "code" not in came_with:
            raise Refused("denied", came_with.get("error", "no code"))
        token = await self._token(told, came_with["code"], visit)
        claims = await self._claims(token, visit)
        if not self._allowed.lets_in(claims):
            raise Refused("not-allowed", "not on a list")
        email = claims.get("email")
        return email if isinstance(email, str) else str(claims["sub"])

    async def _token(self, told: Mapping[str, Any], code: str, visit: Visit) -> str:
        content = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": visit.back,
            "client_id": self._client_id,
            "code_verifier": visit.verifier,
        }
        auth = None
        if self._secret:
            if "client_secret_basic" in told.get("token_endpoint_auth_methods_supported", ["client_secret_basic"]):
                auth = httpx.BasicAuth(self._client_id, self._secret.reveal())
            else:
                content["client_secret"] = self._secret.reveal()
        answer = await self._call("POST", told["token_endpoint"], data=content, auth=auth)
        token = answer.get("id_token")
        if not isinstance(token, str):
            raise Refused("provider", "it gave no id_token")
        return token

    async def _claims(self, token: str, visit: Visit) -> Mapping[str, Any]:
        from authlib.oidc.core import CodeIDToken
        from joserfc import jwt
        from joserfc.errors import JoseError

        try:
            keys = await self._key_set(new=False)
            try:
                read = jwt.decode(token, keys, algorithms=ALGORITHMS)
            except (JoseError, ValueError):
                # They may have new keys.
                if (newer := await self._key_set(new=True)) is keys:
                    raise
                read = jwt.decode(token, newer, algorithms=ALGORITHMS)
            claims: Mapping[str, Any] = read.claims
            options = {
                "iss": {"essential": True, "value": self._issuer},
                "aud": {"essential": True, "value": self._client_id},
            }
            params = {"nonce": visit.nonce, "client_id": self._client_id}
            CodeIDToken(claims, read.header, options, params).validate(leeway=LEEWAY_SECONDS)
        except (JoseError, ValueError, TypeError) as error:
            raise Refused("token", f"{type(error).__name__}: {error}") from error
        return claims

    async def _description(self) -> Mapping[str, Any]:
        if not self._told or time.monotonic() - self._told_at > KEEP_SECONDS:
            told = await self._call("GET", f"{self._issuer.rstrip('/')}/.well-known/openid-configuration")
            if told.get("issuer") != self._issuer:
                raise Refused("provider", f"it calls itself {told.get('issuer')!r}, not {self._issuer!r}")
            for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
                if not isinstance(told.get(name), str) or not is_safe(told[name]):
                    raise Refused("provider", f"its {name} is no https address")
            self._told, self._told_at = told, time.monotonic()
        return self._told

    async def _key_set(self, *, new: bool) -> "KeySet":
        from joserfc.jwk import KeySet

        age = time.monotonic() - self._keys_at
        if self._keys is None or age > (KEYS_SECONDS if new else KEEP_SECONDS):
            content: Any = await self._call("GET", (await self._description())["jwks_uri"])
            self._keys, self._keys_at = KeySet.import_key_set(content), time.monotonic()
        return self._keys

    async def _call(self, method: str, address: str, **options: Any) -> dict[str, Any]:
        try:
            async with httpx.AsyncClient(timeout=CALL_SECONDS, verify=self._tls) as client:
                answer = await client.request(method, address, headers={"accept": "application/json"}, **options)
            answer.raise_for_status()
            content = answer.json()
        except (httpx.HTTPError, ValueError) as error:
            _LOG.warning("the login provider at %s does not help: %s", urlsplit(address).netloc, type(error).__name__)
            raise Refused("provider", f"{method} {address}: {type(error).__name__}") from error
        if not isinstance(content, dict):
            raise Refused("provider", f"{address} gives no object")
        return content


def is_safe(address: str) -> bool:
    """Whether what is said there stays between us: TLS, or this machine."""
    parts = urlsplit(address)
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))


def provider_of(settings: ServeSettings) -> Provider:
    """The provider of the settings. UsageError where its packages are not installed."""
    try:
        import authlib.oidc.core  # noqa: F401
        import joserfc  # noqa: F401
    except ModuleNotFoundError as error:
        raise UsageError(
            f"serve.oidc_issuer needs {error.name}, which is not installed", hint='pip install "riverrun[oidc]"'
        ) from error
    lower = settings.oidc_emails.lower(), settings.oidc_domains.lower()
    allowed = Allowed(frozenset(listed(lower[0])), frozenset(listed(lower[1])), frozenset(listed(settings.oidc_groups)))
    return Provider(
        settings.oidc_issuer, settings.oidc_client_id, settings.oidc_client_secret, allowed, settings.oidc_scope
    )
