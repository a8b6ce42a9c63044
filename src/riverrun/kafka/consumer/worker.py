"""A crew of threads for `Consumer.run`, and the signals that end it."""

import contextlib
import functools
import inspect
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, TypeVar

from riverrun.errors import RecordUnreadableError, UsageError
from riverrun.kafka.consumer.parallel import Engine
from riverrun.kafka.consumer.record import Record
from riverrun.kafka.consumer.schedule import Work

V = TypeVar("V")
log = logging.getLogger("riverrun.kafka.consumer")


def run_in_threads(
    engine: Engine[V], handler: Callable[[Record[V]], Any], workers: int, stop: Callable[[], None]
) -> None:
    """Handle records in threads until the engine's reading ends; then let them finish."""
    if workers < 1:
        raise UsageError(f"run cannot have workers={workers}", expected="at least 1", option="workers")
    check_plain(handler)
    crew = [
        threading.Thread(target=_work, args=(engine, handler), name=f"riverrun-worker-{number}", daemon=True)
        for number in range(1, workers + 1)
    ]
    for thread in crew:
        thread.start()
    hurry = False
    with stop_on_signals(stop):
        try:
            engine.read()
        except BaseException as error:  # noqa: BLE001  -- raised by `finish`
            engine.give_up(error)
            # Ctrl-C twice: whoever presses it does not want to wait.
            hurry = isinstance(error, KeyboardInterrupt)
        engine.finish(hurry=hurry)


def check_plain(handler: Callable[..., Any]) -> None:
    """A handler that would only make a coroutine or generator, and do nothing, is a mistake: all would count as handled."""
    call = inspect.unwrap(handler.func if isinstance(handler, functools.partial) else handler)
    if not (inspect.isfunction(call) or inspect.ismethod(call)):
        call = getattr(call, "__call__", call)  # noqa: B004  -- the method of a callable object
    if inspect.iscoroutinefunction(call) or inspect.isasyncgenfunction(call):
        raise UsageError("run was given an async handler, which it cannot await", hint="Use riverrun.AsyncConsumer")
    if inspect.isgeneratorfunction(call):
        raise UsageError("run was given a generator as handler: calling it does nothing", hint="Leave out the `yield`")


def _work(engine: Engine[V], handler: Callable[[Record[V]], Any]) -> None:
    while (work := engine.take()) is not None:
        unreadable = False
        try:
            problem = engine.read_value(work)
            unreadable = isinstance(problem, RecordUnreadableError)
            if problem is None and inspect.iscoroutine(result := handler(work.record)):
                result.close()
                problem = UsageError("The handler gave a coroutine", hint="Use riverrun.AsyncConsumer")
        except Exception as error:  # noqa: BLE001  -- whatever a user's handler raises is judged
            problem = error
        except BaseException as error:
            engine.put_back(work)
            engine.give_up(error)
            raise
        if problem is None:
            engine.succeeded(work)
        elif engine.judge(work, problem, unreadable=unreadable):
            engine.buried(work, buried(engine, work, problem))


def buried(engine: Engine[V], work: Work[V], error: Exception) -> Exception | None:
    """Write a dead letter; why that failed."""
    try:
        engine.dead_letters.write(work.record, error, work.attempts)
        log.warning("%s went to the dead letters after %d attempts: %s: %s", work.record, work.attempts,
                    type(error).__name__, error)  # fmt: skip
    except Exception as problem:  # noqa: BLE001  -- whatever it is, the record is not safe, and all must stop
        problem.__cause__ = error
        return problem
    return None


@contextlib.contextmanager
def stop_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """SIGTERM and SIGINT call `stop`; the second of its kind does what it did before. Only in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def ask(number: int, _frame: FrameType | None) -> None:
        stop()
        signal.signal(number, before[signal.Signals(number)] or signal.SIG_DFL)

    for number, handler in before.items():
        # A handler of None was set by another language; one that ignores was chosen so (nohup).
        if handler not in (None, signal.SIG_IGN):
            signal.signal(number, ask)
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)
