"""Probes of Connect in its own protocol: a TCP connection proves nothing."""

import base64
import http.client
from urllib.parse import urlsplit


def is_ready(url: str, user: str, password: str, seconds: float, *, path: str = "/health") -> bool:
    """Whether the worker has joined its group and read its state: from then on it takes requests. Other servers are
    probed at another `path`."""
    address = urlsplit(url)
    kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
    headers = {}
    if user:
        headers["Authorization"] = f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"
    connection = kind(address.hostname or "", address.port, timeout=seconds)
    try:
        connection.request("GET", f"{address.path.rstrip('/')}{path}", headers=headers)
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
