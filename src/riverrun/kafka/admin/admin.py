"""Describe and change a cluster: topics, offsets and groups, as plain typed values.

Every call waits at most `kafka.request_timeout_seconds`, retries what a cluster that is still electing leaders refuses, and
raises riverrun's errors. A wrong password ends a call at once: waiting does not help.
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
    GroupNotEmptyError,
    GroupNotFoundError,
    RiverrunError,
    TopicNotFoundError,
)
from riverrun.kafka.admin.converters import config_value, group_state
from riverrun.kafka.connection import Connection
from riverrun.kafka.error_mapping import RETRIABLE_CODES, client_log, translate
from riverrun.model.cluster_state import ConfigValue, GroupState, PartitionState, TopicPartition, TopicState
from riverrun.model.suggest import nearest

K = TypeVar("K")
V = TypeVar("V")

_GROUP_NOT_FOUND_CODES = frozenset({ClientError.GROUP_ID_NOT_FOUND, ClientError.INVALID_GROUP_ID})
_GROUP_NOT_EMPTY_CODES = frozenset({
    ClientError.NON_EMPTY_GROUP, ClientError.UNKNOWN_MEMBER_ID, ClientError.REBALANCE_IN_PROGRESS,
    ClientError.GROUP_SUBSCRIBED_TO_TOPIC, ClientError.STALE_MEMBER_EPOCH,
})  # fmt: skip
_INVALID_REQUEST_CODES = frozenset({
    ClientError.INVALID_CONFIG, ClientError.INVALID_PARTITIONS, ClientError.INVALID_REPLICATION_FACTOR,
    ClientError.POLICY_VIOLATION, ClientError.INVALID_REQUEST, ClientError.TOPIC_EXCEPTION,
})  # fmt: skip
_METADATA_LAG_SECONDS = 2.0
# A broker that is not, or no longer, the coordinator of a group; and how often at most a new client is created for it.
_COORDINATOR_MOVED_CODES = frozenset({ClientError.NOT_COORDINATOR, ClientError.COORDINATOR_NOT_AVAILABLE})
_RENEW_SECONDS = 1.0
_AUTHENTICATION_CODES = frozenset(
    {ClientError._AUTHENTICATION, ClientError._SSL, ClientError.SASL_AUTHENTICATION_FAILED}
)


class Admin:
    """A client for one cluster's administration. Opens its connection at the first call."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.timeout: float = connection.settings.request_timeout_seconds
        # Whether the cluster has answered at all.
        self.answered = False
        self._login_error: ClientError | None = None
        self._cancelled = threading.Event()
        self._renewed_at = -_RENEW_SECONDS
        self._retired_clients: list[AdminClient] = []
        self._client = self._open()

    def _open(self) -> AdminClient:
        try:
            return AdminClient(self.connection.properties({"error_cb": self._on_error}), logger=client_log)
        except (KafkaException, ValueError, TypeError) as error:
            raise self._translate(error, "reading its properties") from error

    def cancel(self) -> None:
        """Stop waiting for answers, also in other threads: the cluster is gone."""
        self._cancelled.set()

    # --- topics -------------------------------------------------------------------------------------------------------

    def brokers(self) -> dict[int, str]:
        """The brokers that are up now: id → host:port."""
        return {broker.id: f"{broker.host}:{broker.port}" for broker in self._metadata().brokers.values()}

    def topic_names(self) -> list[str]:
        return sorted(self._metadata().topics)

    def topics(self, names: Iterable[str] | None = None, *, config: bool = True) -> dict[str, TopicState]:
        """The topics of these names that exist (of all names by default)."""
        requested = self.topic_names() if names is None else sorted(set(names))
        if not requested:
            return {}
        described = self._request_each(
            "describing topics",
            lambda timeout, keys: self._client.describe_topics(TopicCollection(list(keys)), request_timeout=timeout),
            requested,
            missing=frozenset({ClientError.UNKNOWN_TOPIC_OR_PART}),
            key_kind="topic",
            right="Describe",
        )
        settings = self._topic_config(list(described)) if config else {}
        return {
            name: TopicState(
                name=name,
                internal=bool(topic.is_internal) or name.startswith("__"),
                partitions=tuple(
                    PartitionState(
                        partition=partition.id,
                        leader=partition.leader.id
                        if partition.leader is not None and partition.leader.id >= 0
                        else None,
                        replicas=tuple(node.id for node in partition.replicas),
                        in_sync=tuple(node.id for node in partition.isr),
                    )
                    for partition in sorted(topic.partitions, key=lambda info: info.id)
                ),
                config=settings.get(name, {}),
                topic_id=str(topic.topic_id),
            )
            for name, topic in sorted(described.items())
        }

    def topic(self, name: str) -> TopicState:
        """One topic; TopicNotFoundError, with a similar name if there is one, when the cluster does not have it."""
        state = self.topics([name]).get(name)
        if state is None:
            raise self.topic_not_found(name)
        return state

    def topic_not_found(self, name: str) -> TopicNotFoundError:
        suggestion = nearest(name, self.topic_names())
        return TopicNotFoundError(
            f"There is no topic {name} at {self.connection.bootstrap_servers}",
            hint=f"Did you mean {suggestion}?" if suggestion else f"Create it: riverrun topics create {name}",
            topic=name,
        )

    def create_topic(self, name: str, *, partitions: int, replicas: int, config: Mapping[str, str]) -> None:
        """Create a topic (`replicas` 0: the cluster's default) and wait until all its partitions have a leader."""
        new = NewTopic(name, partitions, replicas or -1, config=dict(config))
        deadline = time.monotonic() + self.timeout
        self._request(
            f"creating the topic {name}",
            lambda timeout: self._client.create_topics([new], request_timeout=timeout, operation_timeout=timeout)[name],
            topic=name,
            right="Create",
        )
        self._wait_for_leaders(name, partitions, deadline)

    def add_partitions(self, name: str, total: int) -> None:
        """Raise the number of partitions to `total` and wait until all have a leader."""
        deadline = time.monotonic() + self.timeout
        self._request(
            f"adding partitions to {name}",
            lambda timeout: self._client.create_partitions(
                [NewPartitions(name, total)], request_timeout=timeout, operation_timeout=timeout
            )[name],
            topic=name,
            right="Alter",
        )
        self._wait_for_leaders(name, total, deadline)

    def alter_config(self, name: str, changes: Mapping[str, str | None]) -> None:
        """Set these settings of a topic; None resets one to the cluster's default. Others stay as they are."""
        entries = [
            ConfigEntry(
                setting,
                value,
                incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET,
            )
            for setting, value in changes.items()
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=entries)
        self._request(
            f"changing the settings of {name}",
            lambda timeout: self._client.incremental_alter_configs([resource], request_timeout=timeout)[resource],
            topic=name,
            right="AlterConfigs",
        )

    def delete_topics(self, names: Collection[str]) -> None:
        """Delete topics and wait until the cluster no longer shows them."""
        deadline = time.monotonic() + self.timeout
        self._request_each(
            f"deleting {', '.join(names)}",
            lambda timeout, keys: self._client.delete_topics(
                list(keys), request_timeout=timeout, operation_timeout=timeout
            ),
            list(names),
            missing=frozenset({ClientError.UNKNOWN_TOPIC_OR_PART}),
            key_kind="topic",
            right="Delete",
        )
        while self.topics(names, config=False):
            if time.monotonic() > deadline:
                raise BrokerUnreachableError(
                    f"The cluster still shows {', '.join(names)} after {self.timeout:g} s",
                    hint="They are marked for deletion, and go when all brokers are up",
                )
            self._client.poll(0.05)

    def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete all records before these offsets; returns the first remaining offset of each partition."""
        results = self._request_each(
            "deleting records",
            lambda timeout, keys: {
                TopicPartition(client_partition.topic, client_partition.partition): future
                for client_partition, future in self._client.delete_records(
                    [ClientPartition(*key, before[key]) for key in keys],
                    request_timeout=timeout,
                    operation_timeout=timeout,
                ).items()
            },
            list(before),
            key_kind="topic",
            right="Delete",
        )
        return {partition: result.low_watermark for partition, result in results.items()}

    def offsets(
        self,
        partitions: Collection[TopicPartition],
        at: Literal["earliest", "latest"] | int,
        *,
        committed_only: bool = False,
    ) -> dict[TopicPartition, int]:
        """An offset in each partition: its first, its end, or that of the first record at or after a time in milliseconds
        since 1970 (the end, if there is none so late).

        With `committed_only` the end is where readers of committed records stop: before the first open transaction.
        """
        if not partitions:
            return {}
        if isinstance(at, int):
            spec = OffsetSpec.for_timestamp(at)
        else:
            spec = OffsetSpec.earliest() if at == "earliest" else OffsetSpec.latest()  # type: ignore[no-untyped-call]
        isolation = IsolationLevel.READ_COMMITTED if committed_only else IsolationLevel.READ_UNCOMMITTED
        infos = self._request_each(
            "looking up offsets",
            lambda timeout, keys: {
                TopicPartition(client_partition.topic, client_partition.partition): future
                for client_partition, future in self._client.list_offsets(
                    {ClientPartition(*key): spec for key in keys}, isolation_level=isolation, request_timeout=timeout
                ).items()
            },
            list(partitions),
            key_kind="topic",
            right="Describe",
        )
        result = {partition: info.offset for partition, info in infos.items()}
        late = [partition for partition, offset in result.items() if offset < 0]
        return result | self.offsets(late, "latest", committed_only=committed_only) if late else result

    # --- groups -------------------------------------------------------------------------------------------------------

    def group_names(self) -> list[str]:
        """The existing groups; on a cluster with ACLs, those that we may describe."""
        listed = self._request(
            "listing groups", lambda timeout: self._client.list_consumer_groups(request_timeout=timeout)
        )
        if listed.errors and not listed.valid:
            raise self._translate(listed.errors[0], "listing groups", right="Describe")
        return sorted(listing.group_id for listing in listed.valid)

    def can_see_all_groups(self) -> bool:
        """Whether `group_names` returns all: Kafka silently leaves out those that we have no right to describe."""
        cluster = self._request(
            "asking for our rights",
            lambda timeout: self._client.describe_cluster(include_authorized_operations=True, request_timeout=timeout),
        )
        # None if the cluster has no ACLs at all: then Kafka returns all operations.
        return not {AclOperation.DESCRIBE, AclOperation.ALL}.isdisjoint(cluster.authorized_operations or ())

    def groups(self, names: Iterable[str] | None = None) -> dict[str, GroupState]:
        """The groups of these names that exist (of all names by default)."""
        requested = self.group_names() if names is None else sorted(set(names))
        if not requested:
            return {}
        described = self._request_each(
            "describing groups",
            lambda timeout, keys: self._client.describe_consumer_groups(list(keys), request_timeout=timeout),
            requested,
            missing=_GROUP_NOT_FOUND_CODES,
            key_kind="group",
            right="Describe",
        )
        return {
            name: group
            for name, description in sorted(described.items())
            if (group := group_state(description)).state != "dead" or group.members
        }

    def group(self, name: str) -> GroupState:
        state = self.groups([name]).get(name)
        if state is None:
            raise self.group_not_found(name)
        return state

    def group_not_found(self, name: str) -> GroupNotFoundError:
        suggestion = nearest(name, self.group_names())
        return GroupNotFoundError(
            f"There is no consumer group {name} at {self.connection.bootstrap_servers}",
            hint=f"Did you mean {suggestion}?" if suggestion else "`riverrun groups` lists them",
            group=name,
        )

    def committed_offsets(self, group: str) -> dict[TopicPartition, int]:
        """The group's committed offsets, in every partition that has one."""
        # The client library crashes the process when the group's coordinator answers that it is not (yet) one, as on a
        # cluster that has just started (confluent-kafka-javascript#374, librdkafka 2.16.0): first a request it survives.
        if not self.groups([group]):
            return {}
        request = ConsumerGroupTopicPartitions(group)
        response = self._request(
            f"reading the offsets of {group}",
            lambda timeout: self._client.list_consumer_group_offsets([request], request_timeout=timeout)[group],
            group=group,
            right="Describe",
        )
        return {
            TopicPartition(client_partition.topic, client_partition.partition): client_partition.offset
            for client_partition in response.topic_partitions
            if client_partition.offset >= 0 and client_partition.error is None
        }

    def alter_group_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set the committed offsets of a group that has no members; GroupNotEmptyError when it has."""
        request = ConsumerGroupTopicPartitions(
            group, [ClientPartition(*partition, offset) for partition, offset in offsets.items()]
        )
        deadline = time.monotonic() + self.timeout
        while True:
            result = self._request(
                f"moving the offsets of {group}",
                lambda timeout: self._client.alter_consumer_group_offsets([request], request_timeout=timeout)[group],
                group=group,
                right="Read",
            )
            failed = [
                client_partition for client_partition in result.topic_partitions if client_partition.error is not None
            ]
            if not failed:
                return
            code = failed[0].error.code()
            if code not in RETRIABLE_CODES or time.monotonic() >= deadline:
                partition = f"{failed[0].topic}[{failed[0].partition}]"
                doing = f"moving the offset of {group} in {partition}"
                raise self._translate(failed[0].error, doing, group=group, topic=failed[0].topic, right="Read")
            self._wait_before_retry({code})

    def delete_group(self, name: str) -> None:
        self._request(
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
                metadata = self._client.list_topics(timeout=min(1.0, max(0.1, deadline - time.monotonic())))
                self.answered = True
                return metadata
            except KafkaException as error:
                self._client.poll(0)
                if self._login_error or time.monotonic() >= deadline:
                    raise self._translate(error, "asking what the cluster has") from error

    def _topic_config(self, names: list[str]) -> dict[str, dict[str, ConfigValue]]:
        """The settings of topics that exist. A broker that does not know a new one yet is asked again for a while."""
        deadline = time.monotonic() + min(self.timeout, _METADATA_LAG_SECONDS)
        configs = self._describe_topic_config(names)
        while (missing := [name for name in names if name not in configs]) and time.monotonic() < deadline:
            self._client.poll(0.05)
            configs |= self._describe_topic_config(missing)
        return configs

    def _describe_topic_config(self, names: list[str]) -> dict[str, dict[str, ConfigValue]]:
        resources = {name: ConfigResource(ConfigResource.Type.TOPIC, name) for name in names}
        responses = self._request_each(
            "reading the settings of topics",
            lambda timeout, keys: {
                resource.name: future
                for resource, future in self._client.describe_configs(
                    [resources[key] for key in keys], request_timeout=timeout
                ).items()
            },
            names,
            missing=frozenset({ClientError.UNKNOWN_TOPIC_OR_PART}),
            key_kind="topic",
            right="DescribeConfigs",
        )
        return {
            name: {key: config_value(entry) for key, entry in entries.items()} for name, entries in responses.items()
        }

    def _wait_for_leaders(self, name: str, partitions: int, deadline: float) -> None:
        while True:
            state = self.topics([name], config=False).get(name)
            with_leader = sum(partition.leader is not None for partition in state.partitions) if state else 0
            if with_leader >= partitions:
                return
            if time.monotonic() > deadline:
                raise BrokerUnreachableError(
                    f"The topic {name} is made, and {with_leader} of its {partitions} partitions have a leader "
                    f"after {self.timeout:g} s",
                    hint="Check that all brokers are up (`riverrun status`)",
                    topic=name,
                )
            self._client.poll(0.05)

    def _request(self, doing: str, start: Callable[[float], "Future[V]"], **fields: Any) -> V:
        """The result of one request, retried while the error is a temporary one of the cluster."""
        results = self._request_each(doing, lambda timeout, _: {doing: start(timeout)}, [doing], **fields)
        return results[doing]

    def _request_each(
        self,
        doing: str,
        start: Callable[[float, Collection[K]], Mapping[K, "Future[V]"]],
        keys: Collection[K],
        *,
        missing: frozenset[int] = frozenset(),
        key_kind: str = "",
        **fields: Any,
    ) -> dict[K, V]:
        """The result of a request for each key. What fails with a code in `missing` is left out; what fails because the
        cluster is settling is asked for again. `key_kind` is what a key is, a topic or a group, for the error about it."""
        deadline = time.monotonic() + self.timeout
        results: dict[K, V] = {}
        pending = list(keys)
        while pending:
            retries: list[K] = []
            codes: set[int] = set()
            for key, future in start(max(0.1, deadline - time.monotonic()), pending).items():
                try:
                    results[key] = self._await_result(future, deadline, doing)
                    self.answered = True
                except KafkaException as error:
                    code = error.args[0].code()
                    if code in missing:
                        continue
                    if code not in RETRIABLE_CODES or time.monotonic() >= deadline:
                        if code == ClientError._NOENT and key_kind == "topic" and isinstance(key, TopicPartition):
                            # "No leaders found": it does not exist, or not for us, and describing it says which.
                            self.topics([key.topic], config=False)
                        named = {key_kind: key.topic if isinstance(key, TopicPartition) else key} if key_kind else {}
                        raise self._translate(error, doing, **named, **fields) from error
                    retries.append(key)
                    codes.add(code)
            pending = retries
            if pending:
                self._wait_before_retry(codes)
        return results

    def _wait_before_retry(self, codes: set[int]) -> None:
        """Wait a moment. If a broker is not the group's coordinator, use a new client, which looks it up: the library caches
        the coordinator for a quarter of an hour, whatever that one answers."""
        if codes & _COORDINATOR_MOVED_CODES and time.monotonic() >= self._renewed_at + _RENEW_SECONDS:
            self._renewed_at = time.monotonic()
            # Requests of other threads to the old client are still to be answered.
            self._retired_clients = [*self._retired_clients[-1:], self._client]
            self._client = self._open()
        self._client.poll(0.1)

    def _await_result(self, future: "Future[V]", deadline: float, doing: str) -> V:
        while True:
            try:
                return future.result(timeout=0.2)
            except FutureTimeoutError:
                self._client.poll(0)
                if self._login_error:
                    raise self._translate(self._login_error, doing) from None
                # The client ends every request by its own timeout; the grace is for a client that does not.
                if time.monotonic() > deadline + 2 or self._cancelled.is_set():
                    raise self._translate(ClientError(ClientError._TIMED_OUT), doing) from None

    def _on_error(self, error: ClientError) -> None:
        if error.code() in _AUTHENTICATION_CODES:
            self._login_error = error

    def _translate(self, error: Exception | ClientError, doing: str, **fields: Any) -> RiverrunError:
        cause = error.args[0] if isinstance(error, KafkaException) and error.args else error
        group = fields.get("group", "")
        if isinstance(cause, ClientError):
            if cause.code() in _GROUP_NOT_FOUND_CODES:
                return GroupNotFoundError(f"There is no consumer group {group}", group=group)
            if cause.code() in _GROUP_NOT_EMPTY_CODES:
                return GroupNotEmptyError(
                    f"The group {group} has members while {doing}", hint="Stop its consumers first", group=group
                )
            if cause.code() in _INVALID_REQUEST_CODES:
                return DeclarationError(f"The cluster refused {doing}", found=cause.str().rstrip("."), **fields)
            cause = self._login_error or cause
        else:
            cause = KafkaException(cause)
        return translate(cause, doing, bootstrap=self.connection.bootstrap_servers, **fields)
