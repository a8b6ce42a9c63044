"""What a cluster has and how to change it: topics, offsets and groups, as plain typed values.

Every call waits at most `kafka.request_timeout_seconds`, tries again what a cluster that is still settling refuses for the
moment, and raises riverrun's errors. A wrong password ends a call at once: waiting does not make it right.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, Literal, TypeVar

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaException,
    TopicCollection,
)
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import (
    AclOperation,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

from riverrun.errors import (
    BrokerUnreachableError,
    DeclarationError,
    GroupLiveError,
    GroupNotFoundError,
    RiverrunError,
    TopicNotFoundError,
)
from riverrun.kafka.admin.described import config_value, group_state
from riverrun.kafka.border import SETTLING, client_log, translate
from riverrun.kafka.connection import Connection
from riverrun.model.near import nearest
from riverrun.model.state import ConfigValue, GroupState, PartitionState, Place, TopicState

K = TypeVar("K")
V = TypeVar("V")

_NO_GROUP = frozenset({ClientError.GROUP_ID_NOT_FOUND, ClientError.INVALID_GROUP_ID})
_LIVE_GROUP = frozenset({
    ClientError.NON_EMPTY_GROUP, ClientError.UNKNOWN_MEMBER_ID, ClientError.REBALANCE_IN_PROGRESS,
    ClientError.GROUP_SUBSCRIBED_TO_TOPIC, ClientError.STALE_MEMBER_EPOCH,
})  # fmt: skip
_REFUSED = frozenset({
    ClientError.INVALID_CONFIG, ClientError.INVALID_PARTITIONS, ClientError.INVALID_REPLICATION_FACTOR,
    ClientError.POLICY_VIOLATION, ClientError.INVALID_REQUEST, ClientError.TOPIC_EXCEPTION,
})  # fmt: skip
_HEARSAY_SECONDS = 2.0
# A broker that is not, or not any more, the coordinator of a group; and how often at most a new client is made for it.
_MOVED = frozenset({ClientError.NOT_COORDINATOR, ClientError.COORDINATOR_NOT_AVAILABLE})
_RENEW_SECONDS = 1.0
_LOGIN = frozenset({ClientError._AUTHENTICATION, ClientError._SSL, ClientError.SASL_AUTHENTICATION_FAILED})


class Admin:
    """A client for one cluster's administration. Opens its connection at the first call."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.timeout: float = connection.settings.request_timeout_seconds
        self._login_error: ClientError | None = None
        self._given_up = threading.Event()
        self._renewed_at = -_RENEW_SECONDS
        self._former: list[AdminClient] = []
        self._client = self._open()

    def _open(self) -> AdminClient:
        try:
            return AdminClient(self.connection.properties({"error_cb": self._on_error}), logger=client_log)
        except (KafkaException, ValueError, TypeError) as error:
            raise self._translate(error, "reading its properties") from error

    def give_up(self) -> None:
        """Wait for no answer any more, also not for one that another thread waits for: the cluster is gone."""
        self._given_up.set()

    # --- topics -------------------------------------------------------------------------------------------------------

    def brokers(self) -> dict[int, str]:
        """The brokers that are up now: id → host:port."""
        return {each.id: f"{each.host}:{each.port}" for each in self._metadata().brokers.values()}

    def topic_names(self) -> list[str]:
        return sorted(self._metadata().topics)

    def topics(self, names: Iterable[str] | None = None, *, config: bool = True) -> dict[str, TopicState]:
        """The topics of these names that exist (of all names by default)."""
        wanted = self.topic_names() if names is None else sorted(set(names))
        if not wanted:
            return {}
        described = self._many(
            "describing topics",
            lambda timeout, keys: self._client.describe_topics(TopicCollection(list(keys)), request_timeout=timeout),
            wanted,
            missing=frozenset({ClientError.UNKNOWN_TOPIC_OR_PART}),
            of="topic",
            right="Describe",
        )
        settings = self._topic_config(list(described)) if config else {}
        return {
            name: TopicState(
                name=name,
                internal=bool(topic.is_internal) or name.startswith("__"),
                partitions=tuple(
                    PartitionState(
                        partition=each.id,
                        leader=each.leader.id if each.leader is not None and each.leader.id >= 0 else None,
                        replicas=tuple(node.id for node in each.replicas),
                        in_sync=tuple(node.id for node in each.isr),
                    )
                    for each in sorted(topic.partitions, key=lambda each: each.id)
                ),
                config=settings.get(name, {}),
                topic_id=str(topic.topic_id),
            )
            for name, topic in sorted(described.items())
        }

    def topic(self, name: str) -> TopicState:
        """One topic; TopicNotFoundError, with a near name if there is one, when the cluster does not have it."""
        found = self.topics([name]).get(name)
        if found is None:
            raise self.no_topic(name)
        return found

    def no_topic(self, name: str) -> TopicNotFoundError:
        near = nearest(name, self.topic_names())
        return TopicNotFoundError(
            f"There is no topic {name} at {self.connection.bootstrap_servers}",
            hint=f"Did you mean {near}?" if near else f"Create it: riverrun topics create {name}",
            topic=name,
        )

    def create_topic(self, name: str, *, partitions: int, replicas: int, config: Mapping[str, str]) -> None:
        """Create a topic (`replicas` 0: the cluster's default) and wait until all its partitions have a leader."""
        new = NewTopic(name, partitions, replicas or -1, config=dict(config))
        deadline = time.monotonic() + self.timeout
        self._one(
            f"creating the topic {name}",
            lambda timeout: self._client.create_topics([new], request_timeout=timeout, operation_timeout=timeout)[name],
            topic=name,
            right="Create",
        )
        self._wait_for_leaders(name, partitions, deadline)

    def add_partitions(self, name: str, total: int) -> None:
        """Raise the number of partitions to `total` and wait until all have a leader."""
        deadline = time.monotonic() + self.timeout
        self._one(
            f"adding partitions to {name}",
            lambda timeout: self._client.create_partitions(
                [NewPartitions(name, total)], request_timeout=timeout, operation_timeout=timeout
            )[name],
            topic=name,
            right="Alter",
        )
        self._wait_for_leaders(name, total, deadline)

    def alter_config(self, name: str, changes: Mapping[str, str | None]) -> None:
        """Set these settings of a topic; None gives one back to the cluster's default. Others stay as they are."""
        entries = [
            ConfigEntry(
                each, value, incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
            )
            for each, value in changes.items()
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=entries)
        self._one(
            f"changing the settings of {name}",
            lambda timeout: self._client.incremental_alter_configs([resource], request_timeout=timeout)[resource],
            topic=name,
            right="AlterConfigs",
        )

    def delete_topics(self, names: Collection[str]) -> None:
        """Delete topics and wait until the cluster no longer shows them."""
        deadline = time.monotonic() + self.timeout
        self._many(
            f"deleting {', '.join(names)}",
            lambda timeout, keys: self._client.delete_topics(
                list(keys), request_timeout=timeout, operation_timeout=timeout
            ),
            list(names),
            missing=frozenset({ClientError.UNKNOWN_TOPIC_OR_PART}),
            of="topic",
            right="Delete",
        )
        while self.topics(names, config=False):
            if time.monotonic() > deadline:
                raise BrokerUnreachableError(
                    f"The cluster still shows {', '.join(names)} after {self.timeout:g} s",
                    hint="They are marked for deletion, and go when all brokers are up",
                )
            self._client.poll(0.05)

    def delete_records(self, before: Mapping[Place, int]) -> dict[Place, int]:
        """Delete all records before these offsets; gives the first offset that is left in each partition."""
        done = self._many(
            "deleting records",
            lambda timeout, keys: {
                Place(each.topic, each.partition): future
                for each, future in self._client.delete_records(
                    [ClientPartition(*key, before[key]) for key in keys],
                    request_timeout=timeout,
                    operation_timeout=timeout,
                ).items()
            },
            list(before),
            of="topic",
            right="Delete",
        )
        return {place: result.low_watermark for place, result in done.items()}

    def offsets(
        self, places: Collection[Place], at: Literal["earliest", "latest"] | int, *, committed_only: bool = False
    ) -> dict[Place, int]:
        """An offset in each partition: its first, its end, or that of the first record at or after a time in
        milliseconds since 1970 (the end, where there is none so late).

        With `committed_only` the end is where readers of committed records stop: before the first open transaction.
        """
        if not places:
            return {}
        if isinstance(at, int):
            spec = OffsetSpec.for_timestamp(at)
        else:
            spec = OffsetSpec.earliest() if at == "earliest" else OffsetSpec.latest()  # type: ignore[no-untyped-call]
        isolation = IsolationLevel.READ_COMMITTED if committed_only else IsolationLevel.READ_UNCOMMITTED
        found = self._many(
            "looking up offsets",
            lambda timeout, keys: {
                Place(each.topic, each.partition): future
                for each, future in self._client.list_offsets(
                    {ClientPartition(*key): spec for key in keys}, isolation_level=isolation, request_timeout=timeout
                ).items()
            },
            list(places),
            of="topic",
            right="Describe",
        )
        result = {place: info.offset for place, info in found.items()}
        late = [place for place, offset in result.items() if offset < 0]
        return result | self.offsets(late, "latest", committed_only=committed_only) if late else result

    # --- groups -------------------------------------------------------------------------------------------------------

    def group_names(self) -> list[str]:
        """The groups that there are; of a cluster with rights, those that we may describe."""
        listed = self._one("listing groups", lambda timeout: self._client.list_consumer_groups(request_timeout=timeout))
        if listed.errors and not listed.valid:
            raise self._translate(listed.errors[0], "listing groups", right="Describe")
        return sorted(each.group_id for each in listed.valid)

    def sees_all_groups(self) -> bool:
        """Whether `group_names` names all: Kafka leaves out, without a word, those that we have no right to describe."""
        found = self._one(
            "asking for our rights",
            lambda timeout: self._client.describe_cluster(include_authorized_operations=True, request_timeout=timeout),
        )
        # None where there is none at all: without rights to give, Kafka names all of them.
        return not {AclOperation.DESCRIBE, AclOperation.ALL}.isdisjoint(found.authorized_operations or ())

    def groups(self, names: Iterable[str] | None = None) -> dict[str, GroupState]:
        """The groups of these names that exist (of all names by default)."""
        wanted = self.group_names() if names is None else sorted(set(names))
        if not wanted:
            return {}
        described = self._many(
            "describing groups",
            lambda timeout, keys: self._client.describe_consumer_groups(list(keys), request_timeout=timeout),
            wanted,
            missing=_NO_GROUP,
            of="group",
            right="Describe",
        )
        return {
            name: group
            for name, each in sorted(described.items())
            if (group := group_state(each)).state != "dead" or group.members
        }

    def group(self, name: str) -> GroupState:
        found = self.groups([name]).get(name)
        if found is None:
            raise self.no_group(name)
        return found

    def no_group(self, name: str) -> GroupNotFoundError:
        near = nearest(name, self.group_names())
        return GroupNotFoundError(
            f"There is no consumer group {name} at {self.connection.bootstrap_servers}",
            hint=f"Did you mean {near}?" if near else "`riverrun groups` lists them",
            group=name,
        )

    def committed(self, group: str) -> dict[Place, int]:
        """What the group has committed, in every partition where it has."""
        # The client library crashes the process when the group's coordinator answers that it is not (yet) one, as on a
        # cluster that has just started (confluent-kafka-javascript#374, librdkafka 2.16.0): ask what it survives first.
        if not self.groups([group]):
            return {}
        request = ConsumerGroupTopicPartitions(group)
        found = self._one(
            f"reading the offsets of {group}",
            lambda timeout: self._client.list_consumer_group_offsets([request], request_timeout=timeout)[group],
            group=group,
            right="Describe",
        )
        return {
            Place(each.topic, each.partition): each.offset
            for each in found.topic_partitions
            if each.offset >= 0 and each.error is None
        }

    def commit(self, group: str, offsets: Mapping[Place, int]) -> None:
        """Set the committed offsets of a group that has no members; GroupLiveError when it has."""
        request = ConsumerGroupTopicPartitions(
            group, [ClientPartition(*place, offset) for place, offset in offsets.items()]
        )
        deadline = time.monotonic() + self.timeout
        while True:
            result = self._one(
                f"moving the offsets of {group}",
                lambda timeout: self._client.alter_consumer_group_offsets([request], request_timeout=timeout)[group],
                group=group,
                right="Read",
            )
            failed = [each for each in result.topic_partitions if each.error is not None]
            if not failed:
                return
            code = failed[0].error.code()
            if code not in SETTLING or time.monotonic() >= deadline:
                place = f"{failed[0].topic}[{failed[0].partition}]"
                doing = f"moving the offset of {group} in {place}"
                raise self._translate(failed[0].error, doing, group=group, topic=failed[0].topic, right="Read")
            self._wait_for_another_try({code})

    def delete_group(self, name: str) -> None:
        self._one(
            f"deleting the group {name}",
            lambda timeout: self._client.delete_consumer_groups([name], request_timeout=timeout)[name],
            group=name,
            right="Delete",
        )

    # --- requests -----------------------------------------------------------------------------------------------------

    def _metadata(self) -> Any:
        deadline = time.monotonic() + self.timeout
        while True:
            try:
                # In short turns: the call itself does not end early when the brokers refuse the password.
                return self._client.list_topics(timeout=min(1.0, max(0.1, deadline - time.monotonic())))
            except KafkaException as error:
                self._client.poll(0)
                if self._login_error or time.monotonic() >= deadline:
                    raise self._translate(error, "asking what the cluster has") from error

    def _topic_config(self, names: list[str]) -> dict[str, dict[str, ConfigValue]]:
        """The settings of topics that exist. A broker that has not heard of a new one yet is asked again for a while."""
        deadline = time.monotonic() + min(self.timeout, _HEARSAY_SECONDS)
        found = self._ask_topic_config(names)
        while (unheard := [name for name in names if name not in found]) and time.monotonic() < deadline:
            self._client.poll(0.05)
            found |= self._ask_topic_config(unheard)
        return found

    def _ask_topic_config(self, names: list[str]) -> dict[str, dict[str, ConfigValue]]:
        resources = {name: ConfigResource(ConfigResource.Type.TOPIC, name) for name in names}
        found = self._many(
            "reading the settings of topics",
            lambda timeout, keys: {
                resource.name: future
                for resource, future in self._client.describe_configs(
                    [resources[key] for key in keys], request_timeout=timeout
                ).items()
            },
            names,
            missing=frozenset({ClientError.UNKNOWN_TOPIC_OR_PART}),
            of="topic",
            right="DescribeConfigs",
        )
        return {name: {key: config_value(entry) for key, entry in entries.items()} for name, entries in found.items()}

    def _wait_for_leaders(self, name: str, partitions: int, deadline: float) -> None:
        while True:
            state = self.topics([name], config=False).get(name)
            led = sum(each.leader is not None for each in state.partitions) if state else 0
            if led >= partitions:
                return
            if time.monotonic() > deadline:
                raise BrokerUnreachableError(
                    f"The topic {name} is made, and {led} of its {partitions} partitions have a leader "
                    f"after {self.timeout:g} s",
                    hint="Check that all brokers are up (`riverrun status`)",
                    topic=name,
                )
            self._client.poll(0.05)

    def _one(self, doing: str, start: Callable[[float], "Future[V]"], **fields: Any) -> V:
        """The result of one request, tried again while the cluster settles."""
        found = self._many(doing, lambda timeout, _: {doing: start(timeout)}, [doing], **fields)
        return found[doing]

    def _many(
        self,
        doing: str,
        start: Callable[[float, Collection[K]], Mapping[K, "Future[V]"]],
        keys: Collection[K],
        *,
        missing: frozenset[int] = frozenset(),
        of: str = "",
        **fields: Any,
    ) -> dict[K, V]:
        """The result of a request for each key. What fails with a code in `missing` is left out; what fails because the
        cluster is settling is asked for again. `of` is what a key is, a topic or a group, for the error about it."""
        deadline = time.monotonic() + self.timeout
        done: dict[K, V] = {}
        left = list(keys)
        while left:
            again: list[K] = []
            codes: set[int] = set()
            for key, future in start(max(0.1, deadline - time.monotonic()), left).items():
                try:
                    done[key] = self._result(future, deadline, doing)
                except KafkaException as error:
                    code = error.args[0].code()
                    if code in missing:
                        continue
                    if code not in SETTLING or time.monotonic() >= deadline:
                        if code == ClientError._NOENT and of == "topic" and isinstance(key, Place):
                            # «No leaders found»: it is not there, or not for us, and describing it says which.
                            self.topics([key.topic], config=False)
                        named = {of: key.topic if isinstance(key, Place) else key} if of else {}
                        raise self._translate(error, doing, **named, **fields) from error
                    again.append(key)
                    codes.add(code)
            left = again
            if left:
                self._wait_for_another_try(codes)
        return done

    def _wait_for_another_try(self, codes: set[int]) -> None:
        """A moment; and where a broker said that it does not coordinate the group, a client that asks who does. The library
        remembers who did for a quarter of an hour, whatever that one answers."""
        if codes & _MOVED and time.monotonic() >= self._renewed_at + _RENEW_SECONDS:
            self._renewed_at = time.monotonic()
            # What other threads have asked the old one is still to be answered.
            self._former = [*self._former[-1:], self._client]
            self._client = self._open()
        self._client.poll(0.1)

    def _result(self, future: "Future[V]", deadline: float, doing: str) -> V:
        while True:
            try:
                return future.result(timeout=0.2)
            except FutureTimeoutError:
                self._client.poll(0)
                if self._login_error:
                    raise self._translate(self._login_error, doing) from None
                # The client ends every request by its own timeout; the grace is for a client that does not.
                if time.monotonic() > deadline + 2 or self._given_up.is_set():
                    raise self._translate(ClientError(ClientError._TIMED_OUT), doing) from None

    def _on_error(self, error: ClientError) -> None:
        if error.code() in _LOGIN:
            self._login_error = error

    def _translate(self, error: Exception | ClientError, doing: str, **fields: Any) -> RiverrunError:
        cause = error.args[0] if isinstance(error, KafkaException) and error.args else error
        group = fields.get("group", "")
        if isinstance(cause, ClientError):
            if cause.code() in _NO_GROUP:
                return GroupNotFoundError(f"There is no consumer group {group}", group=group)
            if cause.code() in _LIVE_GROUP:
                return GroupLiveError(
                    f"The group {group} has members while {doing}", hint="Stop its consumers first", group=group
                )
            if cause.code() in _REFUSED:
                return DeclarationError(f"The cluster refused {doing}", found=cause.str().rstrip("."), **fields)
            cause = self._login_error or cause
        else:
            cause = KafkaException(cause)
        return translate(cause, doing, bootstrap=self.connection.bootstrap_servers, **fields)
