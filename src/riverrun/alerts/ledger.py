"""What is kept of alerts: records of a compacted topic, `APP.alerts`, and what they come to when they are read in order.

The key of a record says what it is about, its value how that stands now; without a value it is forgotten. One process writes
the episodes, cases, letters and positions, in one transaction with the offsets it has read. Silences and acknowledgements
come from people, by whatever program they use; what can be watched, from the pipeline; reports of delivery, from whoever
serves the provider's callbacks.
"""

import secrets
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from riverrun.alerts.channels.contract import Delivery, Message
from riverrun.errors import RecordUnreadableError
from riverrun.model.topic import check_topic_name

VERSION = 1
ENDING = ".alerts"

Kind = Literal["fired", "resolved", "escalated", "digest"]
# held: until quiet hours are over; gathering: for a digest; out: the sender's. The others are ends, and none was sent.
Stage = Literal["held", "gathering", "out", "listed", "expired", "silenced", "dropped", "cancelled"]


class _Record(msgspec.Struct, kw_only=True, omit_defaults=True, tag_field="is"):
    version: int = VERSION

    def about(self) -> list[Any]:
        """What the record is about, besides its kind: with that, its key."""
        return []


class Meta(_Record, tag="meta"):
    """Made with the ledger. `namespace` keeps the messages of one ledger's life apart from those of the next."""

    namespace: str


class Position(_Record, tag="position"):
    """Everything before `offset` of this partition was judged. `topic_id` tells a topic from one made anew."""

    topic: str
    partition: int
    offset: int
    topic_id: str = ""

    def about(self) -> list[Any]:
        return [self.topic, self.partition]


class Episode(_Record, tag="episode"):
    """How a key stands for a rule. `number` counts its episodes; times are event times: the newest row's, when the condition
    began to hold, when it last fired (-1: never). Only `read` is our clock or Kafka's: the day on which a row last came."""

    rule: str
    key: str
    state: Literal["quiet", "pending", "firing"] = "quiet"
    number: int = 0
    time: int = -1
    since: int = -1
    fired: int = -1
    read: int = -1
    # For absence: the topic's time when the last row came, and that row. For rules that fire at every row: the newest
    # identities of real time.
    heard: int = -1
    row: dict[str, Any] = {}
    recent: list[str] = []

    def about(self) -> list[Any]:
        return [self.rule, self.key]


class Case(_Record, tag="case"):
    """One episode as people see it: why it fired, and what was done. `made` and `ended` are times of our clock."""

    rule: str
    key: str
    number: int
    place: str
    since: int
    at: int
    recorded: int
    made: int
    row: dict[str, Any] = {}
    severity: str = "warning"
    # "once": it fired at a row, and there is nothing to be over.
    state: Literal["firing", "resolved", "once"] = "firing"
    ended: int = -1
    escalated: int = -1
    letters: list[str] = []

    def about(self) -> list[Any]:
        return [self.rule, self.key, self.number]


class Letter(_Record, tag="letter"):
    """A message, and where it stands on our side. Its way to the provider is its `Sent`."""

    message: Message
    rule: str
    key: str
    number: int
    kind: Kind
    made: int
    stage: Stage = "out"
    # Held or gathering until then; out since then.
    until: int = 0
    note: str = ""
    lists: list[str] = []

    def about(self) -> list[Any]:
        return [self.message.id]


class Sent(_Record, tag="sent"):
    """Where a letter stands at the provider."""

    id: str
    delivery: Delivery

    def about(self) -> list[Any]:
        return [self.id]


class Silence(_Record, tag="silence"):
    """Nothing is sent for this rule and key until then; empty means all."""

    id: str
    until: int
    rule: str = ""
    key: str = ""
    begun: int = 0
    by: str = ""
    why: str = ""

    def about(self) -> list[Any]:
        return [self.id]

    def covers(self, rule: str, key: str, now: int) -> bool:
        return now < self.until and self.rule in ("", rule) and self.key in ("", key)


class Ack(_Record, tag="ack"):
    """Somebody looks after this episode."""

    rule: str
    key: str
    number: int
    at: int
    by: str = ""

    def about(self) -> list[Any]:
        return [self.rule, self.key, self.number]


class Watched(_Record, tag="table"):
    """What a rule can watch, as the pipeline has compiled it: so a rule is judged without Spark. `spec` is a TableSpec's."""

    name: str
    spec: dict[str, Any]

    def about(self) -> list[Any]:
        return [self.name]


class Reported(_Record, tag="report"):
    """What a provider said later of a message it took, as whoever serves its callbacks wrote it down. It is taken back when
    it has become part of the message's `Sent`."""

    id: str
    state: Literal["sent", "delivered", "undelivered"]
    reason: str = ""

    def about(self) -> list[Any]:
        return [self.id, self.state]


class Standing(_Record, tag="channel"):
    """How a channel is: why it is down, and since when; empty when it is not. `where` is what it sends to, in words."""

    name: str
    where: str = ""
    problem: str = ""
    since: int = 0

    def about(self) -> list[Any]:
        return [self.name]


class Life(_Record, tag="life"):
    """The process that judges and sends: the newest one. `ended` is set when it was stopped in order."""

    begun: int
    pid: int
    host: str
    rules: list[str] = []
    ended: int = 0

    def about(self) -> list[Any]:
        return ["newest"]


Record = Meta | Position | Episode | Case | Letter | Sent | Silence | Ack | Watched | Reported | Standing | Life
Change = tuple[bytes, bytes | None]

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Record).decode
_decode_key = msgspec.json.Decoder(list[Any]).decode


def ledger_of(app: str) -> str:
    """The topic of an app's alerts."""
    return check_topic_name(f"{app}{ENDING}")


def key_of(record: Record) -> bytes:
    return _encode([record.__struct_config__.tag, *record.about()])


def kept(record: Record) -> Change:
    """The record as it is written."""
    return key_of(record), _encode(record)


def forgotten(record: Record) -> Change:
    """What is written for a record that nobody needs any more."""
    return key_of(record), None


class Ledger:
    """The records, folded: the newest of each key."""

    def __init__(self) -> None:
        self.namespace = ""
        self.positions: dict[tuple[str, int], Position] = {}
        self.episodes: dict[tuple[str, str], Episode] = {}
        self.cases: dict[tuple[str, str, int], Case] = {}
        self.letters: dict[str, Letter] = {}
        self.sent: dict[str, Sent] = {}
        self.silences: dict[str, Silence] = {}
        self.acks: dict[tuple[str, str, int], Ack] = {}
        self.tables: dict[str, Watched] = {}
        self.reports: dict[tuple[str, str], Reported] = {}
        self.channels: dict[str, Standing] = {}
        self.lives: dict[str, Life] = {}

    @property
    def life(self) -> Life | None:
        """The newest process."""
        return next(iter(self.lives.values()), None)

    def take(self, key: bytes, value: bytes | None) -> Record | None:
        """A record as it is in the topic; gives what it says, None for one that takes something back."""
        try:
            if value is None:
                kind, *about = _decode_key(key)
                self._forget(kind, about)
                return None
            record: Record = _decode(value)
        except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
            # To go on without it could send a message twice.
            raise RecordUnreadableError(
                f"A record of alerts cannot be read: {key[:100]!r}",
                found=str(error),
                hint="Only riverrun may write there",
            ) from error
        if record.version > VERSION:
            raise RecordUnreadableError(
                f"The alerts were kept by a newer riverrun: version {record.version}",
                expected=f"at most {VERSION}",
                hint="Install that one again",
            )
        self.put(record)
        return record

    def put(self, record: Record) -> None:
        if isinstance(record, Meta):
            self.namespace = record.namespace
            return
        self._shelf(record.__struct_config__.tag)[self._place(record.about())] = record

    def _forget(self, kind: str, about: list[Any]) -> None:
        if about:
            self._shelf(kind).pop(self._place(about), None)

    @staticmethod
    def _place(about: list[Any]) -> Any:
        return tuple(about) if len(about) > 1 else about[0]

    def _shelf(self, kind: Any) -> dict[Any, Any]:
        shelves: dict[Any, dict[Any, Any]] = {
            "position": self.positions,
            "episode": self.episodes,
            "case": self.cases,
            "letter": self.letters,
            "sent": self.sent,
            "silence": self.silences,
            "ack": self.acks,
            "table": self.tables,
            "report": self.reports,
            "channel": self.channels,
            "life": self.lives,
        }
        if kind not in shelves:
            raise ValueError(f"there is no {kind}")
        return shelves[kind]


def folded(records: Iterable[Change]) -> Ledger:
    ledger = Ledger()
    for key, value in records:
        ledger.take(key, value)
    return ledger


def new_meta() -> Meta:
    return Meta(namespace=secrets.token_hex(8))
