"""Progress of a command that takes longer than a moment: a live line on a terminal, a plain line now and then in a log.

    with StepProgress() as progress:
        progress.step("starting Spark")
        ...
        progress.step("verifying house_load")
        progress.update("3 of 8 tasks")      # as often as you like
        progress.notice("house_load: equal") # a line that stays

A step is named when it begins. While it lasts, a thread of its own says for how long, so that work which reports nothing
(a Spark job, a download, a start) is not silent. Everything goes to stderr; a terminal that is gone stops nothing.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Collection
from typing import Self, TextIO

from riverrun.cli.output import add_live_line, remove_live_line
from riverrun.model.notices import notice_text

REDRAW_SECONDS = 0.5
# A log gets a line when a step has gone on for so long, and again after each such time.
LINE_SECONDS = 5.0
# A step that takes longer is told less often, up to this: a log that is silent for longer looks like a command that hangs.
MAX_LINE_SECONDS = 10.0


class StepProgress:
    """Use it in a `with`. All methods may be called by any thread."""

    def __init__(
        self,
        line_seconds: float | None = None,
        *,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        names: Collection[str] = (),
    ) -> None:
        # Of the app: a notice that begins with one keeps it as it is written.
        self._names = names
        self._stream = stream
        self._live = (stream or sys.stderr).isatty()
        self._line_seconds = LINE_SECONDS if line_seconds is None else line_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self._step = self._detail = ""
        self._detail_source: Callable[[], str] | None = None
        self._began = self._next = 0.0
        self._drawn = False
        self._hidden = 0

    def __enter__(self) -> Self:
        if self._live:
            add_live_line(self)
        self._thread = threading.Thread(target=self._tick, name="progress", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            self._step = ""
            self._clear()
        if self._live:
            remove_live_line(self)

    def hide(self) -> None:
        """Somebody else writes to the terminal, until `show`."""
        with self._lock:
            self._hidden += 1
            self._clear()

    def show(self) -> None:
        with self._lock:
            self._hidden -= 1
            self._draw()

    def step(self, text: str, detail: Callable[[], str] | None = None, *, announced: bool = True) -> None:
        """Begin a step: a phrase without capital and full stop. Empty: nothing is under way until the next one. `detail` is
        asked how far it is whenever that is shown, and may take its time. A step that is mostly short is not `announced`: a
        log has it only when it lasts."""
        with self._lock:
            if not text:
                self._clear()
            self._step, self._detail, self._detail_source = text, "", detail
            self._began = self._clock()
            self._next = self._began + self._line_seconds
            if text and not self._live and announced:
                self._write(f"{_sentence(text)}.\n")
            else:
                self._draw()

    def update(self, detail: str) -> None:
        """How far the step is. Shown at the next turn of the line."""
        with self._lock:
            self._detail = detail

    def notice(self, text: str) -> None:
        """A line that stays, above the one that changes."""
        with self._lock:
            self._clear()
            self._write(f"{notice_text(text, self._names)}\n")
            self._draw()

    def print_due(self) -> None:
        """Say what is due. The thread does; tests may."""
        detail_source = self._detail_source
        detail = detail_source() if detail_source is not None and (self._live or self._clock() >= self._next) else ""
        with self._lock:
            self._detail = (
                detail if detail_source is not None and detail_source is self._detail_source else self._detail
            )
            if not self._step:
                return
            if self._live:
                self._draw()
            elif self._clock() >= self._next:
                elapsed = self._clock() - self._began
                self._next = self._clock() + min(
                    MAX_LINE_SECONDS - REDRAW_SECONDS, max(self._line_seconds, elapsed / 2)
                )
                self._write(f"{self._line()}\n")

    def _tick(self) -> None:
        while not self._done.wait(REDRAW_SECONDS):
            self.print_due()

    def _line(self) -> str:
        detail = f": {self._detail}" if self._detail else ""
        return f"{_sentence(self._step)}{detail} ({duration_words(self._clock() - self._began)})"

    def _draw(self) -> None:
        if self._live and self._step and not self._hidden:
            self._write(f"\r{self._line()}\x1b[K")
            self._drawn = True

    def _clear(self) -> None:
        if self._drawn:
            self._write("\r\x1b[K")
            self._drawn = False

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            stream = self._stream or sys.stderr
            stream.write(text)
            stream.flush()


def duration_words(seconds: float) -> str:
    """`8 s`, `3 min 5 s`, `2 h 7 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
