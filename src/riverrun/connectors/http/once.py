"""Requests that are written once (`Idempotency-Key`) or whole (`?atomic=true`): in a transaction of Kafka's.

The records of such a request and what it was answered are written together, the answer under the request's key into the
topic `APP.ingest-keys`. So a key is there exactly if its records are. Who starts takes the transactional id over first,
which ends what an earlier process left open, and reads the topic then: a request that is sent again, also to the process
after this one, is answered from there and not written.

One thread does all of it, so that two requests with one key are never written at the same time; requests that wait meanwhile
share the next transaction. The answers themselves stay in Kafka, but for the newest: memory has a key's hash and its place.
"""

import asyncio
import contextlib
import hashlib
import logging
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from riverrun.connectors.http.answers import Refused, busy, refused_by
from riverrun.connectors.http.records import Record
from riverrun.errors import BrokerUnreachableError, RiverrunError, TopicExistsError, TransactionError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import Connection
from riverrun.kafka.consumer.reader import Reader, Span
from riverrun.kafka.producer.delivery import Delivery
from riverrun.kafka.producer.producer import Producer
from riverrun.kafka.producer.transaction import Transaction
from riverrun.model.state import Place

MOST_WAITING = 1000
# What shares a transaction.
MOST_JOBS = 200
MOST_RECORDS = 20_000
# Answers at hand, for those who ask again soon.
RECENT_BYTES = 4 * 2**20
FULL_SECONDS = 60
# How long /health tells of a failure. A balancer that hears of it sends nothing that would show that it is over.
TOLD_SECONDS = 30.0
_LEAST_SEGMENT_MS = 60_000
_LOG = logging.getLogger("riverrun.connectors.http")


def keys_topic(app: str) -> str:
    return f"{app}.ingest-keys"


class Answered(msgspec.Struct, frozen=True):
    """What a request was answered, as it is kept: when, of what content, and the answer."""

    at: int
    content: str
    status: int
    body: msgspec.Raw


Places = Sequence[tuple[int, int]]


@dataclass(eq=False)
class Job:
    """A request. `key` is empty where only all or nothing is asked for; `content` is a hash of what it says; `answer` makes
    status and body of where its records are."""

    topic: str
    records: Sequence[Record]
    headers: list[tuple[str, str | bytes | None]]
    answer: Callable[[Places], tuple[int, bytes]]
    key: bytes = b""
    content: str = ""
    # The sender waits no longer. What is not begun then is not written.
    given_up: bool = False
    begun: bool = False
    told: Callable[[tuple[int, bytes, bool] | Refused], None] = field(default=lambda _: None)


def job_key(*parts: str) -> bytes:
    """A key among those of all senders and topics."""
    return hashlib.blake2b("\0".join(parts).encode("utf-8", "surrogateescape"), digest_size=16).digest()


def content_of(*parts: bytes) -> str:
    return hashlib.blake2b(b"\0".join(parts), digest_size=16).hexdigest()


class Known:
    """The keys there are: where the answer of each is, and when it was given. The oldest go when their time is over."""

    def __init__(self, window_ms: int, most: int) -> None:
        self._window_ms = window_ms
        self._most = most
        self._places: dict[bytes, tuple[int, int]] = {}
        self._recent: OrderedDict[bytes, Answered] = OrderedDict()
        self._recent_bytes = 0

    def __len__(self) -> int:
        return len(self._places)

    def forget_old(self, now: int) -> None:
        while self._places:
            key = next(iter(self._places))
            if self._places[key][1] + self._window_ms > now:
                return
            del self._places[key]

    @property
    def full(self) -> bool:
        return len(self._places) >= self._most

    def add(self, key: bytes, offset: int, found: Answered, *, recent: bool = True) -> None:
        self._places.pop(key, None)
        self._places[key] = (offset, found.at)
        if (old := self._recent.pop(key, None)) is not None:
            self._recent_bytes -= len(bytes(old.body))
        if recent:
            self._recent[key] = found
            self._recent_bytes += len(bytes(found.body))
            while self._recent_bytes > RECENT_BYTES:
                self._recent_bytes -= len(bytes(self._recent.popitem(last=False)[1].body))

    def find(self, key: bytes) -> int | None:
        """The offset of its answer; None for a key that is new."""
        found = self._places.get(key)
        return found[0] if found is not None else None

    def recent(self, key: bytes) -> Answered | None:
        return self._recent.get(key)


class Scribe:
    """Writes such requests. Opened with the first of them: who sends none pays for none."""

    def __init__(
        self,
        connection: Connection,
        app: str,
        *,
        window_ms: int,
        most_keys: int,
        timeout_seconds: float,
        largest: int = 1_000_000,
    ) -> None:
        self._connection = connection
        self._app = app
        self._topic = keys_topic(app)
        self._window_ms = window_ms
        self._timeout = timeout_seconds
        self._largest = largest
        self._known = Known(window_ms, most_keys)
        self._next = 0
        self._producer: Producer | None = None
        self._jobs: queue.Queue[Job | None] = queue.Queue(MOST_WAITING)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        # By the monotonic clock, the last failure that nothing was written after.
        self._failed_at: float | None = None
        # Records in the topic that are none of ours. Somebody wrote there by mistake.
        self.foreign = 0

    @property
    def problem(self) -> str:
        """Why such requests are not written at the moment, where that is our own fault; else empty. For anybody to see:
        what exactly went wrong is in the log."""
        failed_at = self._failed_at
        if failed_at is None or time.monotonic() - failed_at >= TOLD_SECONDS:
            return ""
        return "Requests with an Idempotency-Key are not written at the moment"

    # --- for the event loop ---

    async def write(self, job: Job, deadline: float) -> tuple[int, bytes, bool]:
        """Status, body, and whether it was written before. Refused when it was not written, or when that is not known by
        the deadline (of the loop's clock)."""
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[tuple[int, bytes, bool] | Refused] = loop.create_future()

        def tell(found: tuple[int, bytes, bool] | Refused) -> None:
            if not waiting.done():
                waiting.set_result(found)

        def told(found: tuple[int, bytes, bool] | Refused) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(tell, found)

        job.told = told
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._work, name="riverrun-ingest-once", daemon=True)
            self._thread.start()
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            raise busy("Too many requests wait for their turn; nothing of this one was taken") from None
        try:
            async with asyncio.timeout_at(deadline):
                found = await waiting
        except TimeoutError:
            self._give_up(job)
            raise Refused(
                503,
                BrokerUnreachableError.code,
                "Kafka has not answered in time. The records may be written or not: the same request with the same "
                "Idempotency-Key tells, and writes them only if they are not",
                retry_after=5,
            ) from None
        except asyncio.CancelledError:
            self._give_up(job)
            raise
        if isinstance(found, Refused):
            raise found
        return found

    def _give_up(self, job: Job) -> None:
        """Nobody waits for it any more. If it was not begun it is not written, and what it holds is let go: its request has
        given its share of the memory back."""
        with self._lock:
            job.given_up = True
            if not job.begun:
                job.records, job.answer = (), _no_answer

    def close(self) -> None:
        if self._thread is not None:
            with contextlib.suppress(queue.Full):
                self._jobs.put_nowait(None)
            self._thread.join(self._timeout + 10)

    # --- the thread ---

    def _work(self) -> None:
        try:
            self._serve()
        except BaseException:
            # The next request starts another thread.
            self._failed_at = time.monotonic()
            raise
        finally:
            self._drop()

    def _serve(self) -> None:
        while (first := self._jobs.get()) is not None:
            jobs = [first]
            ended = self._gather(jobs)
            try:
                self._take(jobs)
                self._failed_at = None
            except Exception:  # noqa: BLE001
                # Whatever it is, those who wait are told, and the next are tried: a thread that ended would fail them all.
                _LOG.exception("Requests with Idempotency-Key or ?atomic=true were not written")
                self._failed_at = time.monotonic()
                self._drop()
                for job in jobs:
                    job.told(Refused(503, "UNAVAILABLE", "Something went wrong on our side", retry_after=5))
            if ended:
                break

    def _gather(self, jobs: list[Job]) -> bool:
        """What waits besides; whether it is the end."""
        count = len(jobs[0].records)
        while len(jobs) < MOST_JOBS and count < MOST_RECORDS:
            try:
                more = self._jobs.get_nowait()
            except queue.Empty:
                return False
            if more is None:
                return True
            jobs.append(more)
            count += len(more.records)
        return False

    def _take(self, jobs: list[Job]) -> None:
        """Answer those that were written before, and write the rest. Of two with one key the second is asked again."""
        try:
            self._open()
        except RiverrunError as error:
            self._failed(jobs, error)
            return
        now = time.time_ns() // 1_000_000
        self._known.forget_old(now)
        fresh: list[Job] = []
        again: list[Job] = []
        taken: set[bytes] = set()
        for job in jobs:
            with self._lock:
                if job.given_up and not job.begun:
                    continue
                job.begun = True
            if job.key and job.key in taken:
                again.append(job)
            elif job.key and (offset := self._known.find(job.key)) is not None:
                self._repeat(job, offset)
            elif job.key and self._known.full:
                job.told(busy("Too many Idempotency-Keys are remembered; nothing was taken", FULL_SECONDS))
            else:
                taken.add(job.key)
                fresh.append(job)
        if fresh:
            self._write(fresh, now)
        if again:
            self._take(again)

    def _write(self, jobs: list[Job], now: int) -> None:
        try:
            done = self._transaction(jobs, now)
        except RiverrunError as error:
            # A commit of which nobody knows, or a producer of which nothing is: what follows reads the topic first.
            self._drop()
            if len(jobs) > 1 and not error.retryable and not isinstance(error, TransactionError):
                # One of them may be what is wrong with all.
                for each in jobs:
                    self._take([each])
                return
            self._failed(jobs, error)
            return
        for job, status, body in done:
            job.told((status, body, False))

    def _transaction(self, jobs: list[Job], now: int) -> list[tuple[Job, int, bytes]]:
        assert self._producer is not None  # noqa: S101  -- _open came first
        done: list[tuple[Job, int, bytes]] = []
        kept: list[tuple[bytes, Answered, Delivery]] = []
        with self._producer.transaction() as transaction:
            sent = [(job, _send(transaction, job)) for job in jobs]
            for job, deliveries in sent:
                status, body = job.answer([_place(each) for each in deliveries])
                done.append((job, status, body))
                if job.key:
                    found = Answered(now, job.content, status, msgspec.Raw(body))
                    key = job.key.hex().encode()
                    kept.append(
                        (job.key, found, transaction.send_soon(self._topic, msgspec.json.encode(found), key=key))
                    )
        for raw, found, delivery in kept:
            offset = delivery.result().offset
            self._known.add(raw, offset, found)
            self._next = max(self._next, offset + 1)
        return done

    def _repeat(self, job: Job, offset: int) -> None:
        try:
            found = self._known.recent(job.key) or self._read_one(offset)
        except RiverrunError as error:
            job.told(refused_by(error))
            return
        if found.content != job.content:
            job.told(
                Refused(
                    422, "KEY_REUSED", "This Idempotency-Key was used for another request: a new request has a new key"
                )
            )
        else:
            job.told((found.status, bytes(found.body), True))

    def _failed(self, jobs: Sequence[Job], error: RiverrunError) -> None:
        _LOG.warning("Requests with Idempotency-Key or ?atomic=true were not written: %s", error)
        for job in jobs:
            job.told(refused_by(error))

    # --- the topic ---

    def _open(self) -> None:
        """Take the transactional id over, and read what is new in the topic since we last knew all of it."""
        if self._producer is not None:
            return
        admin = Admin(self._connection)
        if self._topic not in admin.topics([self._topic], config=False):
            config = {
                "cleanup.policy": "compact,delete",
                "retention.ms": str(self._window_ms),
                "segment.ms": str(max(self._window_ms // 4, _LEAST_SEGMENT_MS)),
            }
            with contextlib.suppress(TopicExistsError):
                admin.create_topic(self._topic, partitions=1, replicas=0, config=config)
        producer = Producer(
            self._connection,
            transactional_id=self._topic,
            transaction_timeout_seconds=self._timeout,
            delivery_timeout_seconds=self._timeout,
            queue_timeout_seconds=self._timeout,
            properties={"message.max.bytes": self._largest},
        )
        try:
            with producer.transaction():
                pass  # whoever had the id before is fenced off, and what it left open is aborted
            self._read(admin)
        except BaseException:
            _end(producer)
            raise
        self._producer = producer

    def _read(self, admin: Admin) -> None:
        place = Place(self._topic, 0)
        first, end = (admin.offsets([place], at, committed_only=True)[place] for at in ("earliest", "latest"))
        with Reader(self._connection, {place: Span(max(self._next, first), end)}) as reader:
            for batch in reader:
                for each in batch:
                    if each.value() is None:
                        continue
                    try:
                        key, found = bytes.fromhex((each.key() or b"").decode()), _answered(each.value())
                    except (ValueError, msgspec.MsgspecError) as error:
                        self.foreign += 1
                        _LOG.warning("%s@%s is no Idempotency-Key and is passed over: %s", place, each.offset(), error)
                        continue
                    self._known.add(key, each.offset() or 0, found, recent=False)
        self._next = max(self._next, end)

    def _read_one(self, offset: int) -> Answered:
        with Reader(self._connection, {Place(self._topic, 0): Span(offset, offset + 1)}) as reader:
            for batch in reader:
                for each in batch:
                    return _answered(each.value())
        raise BrokerUnreachableError(f"The answer at offset {offset} of {self._topic} cannot be read")

    def _drop(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            _end(producer)


def _answered(value: bytes | None) -> Answered:
    return msgspec.json.decode(value or b"", type=Answered)


def _no_answer(_: Places) -> tuple[int, bytes]:
    raise AssertionError("a request that was given up is not answered")


def _end(producer: Producer) -> None:
    with contextlib.suppress(RiverrunError):
        producer.close(0)


def _send(transaction: Transaction, job: Job) -> list[Delivery]:
    headers = job.headers or None
    return [transaction.send_soon(job.topic, value, key=key, headers=headers) for key, value in job.records]


def _place(delivery: Delivery) -> tuple[int, int]:
    receipt = delivery.result()
    return receipt.partition, receipt.offset
