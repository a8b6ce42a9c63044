"""A real broker that wants TLS and a login: what a company's cluster looks like from outside."""

import base64
import contextlib
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import trustme
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from riverrun.cluster.kafka.local import LocalKafka
from riverrun.cluster.ports import HOST, PortClaims
from riverrun.cluster.server import Deadline
from riverrun.config import KafkaSettings

USER, PASSWORD = "alice", "open-sesame"
# May log in with the same password, and has no right that a test does not give.
GUEST = "guest"
CLIENT, CLIENT_SECRET = "riverrun-tests", "s3cret"


@dataclass(frozen=True)
class Secured:
    """Addresses of one broker's listeners, the certificate that signs it, and a token endpoint."""

    tls: str
    login: str
    oauth: str
    ca_file: Path
    token_url: str


@contextlib.contextmanager
def secured_kafka(root: Path, first_port: int) -> Iterator[Secured]:
    """Start a broker, stop it, and start it again with listeners that want TLS, PLAIN or SCRAM over TLS, and OAUTHBEARER.

    Twice, because the runner chooses the ports of the plain listener and the controller, and keeps them.
    """
    ca = trustme.CA()
    ca_file = root / "ca.pem"
    ca.cert_pem.write_to_path(str(ca_file))
    claims = PortClaims()
    tls, login, oauth = (claims.claim_first(first_port + 100) for _ in range(3))
    claims.close()
    local = LocalKafka(root, KafkaSettings(), first_port=first_port)
    with local as kafka, token_endpoint() as token_url:
        add_scram_user(kafka.bootstrap_servers)
        plain = kafka.brokers[0].properties()
        kafka.stop()
        local.plan = replace(local.plan, properties=secured_properties(plain, ca, root, tls, login, oauth))
        kafka.start()
        kafka.ready(Deadline(60))
        yield Secured(f"{HOST}:{tls}", f"{HOST}:{login}", f"{HOST}:{oauth}", ca_file, token_url)


def add_scram_user(servers: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        user = UserScramCredentialUpsertion(USER, ScramCredentialInfo(mechanism, 4096), PASSWORD.encode())
        for future in admin.alter_user_scram_credentials([user]).values():
            future.result(30)


def secured_properties(
    plain: dict[str, str], ca: trustme.CA, root: Path, tls: int, login: int, oauth: int
) -> dict[str, str]:
    more = f",TLS://{HOST}:{tls},LOGIN://{HOST}:{login},OAUTH://{HOST}:{oauth}"
    kafka = "org.apache.kafka.common.security"
    return {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:ANONYMOUS;User:{USER};User:{CLIENT}",
        "listeners": plain["listeners"] + more,
        "advertised.listeners": plain["advertised.listeners"] + more,
        "listener.security.protocol.map": (
            f"{plain['listener.security.protocol.map']},TLS:SSL,LOGIN:SASL_SSL,OAUTH:SASL_PLAINTEXT"
        ),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(server_certificate(ca, root)),
        "listener.name.login.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.login.plain.sasl.jaas.config": (
            f'{kafka}.plain.PlainLoginModule required user_{USER}="{PASSWORD}" user_{GUEST}="{PASSWORD}";'
        ),
        "listener.name.login.scram-sha-256.sasl.jaas.config": f"{kafka}.scram.ScramLoginModule required;",
        "listener.name.login.scram-sha-512.sasl.jaas.config": f"{kafka}.scram.ScramLoginModule required;",
        "listener.name.oauth.sasl.enabled.mechanisms": "OAUTHBEARER",
        # Kafka's validator for tests takes tokens that nobody signed; how the client gets one is what we test.
        "listener.name.oauth.oauthbearer.sasl.jaas.config": (
            f'{kafka}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";'
        ),
    }


def server_certificate(ca: trustme.CA, root: Path) -> Path:
    """The broker's key and certificate in one PEM file, the key in the form Java reads."""
    certificate = ca.issue_cert(HOST, "localhost")
    key = load_pem_private_key(certificate.private_key_pem.bytes(), None)
    path = root / "broker.pem"
    path.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        + b"".join(cert_chain_pem.bytes() for cert_chain_pem in certificate.cert_chain_pems)
    )
    return path


class TokenHandler(BaseHTTPRequestHandler):
    """OIDC's client-credentials grant, as far as a client sees it."""

    def do_POST(self) -> None:
        wanted = base64.b64encode(f"{CLIENT}:{CLIENT_SECRET}".encode()).decode()
        if self.headers["Authorization"] != f"Basic {wanted}":
            self._answer(401, {"error": "invalid_client"})
            return
        now = int(time.time())
        claims = {"sub": CLIENT, "iat": now, "exp": now + 3600}
        token = f"{_part({'alg': 'none'})}.{_part(claims)}."
        self._answer(200, {"access_token": token, "token_type": "Bearer", "expires_in": 3600})

    def _answer(self, status: int, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""


def _part(content: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")


@contextlib.contextmanager
def token_endpoint() -> Iterator[str]:
    server = HTTPServer((HOST, 0), TokenHandler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_port}/token"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
