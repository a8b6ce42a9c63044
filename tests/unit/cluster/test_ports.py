"""Free ports, claims on them, and who has the others."""

import os
import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from riverrun.cluster.ports import FIRST_EPHEMERAL, PortClaims, holder_of, is_free
from riverrun.errors import PortTakenError


@pytest.fixture
def claims(tmp_path: Path) -> Iterator[PortClaims]:
    found = PortClaims(tmp_path)
    yield found
    found.close()


@pytest.fixture
def port() -> int:
    """A port that is free now."""
    while not is_free(found := random.randrange(12000, 28000)):
        pass
    return found


def test_a_port_that_somebody_listens_on_is_not_free(port: int) -> None:
    assert is_free(port)
    with socket.create_server(("127.0.0.1", port)):
        assert not is_free(port)
    with socket.create_server(("0.0.0.0", port)):  # noqa: S104
        assert not is_free(port)
    assert is_free(port)


def test_the_holder_is_named(port: int) -> None:
    assert holder_of(port) is None
    with socket.create_server(("127.0.0.1", port)):
        holder = holder_of(port)
    assert holder is not None
    assert holder.pid == os.getpid()
    assert f"pid {os.getpid()}" in str(holder)


def test_a_claim_keeps_others_off(claims: PortClaims, tmp_path: Path, port: int) -> None:
    assert claims.claim(port)
    assert not claims.claim(port)
    other = PortClaims(tmp_path)
    assert not other.claim(port)
    assert other.claim_first(port) != port
    other.close()
    claims.close()
    assert claims.ports == ()
    assert PortClaims(tmp_path).claim(port)


def test_a_claim_ends_with_its_process(claims: PortClaims, tmp_path: Path, port: int) -> None:
    code = (
        "import sys; from pathlib import Path; from riverrun.cluster.ports import PortClaims\n"
        f"c = PortClaims(Path({str(tmp_path)!r})); print(c.claim({port}), flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"True\n"
        assert not claims.claim(port)
        with pytest.raises(PortTakenError) as caught:
            claims.claim_exactly(port, "broker-1")
        assert caught.value.fields["pid"] == other.pid
        other.kill()
    assert claims.claim(port)


def test_a_taken_port_is_passed_over(claims: PortClaims, port: int) -> None:
    with socket.create_server(("127.0.0.1", port)):
        assert port < claims.claim_first(port) < FIRST_EPHEMERAL


def test_a_port_that_was_asked_for_and_is_taken_names_its_holder(claims: PortClaims, port: int) -> None:
    assert claims.claim_exactly(port, "broker-1") == port
    claims.close()
    with socket.create_server(("127.0.0.1", port)), pytest.raises(PortTakenError) as caught:
        claims.claim_exactly(port, "broker-1")
    assert caught.value.fields == {"port": port, "pid": os.getpid(), "process": caught.value.fields["process"]}
    assert str(caught.value).startswith(f"Port {port} for broker-1 is taken by ")


def test_claims_are_a_courtesy(tmp_path: Path, port: int) -> None:
    (tmp_path / "file").write_text("")
    claims = PortClaims(tmp_path / "file")
    assert claims.claim(port)
    assert not claims.claim(port)
    claims.close()
    with socket.create_server(("127.0.0.1", port)):
        assert not claims.claim(port)
