"""Consumers without a cluster."""

import pytest

from unit.kafka.fake_client import FakeClient


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    """The client of every consumer that the test makes: a topic t with one partition."""
    return _installed(FakeClient(), monkeypatch)


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    """The same with two partitions."""
    return _installed(FakeClient(2), monkeypatch)


def _installed(made: FakeClient, monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    monkeypatch.setattr("riverrun.kafka.consumer.subscription.Consumer", made)
    return made
