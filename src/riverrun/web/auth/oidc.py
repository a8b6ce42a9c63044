"""Login at an OpenID Connect provider: the code flow with PKCE, with parts of Authlib and our HTTP client.

An `OidcLogin` is one login attempt: it is stored here, under a random id in a cookie, and ends when the browser comes back.
The provider's answer is accepted when the state is the login's, and the token is signed with a key of the provider, issued
by it, for us, for this login, and not too old; and only users on a list are allowed.
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
from riverrun.config.spec import ServeSettings, is_loopback, split_list
from riverrun.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from joserfc.jwk import KeySet

# The provider's metadata and keys are fetched again after this long, and keys also when a token names an unknown one.
DISCOVERY_TTL_SECONDS = 3600.0
MIN_KEY_REFRESH_SECONDS = 30.0
REQUEST_TIMEOUT_SECONDS = 10.0
# Allowed difference between clocks.
LEEWAY_SECONDS = 60
# Never `none`, and no algorithm with a shared secret.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
_LOG = logging.getLogger(__name__)


class LoginRefusedError(Exception):
    """The login is refused. `reason` is one of a few words, for the login page."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(detail or reason)
        self.reason = reason


def _random_token() -> str:
    return secrets.token_urlsafe(32)


@dataclass(frozen=True)
class OidcLogin:
    """One login at the provider. `redirect_uri` is where it sends the browser back to,
    `next_path` where the browser goes after that."""

    redirect_uri: str
    next_path: str
    state: str = field(default_factory=_random_token, repr=False)
    nonce: str = field(default_factory=_random_token, repr=False)
    verifier: str = field(default_factory=lambda: secrets.token_urlsafe(48), repr=False)


class PendingOidcLogins:
    """Logins that are not finished yet. Each can be finished once."""

    MAX_PENDING = 1000
    MAX_SECONDS = 600.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pending: dict[str, tuple[float, OidcLogin]] = {}

    def begin(self, login: OidcLogin) -> str:
        while len(self._pending) >= self.MAX_PENDING:
            del self._pending[next(iter(self._pending))]
        login_id = _random_token()
        self._pending[login_id] = (self._clock(), login)
        return login_id

    def end(self, login_id: str) -> OidcLogin | None:
        began, login = self._pending.pop(login_id, (0.0, None))
        return login if login is not None and self._clock() - began <= self.MAX_SECONDS else None


@dataclass(frozen=True)
class AllowedUsers:
    """The users who may log in. An e-mail address counts when the provider has verified it."""

    emails: frozenset[str] = frozenset()
    domains: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()

    def allows(self, claims: Mapping[str, Any]) -> bool:
        email = claims.get("email")
        if isinstance(email, str) and claims.get("email_verified") is True:
            name, separator, domain = email.lower().rpartition("@")
            if email.lower() in self.emails or (name and separator and domain in self.domains):
                return True
        groups = claims.get("groups")
        return isinstance(groups, list) and any(isinstance(group, str) and group in self.groups for group in groups)


class OidcProvider:
    """The provider that the settings name."""

    def __init__(
        self, issuer: str, client_id: str, secret: Secret, allowed: AllowedUsers, scope: str = "openid email profile"
    ) -> None:
        if not is_secure_url(issuer):
            raise ConfigError([f"serve.oidc_issuer {issuer} is not an https address"])
        self._issuer, self._client_id, self._secret = issuer, client_id, secret
        self._allowed, self._scope = allowed, scope
        self._metadata: Mapping[str, Any] = {}
        self._metadata_at = 0.0
        self._keys: KeySet | None = None
        self._keys_at = 0.0
        # Created once: it takes a while.
        self._tls = httpx.create_ssl_context()

    async def authorization_url(self, login: OidcLogin) -> str:
        """The provider's address to send the browser to."""
        from authlib.oauth2.rfc6749.parameters import prepare_grant_uri
        from authlib.oauth2.rfc7636 import create_s256_code_challenge

        metadata = await self._discover()
        url: str = prepare_grant_uri(
            metadata["authorization_endpoint"],
            client_id=self._client_id,
            response_type="code",
            redirect_uri=login.redirect_uri,
            scope=self._scope,
            state=login.state,
            nonce=login.nonce,
            code_challenge=create_s256_code_challenge(login.verifier),
            code_challenge_method="S256",
        )
        return url

    async def user_of(self, login: OidcLogin, params: Mapping[str, str]) -> str:
        """The user of a finished login. LoginRefusedError says why it is refused."""
        if not hmac.compare_digest(params.get("state", "").encode(), login.state.encode()):
            raise LoginRefusedError("state")
        metadata = await self._discover()
        # RFC 9207: the answer names its issuer, if the provider supports that.
        if (issuer := params.get("iss")) is not None and issuer != self._issuer:
            raise LoginRefusedError("state", f"the answer is by {issuer!r}")
        if "code" not in params:
            raise LoginRefusedError("denied", params.get("error", "no code"))
        token = await self._token(metadata, params["code"], login)
        claims = await self._claims(token, login)
        if not self._allowed.allows(claims):
            raise LoginRefusedError("not-allowed", "not on a list")
        email = claims.get("email")
        return email if isinstance(email, str) else str(claims["sub"])

    async def _token(self, metadata: Mapping[str, Any], code: str, login: OidcLogin) -> str:
        content = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": login.redirect_uri,
            "client_id": self._client_id,
            "code_verifier": login.verifier,
        }
        auth = None
        if self._secret:
            if "client_secret_basic" in metadata.get("token_endpoint_auth_methods_supported", ["client_secret_basic"]):
                auth = httpx.BasicAuth(self._client_id, self._secret.reveal())
            else:
                content["client_secret"] = self._secret.reveal()
        response = await self._call("POST", metadata["token_endpoint"], data=content, auth=auth)
        token = response.get("id_token")
        if not isinstance(token, str):
            raise LoginRefusedError("provider", "it gave no id_token")
        return token

    async def _claims(self, token: str, login: OidcLogin) -> Mapping[str, Any]:
        from authlib.oidc.core import CodeIDToken
        from joserfc import jwt
        from joserfc.errors import JoseError

        try:
            keys = await self._key_set(refresh=False)
            try:
                decoded = jwt.decode(token, keys, algorithms=ALGORITHMS)
            except (JoseError, ValueError):
                # The provider may have new keys.
                if (newer := await self._key_set(refresh=True)) is keys:
                    raise
                decoded = jwt.decode(token, newer, algorithms=ALGORITHMS)
            claims: Mapping[str, Any] = decoded.claims
            options = {
                "iss": {"essential": True, "value": self._issuer},
                "aud": {"essential": True, "value": self._client_id},
            }
            params = {"nonce": login.nonce, "client_id": self._client_id}
            CodeIDToken(claims, decoded.header, options, params).validate(leeway=LEEWAY_SECONDS)
        except (JoseError, ValueError, TypeError) as error:
            raise LoginRefusedError("token", f"{type(error).__name__}: {error}") from error
        return claims

    async def _discover(self) -> Mapping[str, Any]:
        if not self._metadata or time.monotonic() - self._metadata_at > DISCOVERY_TTL_SECONDS:
            metadata = await self._call("GET", f"{self._issuer.rstrip('/')}/.well-known/openid-configuration")
            if metadata.get("issuer") != self._issuer:
                raise LoginRefusedError("provider", f"it calls itself {metadata.get('issuer')!r}, not {self._issuer!r}")
            for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
                if not isinstance(metadata.get(name), str) or not is_secure_url(metadata[name]):
                    raise LoginRefusedError("provider", f"its {name} is no https address")
            self._metadata, self._metadata_at = metadata, time.monotonic()
        return self._metadata

    async def _key_set(self, *, refresh: bool) -> "KeySet":
        from joserfc.jwk import KeySet

        age = time.monotonic() - self._keys_at
        if self._keys is None or age > (MIN_KEY_REFRESH_SECONDS if refresh else DISCOVERY_TTL_SECONDS):
            content: Any = await self._call("GET", (await self._discover())["jwks_uri"])
            self._keys, self._keys_at = KeySet.import_key_set(content), time.monotonic()
        return self._keys

    async def _call(self, method: str, address: str, **options: Any) -> dict[str, Any]:
        try:
            async with httpx.AsyncClient(timeout=REQUEST_TIMEOUT_SECONDS, verify=self._tls) as client:
                response = await client.request(method, address, headers={"accept": "application/json"}, **options)
            response.raise_for_status()
            content = response.json()
        except (httpx.HTTPError, ValueError) as error:
            _LOG.warning("the login provider at %s does not help: %s", urlsplit(address).netloc, type(error).__name__)
            raise LoginRefusedError("provider", f"{method} {address}: {type(error).__name__}") from error
        if not isinstance(content, dict):
            raise LoginRefusedError("provider", f"{address} gives no object")
        return content


def is_secure_url(address: str) -> bool:
    """Whether a connection to it is private: TLS, or on this machine."""
    parts = urlsplit(address)
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))


def provider_of(settings: ServeSettings) -> OidcProvider:
    """The provider of the settings. UsageError where its packages are not installed."""
    try:
        import authlib.oidc.core  # noqa: F401
        import joserfc  # noqa: F401
    except ModuleNotFoundError as error:
        raise UsageError(
            f"serve.oidc_issuer needs {error.name}, which is not installed", hint='pip install "riverrun[oidc]"'
        ) from error
    lower = settings.oidc_emails.lower(), settings.oidc_domains.lower()
    allowed = AllowedUsers(
        frozenset(split_list(lower[0])), frozenset(split_list(lower[1])), frozenset(split_list(settings.oidc_groups))
    )
    return OidcProvider(
        settings.oidc_issuer, settings.oidc_client_id, settings.oidc_client_secret, allowed, settings.oidc_scope
    )
