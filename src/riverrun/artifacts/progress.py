"""How a long fetch tells what it does. Methods are called from several threads and must return at once."""

from typing import Protocol


class FetchProgress(Protocol):
    """Watches one fetch: `start`, any number of `advance` and `note`, `done`. Nothing is called when nothing is missing."""

    def start(self, name: str, files: int, size: int) -> None:
        """So many files of the set are missing, of so many bytes."""

    def advance(self, size: int) -> None:
        """So many more bytes are here. Negative when bytes that were counted had to be thrown away."""

    def note(self, message: str) -> None:
        """Something the user may want to know, such as a retry; one sentence without its full stop."""

    def done(self) -> None:
        """No more calls follow, whether it worked or not."""


class NoFetchProgress:
    """Says nothing."""

    def start(self, name: str, files: int, size: int) -> None:
        pass

    def advance(self, size: int) -> None:
        pass

    def note(self, message: str) -> None:
        pass

    def done(self) -> None:
        pass
