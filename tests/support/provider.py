"""A small OpenID Connect provider in the test's own process. It is a stand-in for what cannot be had here: somebody else's.

It checks what a provider checks (client, secret, redirect address, PKCE, each code once) and signs with a key of its own;
`lies` makes it say something wrong.
"""

import base64
import hashlib
import hmac
import json
import secrets
import socket
import threading
import time
from typing import Any, Self
from urllib.parse import parse_qs, urlencode

import uvicorn
from joserfc import jwt
from joserfc.jwk import RSAKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

CLIENT, SECRET = "riverrun-tests", "a secret with : and é"
READY_SECONDS = 30.0


class TestProvider:
    """Logs everybody in as `claims` says, at once. `lies` overwrite what stands in the token; None takes it out."""

    __test__ = False

    def __init__(self) -> None:
        self.claims: dict[str, Any] = {"sub": "7", "email": "ada@example.org", "email_verified": True}
        self.lies: dict[str, Any] = {}
        self.key = RSAKey.generate_key(2048, {"kid": "one"})
        self.signing: Any = self.key
        self.algorithm = "RS256"
        self.denies = False
        self.issuer_says = ""
        self.asked: list[str] = []
        self._codes: dict[str, dict[str, str]] = {}
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.issuer = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        app = Starlette(
            routes=[
                Route("/.well-known/openid-configuration", self._description),
                Route("/authorize", self._authorize),
                Route("/token", self._token, methods=["POST"]),
                Route("/keys", self._keys),
            ]
        )
        self._server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        deadline = time.monotonic() + READY_SECONDS
        while not self._server.started:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(READY_SECONDS)

    async def _description(self, request: Request) -> Response:  # noqa: ARG002
        self.asked.append("description")
        return JSONResponse({
            "issuer": self.issuer_says or self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
        })  # fmt: skip

    async def _keys(self, request: Request) -> Response:  # noqa: ARG002
        self.asked.append("keys")
        return JSONResponse({"keys": [self.key.as_dict(private=False) | {"kid": self.key.kid}]})

    async def _authorize(self, request: Request) -> Response:
        asked = dict(request.query_params)
        assert asked["client_id"] == CLIENT
        assert asked["response_type"] == "code"
        assert asked["code_challenge_method"] == "S256"
        assert "openid" in asked["scope"].split()
        back = asked["redirect_uri"]
        if self.denies:
            return RedirectResponse(f"{back}?{urlencode({'error': 'access_denied', 'state': asked['state']})}", 302)
        code = secrets.token_urlsafe(16)
        self._codes[code] = asked
        return RedirectResponse(f"{back}?{urlencode({'code': code, 'state': asked['state']})}", 302)

    async def _token(self, request: Request) -> Response:
        given = {key: values[0] for key, values in parse_qs((await request.body()).decode()).items()}
        login = base64.b64decode(request.headers["authorization"].removeprefix("Basic ")).decode()
        asked = self._codes.pop(given.get("code", ""), None)
        challenge = _plain(hashlib.sha256(given.get("code_verifier", "").encode()).digest())
        if (
            asked is None
            or login != f"{CLIENT}:{SECRET}"
            or given.get("redirect_uri") != asked["redirect_uri"]
            or challenge != asked["code_challenge"]
        ):
            return JSONResponse({"error": "invalid_grant"}, 400)
        return JSONResponse({"access_token": "x", "token_type": "Bearer", "id_token": self.token(asked["nonce"])})

    def token(self, nonce: str) -> str:
        now = int(time.time())
        said = {
            "iss": self.issuer,
            "aud": CLIENT,
            "iat": now,
            "exp": now + 300,
            "nonce": nonce,
            **self.claims,
            **self.lies,
        }
        claims = {key: value for key, value in said.items() if value is not None}
        if self.algorithm in {"none", "HS256"}:
            return self._forged(claims)
        header = {"alg": self.algorithm, "kid": self.signing.kid or "one"}
        return jwt.encode(header, claims, self.signing, algorithms=[self.algorithm])

    def _forged(self, claims: dict[str, Any]) -> str:
        """Signed by nobody, or with the public key as if that were a secret: how tokens were once forged."""
        parts = [_plain(json.dumps(each).encode()) for each in ({"alg": self.algorithm, "kid": "one"}, claims)]
        made = hmac.digest(self.key.as_pem(private=False), ".".join(parts).encode(), "sha256")
        return ".".join([*parts, _plain(made) if self.algorithm == "HS256" else ""])


def _plain(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
