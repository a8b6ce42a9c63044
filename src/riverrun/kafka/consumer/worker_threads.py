"""Worker threads for `Consumer.run`, and the signals that end it."""

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
from riverrun.kafka.consumer.parallel_runner import ParallelRunner
from riverrun.kafka.consumer.record import Record
from riverrun.kafka.consumer.scheduler import WorkItem

V = TypeVar("V")
log = logging.getLogger("riverrun.kafka.consumer")


def run_in_threads(
    runner: ParallelRunner[V], handler: Callable[[Record[V]], Any], workers: int, stop: Callable[[], None]
) -> None:
    """Handle records in threads until the runner's reading ends; then let them finish."""
    if workers < 1:
        raise UsageError(f"run cannot have workers={workers}", expected="at least 1", option="workers")
    check_sync_handler(handler)
    threads = [
        threading.Thread(target=_worker_loop, args=(runner, handler), name=f"riverrun-worker-{number}", daemon=True)
        for number in range(1, workers + 1)
    ]
    for thread in threads:
        thread.start()
    hurry = False
    with stop_on_signals(stop):
        try:
            runner.read()
        except BaseException as error:  # noqa: BLE001  -- raised by `finish`
            runner.fail(error)
            # Ctrl-C twice: the user does not want to wait.
            hurry = isinstance(error, KeyboardInterrupt)
        runner.finish(hurry=hurry)


def check_sync_handler(handler: Callable[..., Any]) -> None:
    """A handler that only returns a coroutine or generator does nothing, and all would count as handled: refuse it."""
    call = inspect.unwrap(handler.func if isinstance(handler, functools.partial) else handler)
    if not (inspect.isfunction(call) or inspect.ismethod(call)):
        call = getattr(call, "__call__", call)  # noqa: B004  -- the method of a callable object
    if inspect.iscoroutinefunction(call) or inspect.isasyncgenfunction(call):
        raise UsageError("run was given an async handler, which it cannot await", hint="Use riverrun.AsyncConsumer")
    if inspect.isgeneratorfunction(call):
        raise UsageError("run was given a generator as handler: calling it does nothing", hint="Leave out the `yield`")


def _worker_loop(runner: ParallelRunner[V], handler: Callable[[Record[V]], Any]) -> None:
    while (work := runner.take()) is not None:
        unreadable = False
        try:
            problem = runner.read_value(work)
            unreadable = isinstance(problem, RecordUnreadableError)
            if problem is None and inspect.iscoroutine(result := handler(work.record)):
                result.close()
                problem = UsageError("The handler gave a coroutine", hint="Use riverrun.AsyncConsumer")
        except Exception as error:  # noqa: BLE001  -- any error of a user's handler is handled below
            problem = error
        except BaseException as error:
            runner.release(work)
            runner.fail(error)
            raise
        if problem is None:
            runner.succeeded(work)
        elif runner.handle_failure(work, problem, unreadable=unreadable):
            runner.dead_letter_written(work, write_dead_letter(runner, work, problem))


def write_dead_letter(runner: ParallelRunner[V], work: WorkItem[V], error: Exception) -> Exception | None:
    """Write a dead letter; returns the error if that failed."""
    try:
        runner.dead_letters.write(work.record, error, work.attempts)
        log.warning("%s went to the dead letters after %d attempts: %s: %s", work.record, work.attempts,
                    type(error).__name__, error)  # fmt: skip
    except Exception as problem:  # noqa: BLE001  -- on any error the record is not written, and the run must stop
        problem.__cause__ = error
        return problem
    return None


@contextlib.contextmanager
def stop_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """SIGTERM and SIGINT call `stop`; a second one has its previous effect. Only in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def on_signal(number: int, _frame: FrameType | None) -> None:
        stop()
        signal.signal(number, previous[signal.Signals(number)] or signal.SIG_DFL)

    for number, handler in previous.items():
        # None: set by another language; ignored: chosen on purpose (nohup).
        if handler not in (None, signal.SIG_IGN):
            signal.signal(number, on_signal)
    try:
        yield
    finally:
        for number, handler in previous.items():
            if handler is not None:
                signal.signal(number, handler)
