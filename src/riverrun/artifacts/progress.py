"""How a long fetch reports its progress. Methods are called from several threads and must return at once."""

from typing import Protocol


class FetchProgress(Protocol):
    """Watches one fetch: `start`, any number of `advance` and `note`, `done`. Nothing is called when nothing is missing."""

    def start(self, name: str, files: int, size: int) -> None:
        """This many files of the set are missing, of this many bytes."""

    def advance(self, size: int) -> None:
        """This many more bytes were received. Negative when bytes that were counted had to be thrown away."""

    def note(self, message: str) -> None:
        """Something the user may want to know, such as a retry; one sentence without its full stop."""

    def done(self) -> None:
        """No more calls follow, whether it worked or not."""


class NoFetchProgress:
    """Reports nothing."""

    def start(self, name: str, files: int, size: int) -> None:
        pass

    def advance(self, size: int) -> None:
        pass

    def note(self, message: str) -> None:
        pass

    def done(self) -> None:
        pass
