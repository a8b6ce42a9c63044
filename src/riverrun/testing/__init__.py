"""What users test their pipelines with: the fixtures of `pytest_plugin`, and the type of the cluster they give."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from riverrun.testing.pytest_plugin import KafkaUnderTest

__all__ = ["KafkaUnderTest"]


def __getattr__(name: str) -> Any:
    # Looked up when used: pytest comes with the user's tests, not with riverrun.
    if name == "KafkaUnderTest":
        from riverrun.testing.pytest_plugin import KafkaUnderTest

        return KafkaUnderTest
    raise AttributeError(f"module 'riverrun.testing' has no attribute {name!r}")
