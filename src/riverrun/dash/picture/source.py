"""What the pipeline picture is drawn from: the file that the run writes, the offsets of topics, the tables of the store."""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError

from riverrun.config.project import Project
from riverrun.config.stream_state import last, pipeline_of
from riverrun.dash.picture.figures import Seen, TopicSeen
from riverrun.errors import RiverrunError
from riverrun.errors.base import sentence
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import Connection
from riverrun.kafka.counting import RecordCount, TopicCounter
from riverrun.model.shape import Shape, shape_from
from riverrun.model.state import Place, TopicState
from riverrun.store.contract import Store

# What changes seldom is asked for as seldom.
TOPICS_SECONDS = 10.0
# So long a look waits for the brokers; slower ones are heard at the next.
PATIENCE_SECONDS = 0.5
# Of a pipeline that failed, its streams tell.
_WORDS = {"running": "runs, but", "died": "does not run:"}


class Source:
    """Looks, in one thread at a time. Without a connection nothing is known of topics."""

    def __init__(self, project: Project, app: str, connection: Connection | None, store: Store) -> None:
        self._project = project
        self._app = app
        self._store = store
        self._kafka = Kafka(connection) if connection is not None else None

    def look(self, topics: Sequence[str]) -> Seen:
        at = time.time()
        troubles: list[str] = []
        pipeline, progress = pipeline_of(self._project)
        if pipeline is not None and pipeline.get("app", self._app) != self._app:
            pipeline = progress = None
        elif pipeline is not None and pipeline["detail"] and pipeline["state"] in _WORDS:
            troubles.append(sentence(f"The pipeline {_WORDS[pipeline['state']]} {pipeline['detail']}"))
        seen: Mapping[str, TopicSeen | None] = {}
        if self._kafka is not None:
            seen, trouble = self._kafka.look(topics)
            troubles += [trouble] if trouble else []
        try:
            standings = {each.table: each for each in self._store.standing()}
        except RiverrunError as error:
            standings = {}
            troubles.append(str(error))
        return Seen(at, pipeline, progress, seen, standings, tuple(troubles))

    def shape(self) -> tuple[Shape | None, bool]:
        """The shape of what runs, or ran last, and whether it runs."""
        pipeline, progress = pipeline_of(self._project)
        progress = progress or last(self._project)
        if pipeline is None or progress is None or progress.app != self._app:
            return None, False
        return shape_from(progress.shape), pipeline["state"] == "running"

    def close(self) -> None:
        if self._kafka is not None:
            self._kafka.close()


class Kafka:
    """The offsets of topics. Asked in a thread of its own: brokers that do not answer hold nobody up."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._admin: Admin | None = None
        self._counter: TopicCounter | None = None
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="riverrun-picture-kafka")
        self._asked: Future[dict[str, TopicSeen | None]] | None = None
        self._known: dict[str, TopicSeen | None] = {}
        self._topics: dict[str, TopicState] = {}
        self._first: dict[Place, int] = {}
        self._topics_at = 0.0
        self._wanted: tuple[str, ...] = ()

    def look(self, topics: Sequence[str]) -> tuple[Mapping[str, TopicSeen | None], str]:
        """What is known by now, and what is wrong."""
        if self._asked is None:
            self._asked = self._pool.submit(self._ask, tuple(topics))
        try:
            self._known = self._asked.result(PATIENCE_SECONDS)
        except FutureTimeoutError:
            return self._known, ""
        except RiverrunError as error:
            self._asked, self._known = None, {}
            return {}, str(error)
        self._asked = None
        return self._known, ""

    def _ask(self, names: tuple[str, ...]) -> dict[str, TopicSeen | None]:
        if self._admin is None:
            self._admin = Admin(self._connection)
        now = time.monotonic()
        if names != self._wanted or now - self._topics_at > TOPICS_SECONDS:
            # Known only when all of it worked: a topic may go in between.
            self._wanted = ()
            self._topics = self._admin.topics(names, config=False)
            self._first = self._admin.offsets(self._places, "earliest")
            self._topics_at = now
        wanted, self._wanted = names, ()
        ends = self._admin.offsets(self._places, "latest", committed_only=True)
        self._wanted = wanted
        return {name: self._seen(name, ends) for name in names}

    def _count(self, state: TopicState, ends: Mapping[Place, int]) -> RecordCount | None:
        """None when they cannot be read: the offsets are of use without it."""
        if self._counter is None:
            self._counter = TopicCounter(self._connection)
        try:
            return self._counter.count(state.name, self._first, {place: ends.get(place, 0) for place in state.places})
        except RiverrunError:
            return None

    @property
    def _places(self) -> list[Place]:
        return [place for each in self._topics.values() for place in each.places]

    def _seen(self, name: str, ends: Mapping[Place, int]) -> TopicSeen | None:
        state = self._topics.get(name)
        if state is None:
            return None
        first = sum(self._first.get(place, 0) for place in state.places)
        end = sum(ends.get(place, 0) for place in state.places)
        # Counting reads records: the first look gives what is known at once.
        count = self._count(state, ends) if name in self._known else None
        return TopicSeen(first, end, len(state.partitions), state.trouble, count)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
