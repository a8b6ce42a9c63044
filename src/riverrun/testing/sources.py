"""The contract of sources as tests: subclass `SourceSuite`, say what the source reads, and every rule is tested.

    class TestNumbers(SourceSuite):
        def make(self, folder):
            (folder / "numbers.txt").write_text("1\n2\n3\n")
            return Numbers(folder / "numbers.txt")

        def expected(self):
            return [{"n": 1}, {"n": 2}, {"n": 3}]

No broker is needed: the suite does what the runtime does, and crashes on purpose after every batch.
"""

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from riverrun.errors import RiverrunError
from riverrun.model.connector import Item, Items, Reader, Source

# How long a source may take until it returns items, and how long one `read` may take.
READY_SECONDS = 20.0
READ_SECONDS = 2.0
MAX_ITEMS = 20_000


class PartState:
    """What the runtime keeps for one part: the committed position and marks, after a round trip through JSON."""

    def __init__(self, part: str) -> None:
        self.part = part
        self.position: Any = None
        self.marks: dict[str, Any] = {}

    def open(self, source: Source) -> Reader:
        return source.open_with_marks(self.part, self.position, dict(self.marks))

    def commit(self, items: Items) -> None:
        self.position = json.loads(json.dumps(items.position))
        for name, value in (items.marks or {}).items():
            if value is None:
                self.marks.pop(name, None)
            else:
                self.marks[name] = json.loads(json.dumps(value))


def value_of(item: Any) -> Any:
    """The value of an item; JSON is decoded, so that bytes and mappings compare."""
    value = item.value if isinstance(item, Item) else item
    if isinstance(value, bytes | str):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


class SourceSuite:
    """Subclass it as `class TestMine(SourceSuite)`."""

    def make(self, folder: Path) -> Source:
        """A source with something to read. Called again for the same folder, it returns the same source after a restart."""
        raise NotImplementedError

    def expected(self) -> Sequence[Any]:
        """The values that the source returns, part by part in the order of `parts()`."""
        raise NotImplementedError

    # --- the contract -------------------------------------------------------------------------------------------------

    def test_each_item_comes_once(self, tmp_path: Path) -> None:
        source = self.make(tmp_path)
        values = [value for part in source.parts() for value in self._all_values(source, PartState(part))]
        assert values == list(self.expected())

    def test_it_goes_on_behind_every_position(self, tmp_path: Path) -> None:
        """A crash after each batch: committed items are not read again, and no other item is skipped."""
        source = self.make(tmp_path)
        values: list[Any] = []
        for part in source.parts():
            state = PartState(part)
            while (items := self._next_batch(self.make(tmp_path), state)) is not None:
                values += map(value_of, items.items)
                state.commit(items)
                if items.last:
                    break
        assert values == list(self.expected())

    def test_what_was_not_committed_comes_again(self, tmp_path: Path) -> None:
        """A crash before each commit: the same items are read again, in the same order."""
        source = self.make(tmp_path)
        for part in source.parts():
            state = PartState(part)
            while (items := self._next_batch(self.make(tmp_path), state)) is not None:
                again = self._next_batch(self.make(tmp_path), state)
                assert again is not None, "what was read and not committed did not come again"
                values, repeated = list(map(value_of, items.items)), list(map(value_of, again.items))
                shared = min(len(values), len(repeated))
                assert values[:shared] == repeated[:shared]
                state.commit(items)
                if items.last:
                    break

    def test_a_position_can_be_carried_as_json(self, tmp_path: Path) -> None:
        source = self.make(tmp_path)
        for part in source.parts():
            for items in self._batches(source, PartState(part)):
                assert json.loads(json.dumps(items.position)) == items.position

    def test_an_unknown_position_is_refused(self, tmp_path: Path) -> None:
        source = self.make(tmp_path)
        if not source.resumable:
            return
        for part in source.parts():
            state = PartState(part)
            state.position = {"no": "position of this source"}
            with pytest.raises(RiverrunError):
                state.open(source).close()

    def test_closing_twice_is_harmless(self, tmp_path: Path) -> None:
        source = self.make(tmp_path)
        for part in source.parts():
            reader = PartState(part).open(source)
            reader.read()
            reader.close()
            reader.close()

    def test_one_read_is_bounded_in_time_and_size(self, tmp_path: Path) -> None:
        """A source that returns everything at once needs the memory for it: back pressure begins with small reads."""
        source = self.make(tmp_path)
        for part in source.parts():
            reader = PartState(part).open(source)
            try:
                began = time.monotonic()
                items = reader.read()
                assert time.monotonic() - began < READ_SECONDS, "read() blocked"
                assert items is None or len(items.items) <= MAX_ITEMS, "read() gave too much at once"
            finally:
                reader.close()

    def test_parts_are_the_same_after_a_restart(self, tmp_path: Path) -> None:
        assert list(self.make(tmp_path).parts()) == list(self.make(tmp_path).parts())

    # --- a minimal runtime --------------------------------------------------------------------------------------------

    def _all_values(self, source: Source, state: PartState) -> list[Any]:
        values: list[Any] = []
        for items in self._batches(source, state):
            values += map(value_of, items.items)
        return values

    def _batches(self, source: Source, state: PartState) -> Iterator[Items]:
        """All batches that a part has now, each acknowledged."""
        reader = state.open(source)
        try:
            while (items := _next(reader)) is not None:
                state.commit(items)
                reader.acknowledged(items.position)
                yield items
                if items.last:
                    return
        finally:
            reader.close()

    def _next_batch(self, source: Source, state: PartState) -> Items | None:
        """The next batch, and then a crash: nothing is acknowledged, the reader is only closed."""
        reader = state.open(source)
        try:
            return _next(reader)
        finally:
            reader.close()


def _next(reader: Reader) -> Items | None:
    """The next batch; None after 40 empty reads or `READY_SECONDS`."""
    deadline = time.monotonic() + READY_SECONDS
    empty_reads = 0
    while time.monotonic() < deadline and empty_reads < 40:
        items = reader.read()
        if items is not None:
            return items
        empty_reads += 1
        reader.wait(0.02)
    return None
