"""Options of our own suite."""

import signal

import pytest

# A shell that starts us in the background makes us ignore Ctrl-C, and our children inherit that; tests send it to them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def spark_slots() -> int:
    """Enough for a real-time stream or two, whatever the machine has."""
    return 16


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-docs",
        action="store_true",
        help="Write the pages of docs/reference that tests make, instead of comparing them.",
    )
