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

from riverrun.alerts.channels.contract import AlertMessage, DeliveryStatus
from riverrun.errors import RecordUnreadableError
from riverrun.model.topic import check_topic_name

VERSION = 1
TOPIC_SUFFIX = ".alerts"

NotificationKind = Literal["fired", "resolved", "escalated", "digest"]
# held: until quiet hours are over; gathering: for a digest; out: the sender's. The others are ends, and none was sent.
NotificationStage = Literal["held", "gathering", "out", "listed", "expired", "silenced", "dropped", "cancelled"]


class _AlertRecordBase(msgspec.Struct, kw_only=True, omit_defaults=True, tag_field="is"):
    version: int = VERSION

    def key_fields(self) -> list[Any]:
        """What the record is about, besides its kind: with that, its key."""
        return []


class StateMetadata(_AlertRecordBase, tag="meta"):
    """Made with the ledger. `namespace` keeps the messages of one ledger's life apart from those of the next."""

    namespace: str


class PartitionPosition(_AlertRecordBase, tag="position"):
    """Everything before `offset` of this partition was judged. `topic_id` tells a topic from one made anew."""

    topic: str
    partition: int
    offset: int
    topic_id: str = ""

    def key_fields(self) -> list[Any]:
        return [self.topic, self.partition]


class AlertInstance(_AlertRecordBase, tag="episode"):
    """How a key stands for a rule. `number` counts its episodes; times are event times: the newest row's, when the condition
    began to hold, when it last fired (-1: never). Only `last_seen` is our clock or Kafka's: the day on which a row last
    came."""

    rule: str
    key: str
    state: Literal["quiet", "pending", "firing"] = "quiet"
    number: int = 0
    last_event_time: int = -1
    since: int = -1
    last_fired: int = -1
    last_seen: int = -1
    # For absence: the topic's time when the last row came, and that row. For rules that fire at every row: the newest
    # identities of real time.
    last_arrival: int = -1
    row: dict[str, Any] = {}
    recent_ids: list[str] = []

    def key_fields(self) -> list[Any]:
        return [self.rule, self.key]


class Incident(_AlertRecordBase, tag="case"):
    """One episode as people see it: why it fired, and what was done. `created_at` and `ended` are times of our clock."""

    rule: str
    key: str
    number: int
    record_location: str
    since: int
    fired_at: int
    record_time: int
    created_at: int
    row: dict[str, Any] = {}
    severity: str = "warning"
    # "once": it fired at a row, and there is nothing to be over.
    state: Literal["firing", "resolved", "once"] = "firing"
    ended: int = -1
    escalated: int = -1
    notifications: list[str] = []

    def key_fields(self) -> list[Any]:
        return [self.rule, self.key, self.number]


class Notification(_AlertRecordBase, tag="letter"):
    """A message, and where it stands on our side. Its way to the provider is its `DeliveryRecord`."""

    message: AlertMessage
    rule: str
    key: str
    number: int
    kind: NotificationKind
    created_at: int
    stage: NotificationStage = "out"
    # Held or gathering until then; out since then.
    release_at: int = 0
    note: str = ""
    digest_ids: list[str] = []

    def key_fields(self) -> list[Any]:
        return [self.message.id]


class DeliveryRecord(_AlertRecordBase, tag="sent"):
    """Where a letter stands at the provider."""

    id: str
    delivery: DeliveryStatus

    def key_fields(self) -> list[Any]:
        return [self.id]


class Silence(_AlertRecordBase, tag="silence"):
    """Nothing is sent for this rule and key until then; empty means all."""

    id: str
    until: int
    rule: str = ""
    key: str = ""
    begun: int = 0
    by: str = ""
    why: str = ""

    def key_fields(self) -> list[Any]:
        return [self.id]

    def covers(self, rule: str, key: str, now: int) -> bool:
        return now < self.until and self.rule in ("", rule) and self.key in ("", key)


class Ack(_AlertRecordBase, tag="ack"):
    """Somebody looks after this episode."""

    rule: str
    key: str
    number: int
    at: int
    by: str = ""

    def key_fields(self) -> list[Any]:
        return [self.rule, self.key, self.number]


class WatchedTable(_AlertRecordBase, tag="table"):
    """What a rule can watch, as the pipeline has compiled it: so a rule is judged without Spark. `spec` is a TableSpec's."""

    name: str
    spec: dict[str, Any]

    def key_fields(self) -> list[Any]:
        return [self.name]


class DeliveryReportRecord(_AlertRecordBase, tag="report"):
    """What a provider said later of a message it took, as whoever serves its callbacks wrote it down. It is taken back when
    it has become part of the message's `DeliveryRecord`."""

    id: str
    state: Literal["sent", "delivered", "undelivered"]
    reason: str = ""

    def key_fields(self) -> list[Any]:
        return [self.id, self.state]


class ChannelHealthRecord(_AlertRecordBase, tag="channel"):
    """How a channel is: why it is down, and since when; empty when it is not. `destination` is what it sends to, in
    words."""

    name: str
    destination: str = ""
    problem: str = ""
    since: int = 0

    def key_fields(self) -> list[Any]:
        return [self.name]


class AlertProcessLease(_AlertRecordBase, tag="life"):
    """The process that judges and sends: the newest one. `ended` is set when it was stopped in order."""

    begun: int
    pid: int
    host: str
    rules: list[str] = []
    ended: int = 0

    def key_fields(self) -> list[Any]:
        return ["newest"]


AlertRecord = (
    StateMetadata
    | PartitionPosition
    | AlertInstance
    | Incident
    | Notification
    | DeliveryRecord
    | Silence
    | Ack
    | WatchedTable
    | DeliveryReportRecord
    | ChannelHealthRecord
    | AlertProcessLease
)
AlertChange = tuple[bytes, bytes | None]

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(AlertRecord).decode
_decode_key = msgspec.json.Decoder(list[Any]).decode


def alerts_topic_name(app: str) -> str:
    """The topic of an app's alerts."""
    return check_topic_name(f"{app}{TOPIC_SUFFIX}")


def record_key(record: AlertRecord) -> bytes:
    return _encode([record.__struct_config__.tag, *record.key_fields()])


def encode_upsert(record: AlertRecord) -> AlertChange:
    """The record as it is written."""
    return record_key(record), _encode(record)


def encode_tombstone(record: AlertRecord) -> AlertChange:
    """What is written for a record that nobody needs any more."""
    return record_key(record), None


class AlertState:
    """The records, folded: the newest of each key."""

    def __init__(self) -> None:
        self.namespace = ""
        self.positions: dict[tuple[str, int], PartitionPosition] = {}
        self.episodes: dict[tuple[str, str], AlertInstance] = {}
        self.incidents: dict[tuple[str, str, int], Incident] = {}
        self.notifications: dict[str, Notification] = {}
        self.deliveries: dict[str, DeliveryRecord] = {}
        self.silences: dict[str, Silence] = {}
        self.acks: dict[tuple[str, str, int], Ack] = {}
        self.tables: dict[str, WatchedTable] = {}
        self.reports: dict[tuple[str, str], DeliveryReportRecord] = {}
        self.channels: dict[str, ChannelHealthRecord] = {}
        self.leases: dict[str, AlertProcessLease] = {}

    @property
    def lease(self) -> AlertProcessLease | None:
        """The newest process."""
        return next(iter(self.leases.values()), None)

    def apply_change(self, key: bytes, value: bytes | None) -> AlertRecord | None:
        """A record as it is in the topic; gives what it says, None for one that takes something back."""
        try:
            if value is None:
                kind, *key_fields = _decode_key(key)
                self._delete(kind, key_fields)
                return None
            record: AlertRecord = _decode(value)
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

    def put(self, record: AlertRecord) -> None:
        if isinstance(record, StateMetadata):
            self.namespace = record.namespace
            return
        self._index_of(record.__struct_config__.tag)[self._index_key(record.key_fields())] = record

    def _delete(self, kind: str, key_fields: list[Any]) -> None:
        if key_fields:
            self._index_of(kind).pop(self._index_key(key_fields), None)

    @staticmethod
    def _index_key(key_fields: list[Any]) -> Any:
        return tuple(key_fields) if len(key_fields) > 1 else key_fields[0]

    def _index_of(self, kind: Any) -> dict[Any, Any]:
        indexes: dict[Any, dict[Any, Any]] = {
            "position": self.positions,
            "episode": self.episodes,
            "case": self.incidents,
            "letter": self.notifications,
            "sent": self.deliveries,
            "silence": self.silences,
            "ack": self.acks,
            "table": self.tables,
            "report": self.reports,
            "channel": self.channels,
            "life": self.leases,
        }
        if kind not in indexes:
            raise ValueError(f"there is no {kind}")
        return indexes[kind]


def build_alert_state(records: Iterable[AlertChange]) -> AlertState:
    state = AlertState()
    for key, value in records:
        state.apply_change(key, value)
    return state


def new_state_metadata() -> StateMetadata:
    return StateMetadata(namespace=secrets.token_hex(8))
