"""The state of alerts: the records of the compacted topic `APP.alerts`, and the `AlertState` they fold into.

A record's key says what it is about, its value is the current state, and a tombstone removes it. One process writes the
instances, incidents, notifications and positions, in one transaction with the offsets it has read. Silences and
acknowledgements come from people, through any program; watched tables from the pipeline; delivery reports from the server
of the provider's callbacks.
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
# held: until quiet hours end; gathering: for a digest; out: released to the sender. The others are final, and not sent.
NotificationStage = Literal["held", "gathering", "out", "listed", "expired", "silenced", "dropped", "cancelled"]


class _AlertRecordBase(msgspec.Struct, kw_only=True, omit_defaults=True, tag_field="is"):
    version: int = VERSION

    def key_fields(self) -> list[Any]:
        """The fields that make its key, together with its kind."""
        return []


class StateMetadata(_AlertRecordBase, tag="meta"):
    """Written when the topic is created. `namespace` keeps its messages apart from those of a later topic."""

    namespace: str


class PartitionPosition(_AlertRecordBase, tag="position"):
    """All records before `offset` of this partition are evaluated. `topic_id` tells a topic from a recreated one."""

    topic: str
    partition: int
    offset: int
    topic_id: str = ""

    def key_fields(self) -> list[Any]:
        return [self.topic, self.partition]


class AlertInstance(_AlertRecordBase, tag="episode"):
    """The state of a key for a rule. `number` counts its incidents; times are event times: of the newest row, when the
    condition began to hold, when it last fired (-1: never). Only `last_seen` is wall clock or Kafka's time: the day of the
    last row."""

    rule: str
    key: str
    state: Literal["quiet", "pending", "firing"] = "quiet"
    number: int = 0
    last_event_time: int = -1
    since: int = -1
    last_fired: int = -1
    last_seen: int = -1
    # For absence: the topic's time when the last row came, and that row. For rules that fire at every row: the newest
    # record ids of real-time rows.
    last_arrival: int = -1
    row: dict[str, Any] = {}
    recent_ids: list[str] = []

    def key_fields(self) -> list[Any]:
        return [self.rule, self.key]


class Incident(_AlertRecordBase, tag="case"):
    """An incident: why it fired, and what was done. `created_at` and `ended` are wall-clock times."""

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
    # "once": it fired at a single row, and there is nothing to resolve.
    state: Literal["firing", "resolved", "once"] = "firing"
    ended: int = -1
    escalated: int = -1
    notifications: list[str] = []

    def key_fields(self) -> list[Any]:
        return [self.rule, self.key, self.number]


class Notification(_AlertRecordBase, tag="letter"):
    """A message and its stage on our side. Its delivery at the provider is its `DeliveryRecord`."""

    message: AlertMessage
    rule: str
    key: str
    number: int
    kind: NotificationKind
    created_at: int
    stage: NotificationStage = "out"
    # When it will be released (held, gathering), or was (out).
    release_at: int = 0
    note: str = ""
    digest_ids: list[str] = []

    def key_fields(self) -> list[Any]:
        return [self.message.id]


class DeliveryRecord(_AlertRecordBase, tag="sent"):
    """The delivery status of a notification at the provider."""

    id: str
    delivery: DeliveryStatus

    def key_fields(self) -> list[Any]:
        return [self.id]


class Silence(_AlertRecordBase, tag="silence"):
    """Nothing is sent for this rule and key before `until`; empty means all."""

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
    """Somebody acknowledged this incident."""

    rule: str
    key: str
    number: int
    at: int
    by: str = ""

    def key_fields(self) -> list[Any]:
        return [self.rule, self.key, self.number]


class WatchedTable(_AlertRecordBase, tag="table"):
    """A table that rules can watch, as the pipeline compiled it: rules need no Spark. `spec` is a `TableSpec` as a dict."""

    name: str
    spec: dict[str, Any]

    def key_fields(self) -> list[Any]:
        return [self.name]


class DeliveryReportRecord(_AlertRecordBase, tag="report"):
    """A provider's later report about a message it accepted, as the callback server wrote it. It is removed once it is
    merged into the message's `DeliveryRecord`."""

    id: str
    state: Literal["sent", "delivered", "undelivered"]
    reason: str = ""

    def key_fields(self) -> list[Any]:
        return [self.id, self.state]


class ChannelHealthRecord(_AlertRecordBase, tag="channel"):
    """A channel's health: why it is down and since when; empty when it is up. `destination` says in words what it sends
    to."""

    name: str
    destination: str = ""
    problem: str = ""
    since: int = 0

    def key_fields(self) -> list[Any]:
        return [self.name]


class AlertProcessLease(_AlertRecordBase, tag="life"):
    """The newest process that evaluates and sends. `ended` is set when it was stopped cleanly."""

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
    """The state topic of an app's alerts."""
    return check_topic_name(f"{app}{TOPIC_SUFFIX}")


def record_key(record: AlertRecord) -> bytes:
    return _encode([record.__struct_config__.tag, *record.key_fields()])


def encode_upsert(record: AlertRecord) -> AlertChange:
    """The key and value to write for a record."""
    return record_key(record), _encode(record)


def encode_tombstone(record: AlertRecord) -> AlertChange:
    """The key and empty value that remove a record."""
    return record_key(record), None


class AlertState:
    """The folded state topic: the newest record of each key."""

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
        """The lease of the newest process."""
        return next(iter(self.leases.values()), None)

    def apply_change(self, key: bytes, value: bytes | None) -> AlertRecord | None:
        """Apply a record of the topic and return it decoded; None for a tombstone."""
        try:
            if value is None:
                kind, *key_fields = _decode_key(key)
                self._delete(kind, key_fields)
                return None
            record: AlertRecord = _decode(value)
        except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
            # Going on without it could send a message twice.
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
