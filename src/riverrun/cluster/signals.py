"""Being asked to end: Ctrl-C, `kill`, a terminal that is closed. All of riverrun's own programs handle signals here.

- `end_on_signals` is around a whole program: a signal raises `EndRequest`, so that whatever was started is stopped.
- `stop_on_signals` is around what ends in order by itself: the first signal sets an event, the second raises.
- `held` is around a moment that must be whole, such as a process's start: a signal raises at its end.
- `shielded` is around what stops the parts of a program. It has its own deadlines and is not interrupted.

What is ignored stays so: `nohup riverrun run`, or a shell's `riverrun run &`.
"""

import contextlib
import logging
import os
import signal
import stat
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# The first asks, the second hurries; more of them say nothing new, and would cut off what stops the parts.
MAX_RAISED = 2

SignalHandler = Callable[[int, FrameType | None], Any]


class SignalInterrupt(KeyboardInterrupt):
    """One of the signals arrived. `number` says which."""

    def __init__(self, number: int = signal.SIGINT) -> None:
        super().__init__()
        self.number = number

    @property
    def exit_code(self) -> int:
        """As a shell says it."""
        return 128 + self.number


class _SignalState:
    """The signals of this process so far."""

    def __init__(self) -> None:
        self.count = 0
        self.shields = 0
        self.deferrals = 0
        # The signal that came during a hold.
        self.pending = 0

    def raise_(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.count += 1
        if number == signal.SIGHUP:
            _detach_terminal()
        if self.deferrals:
            self.pending = self.pending or number
            return
        self._raise(number)

    def release(self) -> None:
        self.deferrals -= 1
        if not self.deferrals and self.pending:
            number, self.pending = self.pending, 0
            self._raise(number)

    def _raise(self, number: int) -> None:
        if not self.shields and self.count <= MAX_RAISED:
            if self.count > 1:
                # PySpark writes the stack of a call that is cut off to the root logger.
                logging.disable(logging.CRITICAL)
            raise SignalInterrupt(number)


_signal_state = _SignalState()


@contextlib.contextmanager
def handle_signals(handler: SignalHandler) -> Iterator[None]:
    """Have these signals call `handler`, but for those that are ignored. Does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            # None was set by another language, and cannot be set again.
            signal.signal(number, old if old is not None else signal.SIG_DFL)


@contextlib.contextmanager
def interrupt_on_signals() -> Iterator[None]:
    """Around a program: a signal raises EndRequest."""
    _signal_state.count = 0
    with handle_signals(_signal_state.raise_):
        yield


@contextlib.contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """An event that the first signal sets. The second raises EndRequest: the end is not waited for, but for what stops the
    program's parts."""
    stop = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            _signal_state.raise_(number, frame)
            return
        _signal_state.count = 1
        if number == signal.SIGHUP:
            _detach_terminal()
        stop.set()

    with handle_signals(on_signal):
        try:
            yield stop
        finally:
            logging.disable(logging.NOTSET)


@contextlib.contextmanager
def shield_from_signals() -> Iterator[None]:
    """Around what stops the parts of a program: no signal interrupts it. It must have deadlines of its own."""
    _signal_state.shields += 1
    try:
        yield
    finally:
        _signal_state.shields -= 1


@contextlib.contextmanager
def defer_signals() -> Iterator[None]:
    """Around what takes a moment and must not be cut in two: a signal that comes meanwhile raises at its end. Does nothing
    outside the main thread, where signals arrive."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _signal_state.deferrals += 1
    try:
        yield
    finally:
        _signal_state.release()


class ShieldedExitStack(contextlib.ExitStack):
    """What stops the parts of a program, in order: one more Ctrl-C does not cut it off."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        with shield_from_signals():
            return super().__exit__(kind, error, trace)


def _detach_terminal() -> None:
    """Say nothing more to a terminal that is gone: each word would fail, in the middle of the end."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (1, 2):
        with contextlib.suppress(OSError):
            # Not `isatty`: a terminal that is gone says no.
            if stat.S_ISCHR(os.fstat(number).st_mode):
                os.dup2(nowhere, number)
    os.close(nowhere)
