"""The box in the cellar that all sensors are wired to: it posts what they counted, and keeps it until that is acknowledged.

It holds so many records and no more. While riverrun has no time (429), Kafka does not answer (503) or nobody is there, it
posts the same records again, with the same Idempotency-Key, and takes none from the sensors meanwhile: they wait, too. A key
that was used is not written again, so a post without an answer can be repeated until there is one.
"""

import random
import sys
import threading
import time
import uuid
from typing import Any, Self

import httpx
import msgspec

from riverrun.config import find_project
from riverrun.config.ingest_state import find_ingest_endpoint
from riverrun.model.topic import Topic

# So many records, or those of so many seconds, are posted together.
MOST, SOON_SECONDS = 500, 0.25
# Pauses between tries, where the answer does not say how long.
FIRST_PAUSE, LAST_PAUSE = 0.1, 5.0
# From the first try to the last. A real one would go on for days; a demo is to end.
PATIENCE_SECONDS, START_SECONDS = 120.0, 900.0
ANSWER_SECONDS = 40.0


class Gateway:
    """Posts records of a topic, in a `with`: at its end all are acknowledged, or refused because they are none."""

    def __init__(self, topic: Topic[Any], stop: threading.Event, client: httpx.Client | None = None) -> None:
        self._topic = topic.name
        self._stop = stop
        self._project = find_project()
        self._client = client or httpx.Client(timeout=ANSWER_SECONDS, trust_env=False)
        self._held: list[bytes] = []
        self._since = 0.0
        # Of this life of the gateway: a post has the same key in each try, and no other post has it.
        self._life, self._posts = uuid.uuid4().hex, 0
        self._counts = {"acknowledged": 0, "refused": 0, "posts": 0, "tried_again": 0}

    def __enter__(self) -> Self:
        ends = time.monotonic() + START_SECONDS
        while find_ingest_endpoint(self._project) is None and not self._stop.wait(0.2):
            if time.monotonic() > ends:
                sys.exit("Nobody takes records by HTTP here: start `riverrun run` in another terminal.")
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._post()
        self._client.close()

    def send(self, event: Any) -> None:
        """Take a record. Returns when there is room for the next one."""
        if not self._held:
            self._since = time.monotonic()
        # What is broken is sent as it is.
        self._held.append(event if isinstance(event, bytes) else msgspec.json.encode(event))
        if len(self._held) >= MOST or time.monotonic() - self._since >= SOON_SECONDS:
            self._post()

    def counts(self) -> dict[str, int]:
        return self._counts

    def _post(self) -> None:
        """Until it is acknowledged."""
        if not self._held:
            return
        self._posts += 1
        body, key = b"\n".join(self._held), f"{self._life}-{self._posts}"
        ends, pause = time.monotonic() + PATIENCE_SECONDS, FIRST_PAUSE
        while True:
            status, said, after = self._try(body, key)
            if "accepted" in said and status < 500:
                break
            if status not in (0, 408, 429) and status < 500:
                sys.exit(f"The records were refused with {status}: {said.get('error', said)}")
            if time.monotonic() > ends:
                sys.exit(f"{len(self._held)} records are not acknowledged after {PATIENCE_SECONDS:.0f} s: {said}")
            self._counts["tried_again"] += 1
            # Not all at the same moment, where there are many of us.
            time.sleep(max(after, pause * random.uniform(0.5, 1.0)))
            pause = min(2 * pause, LAST_PAUSE)
        self._counts["posts"] += 1
        self._counts["acknowledged"] += said["accepted"]
        self._counts["refused"] += said["refused"]
        self._held = []

    def _try(self, body: bytes, key: str) -> tuple[int, dict[str, Any], float]:
        """The answer: its status (0: there was none), what it says, and how long to wait before the next try."""
        found = find_ingest_endpoint(self._project)
        if found is None:
            return 0, {"error": "nobody takes records by HTTP"}, 0.0
        headers = {"content-type": "application/x-ndjson", "idempotency-key": key}
        own = self._project.home / "ingest-key.txt"
        if own.is_file():
            headers["authorization"] = f"Bearer {own.read_text(encoding='utf-8').strip()}"
        try:
            answer = self._client.post(f"{found.address}/topics/{self._topic}", content=body, headers=headers)
            return answer.status_code, answer.json(), float(answer.headers.get("retry-after", 0))
        except (httpx.TransportError, ValueError) as error:
            return 0, {"error": str(error) or type(error).__name__}, 0.0
