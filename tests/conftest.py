"""Options of our own suite."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-docs", action="store_true", help="Write docs/reference/errors.md anew instead of comparing it."
    )
