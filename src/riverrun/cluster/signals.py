"""Stop signals: Ctrl-C, `kill`, a terminal that is closed. All of riverrun's own programs handle signals here.

- `interrupt_on_signals` is around a whole program: a signal raises `SignalInterrupt`, so that whatever was started is
  stopped.
- `stop_on_signals` is around what stops by itself: the first signal sets an event, the second raises.
- `defer_signals` is around a critical section, such as a process's start: a signal raises at its end.
- `shield_from_signals` is around shutdown code. It has its own deadlines and is not interrupted.

Ignored signals stay ignored: `nohup riverrun run`, or a shell's `riverrun run &`.
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
# The first asks, the second hurries; further ones say nothing new, and would cut off the shutdown.
MAX_RAISED = 2

SignalHandler = Callable[[int, FrameType | None], Any]


class SignalInterrupt(KeyboardInterrupt):
    """One of the signals arrived. `number` says which."""

    def __init__(self, number: int = signal.SIGINT) -> None:
        super().__init__()
        self.number = number

    @property
    def exit_code(self) -> int:
        """The exit code as a shell reports it."""
        return 128 + self.number


class _SignalState:
    """The signals of this process so far."""

    def __init__(self) -> None:
        self.count = 0
        self.shields = 0
        self.deferrals = 0
        # The signal that arrived while signals were deferred.
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
                # PySpark logs the stack of an interrupted call to the root logger.
                logging.disable(logging.CRITICAL)
            raise SignalInterrupt(number)


_signal_state = _SignalState()


@contextlib.contextmanager
def handle_signals(handler: SignalHandler) -> Iterator[None]:
    """Install `handler` for these signals, except ignored ones. Does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            # None was set by another language, and cannot be restored.
            signal.signal(number, old if old is not None else signal.SIG_DFL)


@contextlib.contextmanager
def interrupt_on_signals() -> Iterator[None]:
    """Around a program: a signal raises SignalInterrupt."""
    _signal_state.count = 0
    with handle_signals(_signal_state.raise_):
        yield


@contextlib.contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """An event that the first signal sets. The second raises SignalInterrupt: the program does not wait for a clean
    end, except for its shutdown code."""
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
    """Around shutdown code: no signal interrupts it. It must have deadlines of its own."""
    _signal_state.shields += 1
    try:
        yield
    finally:
        _signal_state.shields -= 1


@contextlib.contextmanager
def defer_signals() -> Iterator[None]:
    """Around a short critical section: a signal that arrives meanwhile raises at its end. Does nothing outside the main
    thread, where signals arrive."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _signal_state.deferrals += 1
    try:
        yield
    finally:
        _signal_state.release()


class ShieldedExitStack(contextlib.ExitStack):
    """An exit stack for a program's shutdown: one more Ctrl-C does not cut it off."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        with shield_from_signals():
            return super().__exit__(kind, error, trace)


def _detach_terminal() -> None:
    """Stop writing to a terminal that is gone: each write would fail, in the middle of the shutdown."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (1, 2):
        with contextlib.suppress(OSError):
            # Not `isatty`: it is false for a terminal that is gone.
            if stat.S_ISCHR(os.fstat(number).st_mode):
                os.dup2(nowhere, number)
    os.close(nowhere)
