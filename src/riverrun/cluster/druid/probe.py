"""Probes of Druid and ZooKeeper in their own protocols: a TCP connection proves nothing."""

import http.client
import json
import socket
from typing import Any

from riverrun.cluster.ports import HOST

# More than any response requested here.
MAX_RESPONSE_BYTES = 1 << 20


def request_json(port: int, path: str, seconds: float, body: Any = None) -> tuple[int, Any]:
    """Status and JSON of a response; (0, None) when there was none. A body is sent by POST."""
    connection = http.client.HTTPConnection(HOST, port, timeout=seconds)
    try:
        if body is None:
            connection.request("GET", path)
        else:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        content = response.read(MAX_RESPONSE_BYTES)
    except (OSError, http.client.HTTPException):
        return 0, None
    finally:
        connection.close()
    try:
        return response.status, json.loads(content)
    except ValueError:
        return response.status, None


def is_healthy(port: int, seconds: float) -> bool:
    """Whether a role has started all its components."""
    return request_json(port, "/status/health", seconds) == (200, True)


def is_leader(port: int, seconds: float) -> bool:
    """Whether the coordinator is leader and assigns tasks: after a start it waits for its predecessor's session to end.
    Through the router, this also shows whether the router knows the coordinator."""
    paths = ("/druid/coordinator/v1/isLeader", "/druid/indexer/v1/isLeader")
    return all(request_json(port, path, seconds) == (200, {"leader": True}) for path in paths)


def answers_sql(port: int, seconds: float) -> bool:
    """Whether a query through the router reaches a broker and returns."""
    question = {"query": "SELECT 1", "resultFormat": "array"}
    return request_json(port, "/druid/v2/sql", seconds, question) == (200, [[1]])


def is_zookeeper_ready(port: int, seconds: float) -> bool:
    try:
        with socket.create_connection((HOST, port), timeout=seconds) as connection:
            connection.sendall(b"ruok")
            return connection.recv(16) == b"imok"
    except OSError:
        return False
