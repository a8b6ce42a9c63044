"""Options of our own suite."""

import signal

import pytest

# A shell that starts us in the background makes us ignore Ctrl-C, and our children inherit that; tests send it to them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-docs", action="store_true", help="Write docs/reference/errors.md anew instead of comparing it."
    )
