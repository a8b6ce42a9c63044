"""Requests that are written once (`Idempotency-Key`) or completely (`?atomic=true`): in a Kafka transaction.

The records of such a request and its response are written together, the response under the request's key into the topic
`APP.ingest-keys`. So a key is there exactly if its records are. A process takes over the transactional id first, which
aborts what an earlier process left open, and then reads the topic: a request that is sent again, also to a later process,
is answered from there and not written.

One thread does all of it, so that two requests with one key are never written at the same time; requests that wait meanwhile
share the next transaction. Only the newest responses are in memory; of the others a key's hash and its offset in Kafka.
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

from riverrun.connectors.http.record_parser import KeyValue
from riverrun.connectors.http.responses import RequestRejectedError, rejection_for, too_many_requests
from riverrun.errors import BrokerUnreachableError, RiverrunError, TopicExistsError, TransactionError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import Connection
from riverrun.kafka.producer.delivery import Delivery
from riverrun.kafka.producer.producer import Producer
from riverrun.kafka.producer.transaction import Transaction
from riverrun.kafka.reading.partition_reader import OffsetRange, PartitionReader
from riverrun.model.cluster_state import TopicPartition

MAX_WAITING = 1000
# The largest transaction that requests share.
MAX_REQUESTS = 200
MAX_RECORDS = 20_000
# Cached responses, for requests that are repeated soon.
CACHE_BYTES = 4 * 2**20
KEYS_FULL_RETRY_SECONDS = 60
# How long /health reports a failure. A load balancer that sees it sends nothing that would show that it is over.
UNHEALTHY_SECONDS = 30.0
_MIN_SEGMENT_MS = 60_000
_LOG = logging.getLogger("riverrun.connectors.http")


def idempotency_topic(app: str) -> str:
    return f"{app}.ingest-keys"


class StoredResponse(msgspec.Struct, frozen=True):
    """The response to a request, as it is stored: when, for what content, and the response."""

    at: int
    digest: str
    status: int
    body: msgspec.Raw


RecordOffsets = Sequence[tuple[int, int]]


@dataclass(eq=False)
class TransactionalRequest:
    """A request. `key` is empty where only all or nothing is asked for; `digest` is a hash of what it says; `make_response`
    makes status and body of where its records are."""

    topic: str
    records: Sequence[KeyValue]
    headers: list[tuple[str, str | bytes | None]]
    make_response: Callable[[RecordOffsets], tuple[int, bytes]]
    key: bytes = b""
    digest: str = ""
    # The sender waits no longer. If it is not started then, it is not written.
    abandoned: bool = False
    started: bool = False
    respond: Callable[[tuple[int, bytes, bool] | RequestRejectedError], None] = field(default=lambda _: None)


def scoped_key(*parts: str) -> bytes:
    """A key that is unique among those of all senders and topics."""
    return hashlib.blake2b("\0".join(parts).encode("utf-8", "surrogateescape"), digest_size=16).digest()


def request_digest(*parts: bytes) -> str:
    return hashlib.blake2b(b"\0".join(parts), digest_size=16).hexdigest()


class IdempotencyIndex:
    """The known keys: the offset of the response of each, and its time. The oldest expire after the window."""

    def __init__(self, window_ms: int, max_keys: int) -> None:
        self._window_ms = window_ms
        self._max_keys = max_keys
        self._entries: dict[bytes, tuple[int, int]] = {}
        self._cache: OrderedDict[bytes, StoredResponse] = OrderedDict()
        self._cache_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def expire(self, now: int) -> None:
        while self._entries:
            key = next(iter(self._entries))
            if self._entries[key][1] + self._window_ms > now:
                return
            del self._entries[key]

    @property
    def is_full(self) -> bool:
        return len(self._entries) >= self._max_keys

    def add(self, key: bytes, offset: int, response: StoredResponse, *, cache: bool = True) -> None:
        self._entries.pop(key, None)
        self._entries[key] = (offset, response.at)
        if (old := self._cache.pop(key, None)) is not None:
            self._cache_bytes -= len(bytes(old.body))
        if cache:
            self._cache[key] = response
            self._cache_bytes += len(bytes(response.body))
            while self._cache_bytes > CACHE_BYTES:
                self._cache_bytes -= len(bytes(self._cache.popitem(last=False)[1].body))

    def offset_of(self, key: bytes) -> int | None:
        """The offset of its response; None for a new key."""
        entry = self._entries.get(key)
        return entry[0] if entry is not None else None

    def cached(self, key: bytes) -> StoredResponse | None:
        return self._cache.get(key)


class IdempotentWriter:
    """Writes such requests. Opens its producer with the first of them: apps without such requests pay nothing."""

    def __init__(
        self,
        connection: Connection,
        app: str,
        *,
        window_ms: int,
        max_keys: int,
        timeout_seconds: float,
        max_message_bytes: int = 1_000_000,
    ) -> None:
        self._connection = connection
        self._app = app
        self._topic = idempotency_topic(app)
        self._window_ms = window_ms
        self._timeout = timeout_seconds
        self._max_message_bytes = max_message_bytes
        self._index = IdempotencyIndex(window_ms, max_keys)
        self._next_offset = 0
        self._producer: Producer | None = None
        self._requests: queue.Queue[TransactionalRequest | None] = queue.Queue(MAX_WAITING)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        # By the monotonic clock, the last failure that no successful write followed.
        self._failed_at: float | None = None
        # Records in the topic that are not ours. Somebody wrote there by mistake.
        self.unreadable_keys = 0

    @property
    def problem(self) -> str:
        """Why such requests are not written at the moment, if that is our own fault; else empty. It is public: the details
        are in the log."""
        failed_at = self._failed_at
        if failed_at is None or time.monotonic() - failed_at >= UNHEALTHY_SECONDS:
            return ""
        return "Requests with an Idempotency-Key are not written at the moment"

    # --- for the event loop ---

    async def write(self, request: TransactionalRequest, deadline: float) -> tuple[int, bytes, bool]:
        """Status, body, and whether it was written before. Rejected when it was not written, or when that is not known by
        the deadline (of the loop's clock)."""
        loop = asyncio.get_running_loop()
        outcome_future: asyncio.Future[tuple[int, bytes, bool] | RequestRejectedError] = loop.create_future()

        def set_outcome(outcome_or_error: tuple[int, bytes, bool] | RequestRejectedError) -> None:
            if not outcome_future.done():
                outcome_future.set_result(outcome_or_error)

        def respond(outcome_or_error: tuple[int, bytes, bool] | RequestRejectedError) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(set_outcome, outcome_or_error)

        request.respond = respond
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run_thread, name="riverrun-ingest-once", daemon=True)
            self._thread.start()
        try:
            self._requests.put_nowait(request)
        except queue.Full:
            raise too_many_requests("Too many requests wait for their turn; nothing of this one was taken") from None
        try:
            async with asyncio.timeout_at(deadline):
                outcome = await outcome_future
        except TimeoutError:
            self._abandon(request)
            raise RequestRejectedError(
                503,
                BrokerUnreachableError.code,
                "Kafka has not answered in time. The records may be written or not: the same request with the same "
                "Idempotency-Key tells, and writes them only if they are not",
                retry_after=5,
            ) from None
        except asyncio.CancelledError:
            self._abandon(request)
            raise
        if isinstance(outcome, RequestRejectedError):
            raise outcome
        return outcome

    def _abandon(self, request: TransactionalRequest) -> None:
        """Nobody waits for it any more. If it was not started it is not written, and its records are released: its request
        has returned its share of the memory."""
        with self._lock:
            request.abandoned = True
            if not request.started:
                request.records, request.make_response = (), _no_response

    def close(self) -> None:
        if self._thread is not None:
            with contextlib.suppress(queue.Full):
                self._requests.put_nowait(None)
            self._thread.join(self._timeout + 10)

    # --- the thread ---

    def _run_thread(self) -> None:
        try:
            self._serve()
        except BaseException:
            # The next request starts another thread.
            self._failed_at = time.monotonic()
            raise
        finally:
            self._close_producer()

    def _serve(self) -> None:
        while (first := self._requests.get()) is not None:
            requests = [first]
            ended = self._drain_queue(requests)
            try:
                self._process(requests)
                self._failed_at = None
            except Exception:  # noqa: BLE001
                # On any error, waiting requests get a response and the next are tried: a dead thread would fail them all.
                _LOG.exception("Requests with Idempotency-Key or ?atomic=true were not written")
                self._failed_at = time.monotonic()
                self._close_producer()
                for request in requests:
                    request.respond(
                        RequestRejectedError(503, "UNAVAILABLE", "Something went wrong on our side", retry_after=5)
                    )
            if ended:
                break

    def _drain_queue(self, requests: list[TransactionalRequest]) -> bool:
        """Add what else is waiting; returns whether the queue was closed."""
        count = len(requests[0].records)
        while len(requests) < MAX_REQUESTS and count < MAX_RECORDS:
            try:
                more = self._requests.get_nowait()
            except queue.Empty:
                return False
            if more is None:
                return True
            requests.append(more)
            count += len(more.records)
        return False

    def _process(self, requests: list[TransactionalRequest]) -> None:
        """Replay those that were written before, and write the rest. Of two with one key the second is processed again."""
        try:
            self._open()
        except RiverrunError as error:
            self._reject_all(requests, error)
            return
        now = time.time_ns() // 1_000_000
        self._index.expire(now)
        new_requests: list[TransactionalRequest] = []
        repeated: list[TransactionalRequest] = []
        new_keys: set[bytes] = set()
        for request in requests:
            with self._lock:
                if request.abandoned and not request.started:
                    continue
                request.started = True
            if request.key and request.key in new_keys:
                repeated.append(request)
            elif request.key and (offset := self._index.offset_of(request.key)) is not None:
                self._replay(request, offset)
            elif request.key and self._index.is_full:
                request.respond(
                    too_many_requests(
                        "Too many Idempotency-Keys are remembered; nothing was taken", KEYS_FULL_RETRY_SECONDS
                    )
                )
            else:
                new_keys.add(request.key)
                new_requests.append(request)
        if new_requests:
            self._write(new_requests, now)
        if repeated:
            self._process(repeated)

    def _write(self, requests: list[TransactionalRequest], now: int) -> None:
        try:
            done = self._write_transaction(requests, now)
        except RiverrunError as error:
            # The commit's outcome or the producer's state is unknown: the next request reads the topic first.
            self._close_producer()
            if len(requests) > 1 and not error.retryable and not isinstance(error, TransactionError):
                # One bad request may have failed all of them.
                for request_alone in requests:
                    self._process([request_alone])
                return
            self._reject_all(requests, error)
            return
        for request, status, body in done:
            request.respond((status, body, False))

    def _write_transaction(
        self, requests: list[TransactionalRequest], now: int
    ) -> list[tuple[TransactionalRequest, int, bytes]]:
        assert self._producer is not None  # noqa: S101  -- _open came first
        done: list[tuple[TransactionalRequest, int, bytes]] = []
        stored: list[tuple[bytes, StoredResponse, Delivery]] = []
        with self._producer.transaction() as transaction:
            sent = [(request, _send(transaction, request)) for request in requests]
            for request, deliveries in sent:
                status, body = request.make_response([_partition_offset(delivered) for delivered in deliveries])
                done.append((request, status, body))
                if request.key:
                    response = StoredResponse(now, request.digest, status, msgspec.Raw(body))
                    key = request.key.hex().encode()
                    stored.append(
                        (
                            request.key,
                            response,
                            transaction.send_soon(self._topic, msgspec.json.encode(response), key=key),
                        )
                    )
        for raw, response, delivery in stored:
            offset = delivery.result().offset
            self._index.add(raw, offset, response)
            self._next_offset = max(self._next_offset, offset + 1)
        return done

    def _replay(self, request: TransactionalRequest, offset: int) -> None:
        try:
            response = self._index.cached(request.key) or self._read_response(offset)
        except RiverrunError as error:
            request.respond(rejection_for(error))
            return
        if response.digest != request.digest:
            request.respond(
                RequestRejectedError(
                    422, "KEY_REUSED", "This Idempotency-Key was used for another request: a new request has a new key"
                )
            )
        else:
            request.respond((response.status, bytes(response.body), True))

    def _reject_all(self, requests: Sequence[TransactionalRequest], error: RiverrunError) -> None:
        _LOG.warning("Requests with Idempotency-Key or ?atomic=true were not written: %s", error)
        for request in requests:
            request.respond(rejection_for(error))

    # --- the topic ---

    def _open(self) -> None:
        """Take over the transactional id, and read what is new in the topic since the last load."""
        if self._producer is not None:
            return
        admin = Admin(self._connection)
        if self._topic not in admin.topics([self._topic], config=False):
            config = {
                "cleanup.policy": "compact,delete",
                "retention.ms": str(self._window_ms),
                "segment.ms": str(max(self._window_ms // 4, _MIN_SEGMENT_MS)),
            }
            with contextlib.suppress(TopicExistsError):
                admin.create_topic(self._topic, partitions=1, replicas=0, config=config)
        producer = Producer(
            self._connection,
            transactional_id=self._topic,
            transaction_timeout_seconds=self._timeout,
            delivery_timeout_seconds=self._timeout,
            queue_timeout_seconds=self._timeout,
            properties={"message.max.bytes": self._max_message_bytes},
        )
        try:
            with producer.transaction():
                pass  # the previous owner of the id is fenced, and its open transaction is aborted
            self._load_index(admin)
        except BaseException:
            _close_quietly(producer)
            raise
        self._producer = producer

    def _load_index(self, admin: Admin) -> None:
        partition = TopicPartition(self._topic, 0)
        first, end = (admin.offsets([partition], at, committed_only=True)[partition] for at in ("earliest", "latest"))
        with PartitionReader(self._connection, {partition: OffsetRange(max(self._next_offset, first), end)}) as reader:
            for batch in reader:
                for record in batch:
                    if record.value() is None:
                        continue
                    try:
                        key, response = bytes.fromhex((record.key() or b"").decode()), _decode_response(record.value())
                    except (ValueError, msgspec.MsgspecError) as error:
                        self.unreadable_keys += 1
                        _LOG.warning(
                            "%s@%s is no Idempotency-Key and is passed over: %s", partition, record.offset(), error
                        )
                        continue
                    self._index.add(key, record.offset() or 0, response, cache=False)
        self._next_offset = max(self._next_offset, end)

    def _read_response(self, offset: int) -> StoredResponse:
        with PartitionReader(
            self._connection, {TopicPartition(self._topic, 0): OffsetRange(offset, offset + 1)}
        ) as reader:
            for batch in reader:
                for record in batch:
                    return _decode_response(record.value())
        raise BrokerUnreachableError(f"The answer at offset {offset} of {self._topic} cannot be read")

    def _close_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            _close_quietly(producer)


def _decode_response(value: bytes | None) -> StoredResponse:
    return msgspec.json.decode(value or b"", type=StoredResponse)


def _no_response(_: RecordOffsets) -> tuple[int, bytes]:
    raise AssertionError("a request that was given up is not answered")


def _close_quietly(producer: Producer) -> None:
    with contextlib.suppress(RiverrunError):
        producer.close(0)


def _send(transaction: Transaction, request: TransactionalRequest) -> list[Delivery]:
    headers = request.headers or None
    return [transaction.send_soon(request.topic, value, key=key, headers=headers) for key, value in request.records]


def _partition_offset(delivery: Delivery) -> tuple[int, int]:
    receipt = delivery.result()
    return receipt.partition, receipt.offset
