"""Questions to Connect in its own protocol: a TCP connection proves nothing."""

import base64
import http.client

from riverrun.cluster.ports import HOST

USER = "riverrun"


def is_ready(port: int, password: str, seconds: float) -> bool:
    """Whether the worker has joined its group and read what it was told before: from then on it takes requests."""
    connection = http.client.HTTPConnection(HOST, port, timeout=seconds)
    login = base64.b64encode(f"{USER}:{password}".encode()).decode()
    try:
        connection.request("GET", "/health", headers={"Authorization": f"Basic {login}"})
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
