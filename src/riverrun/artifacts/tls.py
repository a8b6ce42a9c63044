"""Whom to trust over TLS: what the environment names, else the system, and certifi's list only when there is neither.

A company's own authority is in the system's store or in one of the variables below; a list that came with a Python
package does not include it.
"""

import os
import ssl
from collections.abc import Mapping
from pathlib import Path

from riverrun.errors import ConfigError

# The first one that is set decides, except that SSL_CERT_FILE and SSL_CERT_DIR go together, as in OpenSSL.
VARIABLES = (("SSL_CERT_FILE", "SSL_CERT_DIR"), ("REQUESTS_CA_BUNDLE",), ("CURL_CA_BUNDLE",))

# The system's bundle on Debian, Fedora, openSUSE, and on Alpine and macOS. A Python that was built elsewhere (conda,
# uv) does not know these paths, or prefers a list of its own.
SYSTEM_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)


def tls_context(environ: Mapping[str, str]) -> ssl.SSLContext:
    """A context that verifies certificates and host names, with the certificates of this user's environment."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for group in VARIABLES:
        if named := [name for name in group if environ.get(name)]:
            for name in named:
                _trust(context, name, environ[name])
            return context
    _trust_system(context)
    return context


def _trust(context: ssl.SSLContext, variable: str, value: str) -> None:
    paths = [Path(entry) for entry in value.split(os.pathsep) if entry]
    existing = [entry for entry in paths if entry.exists()]
    if not existing:
        raise ConfigError([f"environment {variable}: {value} is not there"], variable=variable)
    for path in existing:
        try:
            if path.is_dir():
                context.load_verify_locations(capath=path)
            else:
                context.load_verify_locations(cafile=path)
        except (ssl.SSLError, OSError) as error:
            reason = "holds no certificates in PEM form" if isinstance(error, ssl.SSLError) else error.strerror
            raise ConfigError([f"environment {variable}: {path} {reason}"], variable=variable) from error


def _trust_system(context: ssl.SSLContext) -> None:
    for bundle in SYSTEM_BUNDLES:
        if Path(bundle).is_file():
            context.load_verify_locations(cafile=bundle)
            return
    if any(ssl.get_default_verify_paths()[:2]):
        context.load_default_certs()
    else:
        import certifi

        context.load_verify_locations(cafile=certifi.where())
