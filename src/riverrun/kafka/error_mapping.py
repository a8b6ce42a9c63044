"""Maps the client library's errors to ours, and its log lines to Python's logging."""

import logging
from typing import Any

from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException

from riverrun import errors

# librdkafka logs to stderr by itself; with this it goes to the user's logging.
client_log = logging.getLogger("riverrun.kafka.client")
client_log.addHandler(logging.NullHandler())

_UNREACHABLE_CODES = frozenset({
    ClientError._ALL_BROKERS_DOWN, ClientError._TRANSPORT, ClientError._RESOLVE, ClientError._TIMED_OUT,
    ClientError.REQUEST_TIMED_OUT, ClientError.BROKER_NOT_AVAILABLE, ClientError.COORDINATOR_NOT_AVAILABLE,
    ClientError.NETWORK_EXCEPTION, ClientError._TIMED_OUT_QUEUE, ClientError._WAIT_COORD,
})  # fmt: skip
# The cluster is electing leaders or coordinators: a moment later the same request works.
RETRIABLE_CODES = frozenset({
    ClientError.COORDINATOR_LOAD_IN_PROGRESS, ClientError.COORDINATOR_NOT_AVAILABLE, ClientError.NOT_COORDINATOR,
    ClientError.LEADER_NOT_AVAILABLE, ClientError.NOT_LEADER_FOR_PARTITION, ClientError.NOT_CONTROLLER,
    ClientError.FENCED_LEADER_EPOCH, ClientError.UNKNOWN_LEADER_EPOCH, ClientError.REPLICA_NOT_AVAILABLE,
    ClientError.UNSTABLE_OFFSET_COMMIT, ClientError.OFFSET_NOT_AVAILABLE,
})  # fmt: skip
_AUTHENTICATION_CODES = frozenset({
    ClientError._AUTHENTICATION, ClientError.SASL_AUTHENTICATION_FAILED, ClientError._SSL,
    ClientError.UNSUPPORTED_SASL_MECHANISM, ClientError.ILLEGAL_SASL_STATE,
})  # fmt: skip
# The resource on which a right is missing, and its option of kafka-acls.sh.
_ACL_RESOURCES = {
    ClientError.TOPIC_AUTHORIZATION_FAILED: ("topic", "--topic"),
    ClientError.GROUP_AUTHORIZATION_FAILED: ("group", "--group"),
    ClientError.CLUSTER_AUTHORIZATION_FAILED: ("cluster", "--cluster"),
    ClientError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: ("transactional id", "--transactional-id"),
    ClientError.DELEGATION_TOKEN_AUTHORIZATION_FAILED: ("delegation token", "--delegation-token"),
}
# The required ACL operation by the first word of `doing`, if the caller does not give it.
_ACL_OPERATIONS = {
    "reading": "Read", "committing": "Read", "sending": "Write", "writing": "Write",
    "creating": "Create", "looking": "Describe",
}  # fmt: skip
_FENCED_CODES = frozenset({
    ClientError._FENCED, ClientError.PRODUCER_FENCED, ClientError.INVALID_PRODUCER_EPOCH,
})  # fmt: skip
_UNKNOWN_TOPIC_CODES = frozenset(
    {ClientError.UNKNOWN_TOPIC_OR_PART, ClientError._UNKNOWN_TOPIC, ClientError._UNKNOWN_PARTITION}
)
_TOO_LARGE_CODES = frozenset({ClientError.MSG_SIZE_TOO_LARGE, ClientError.RECORD_LIST_TOO_LARGE})


def translate(error: ClientError | KafkaException, doing: str, **fields: Any) -> errors.RiverrunError:
    """Our error for the library's. `doing` completes "… failed while …"; fields such as topic, bootstrap go into it."""
    if isinstance(error, KafkaException):
        argument = error.args[0] if error.args else error
        if not isinstance(argument, ClientError):
            return errors.KafkaError(f"Kafka failed while {doing}", found=str(argument), **fields)
        error = argument
    code, text = error.code(), error.str() or error.name()
    fields = {"kafka_error": error.name(), **fields}
    bootstrap = fields.get("bootstrap", "")
    topic = fields.get("topic", "")
    if code == ClientError._INVALID_ARG and "configuration property" in text:
        return errors.ConfigError([f"Kafka client properties ([kafka.client] or properties=): {text}"])
    if code in _AUTHENTICATION_CODES:
        return errors.AuthenticationError(
            f"The brokers{f' at {bootstrap}' if bootstrap else ''} refused the login while {doing}",
            found=text,
            hint="Check kafka.security_protocol, kafka.sasl_mechanism, user and password (`riverrun config`)",
            **fields,
        )
    if code in _UNREACHABLE_CODES:
        return errors.BrokerUnreachableError(
            f"No broker{f' at {bootstrap}' if bootstrap else ''} answered while {doing}",
            found=text,
            hint="Check the address and that the cluster runs (`riverrun status`, `riverrun doctor`)",
            **fields,
        )
    if code in RETRIABLE_CODES:
        return errors.BrokerUnreachableError(
            f"The cluster{f' at {bootstrap}' if bootstrap else ''} did not settle while {doing}",
            found=f"{error.name()}: {text}",
            hint="A broker is starting, gone or too busy (`riverrun status`)",
            **fields,
        )
    if code in _ACL_RESOURCES:
        return _authorization_error(code, text, doing, fields)
    if code in _UNKNOWN_TOPIC_CODES:
        return errors.TopicNotFoundError(
            f"The cluster has no topic {topic or '(unnamed)'}, needed while {doing}",
            found=text,
            hint=f"Create it: riverrun topics create {topic or 'NAME'}",
            **fields,
        )
    if code in _TOO_LARGE_CODES:
        return errors.RecordTooLargeError(
            f"A record is too large for {topic or 'its topic'}",
            found=text,
            hint="Send smaller records, or raise max.message.bytes of the topic and message.max.bytes of the producer",
            **fields,
        )
    if code == ClientError.TOPIC_ALREADY_EXISTS:
        return errors.TopicExistsError(f"The topic {topic} is there already", **fields)
    if code in _FENCED_CODES:
        return errors.ProducerFencedError(
            f"A newer producer took over while {doing}",
            found=text,
            hint="Let this one end; two producers must not share a transactional id",
            **fields,
        )
    return errors.KafkaError(f"Kafka failed while {doing}", found=f"{error.name()}: {text}", **fields)


def _authorization_error(code: int, text: str, doing: str, fields: dict[str, Any]) -> errors.AuthorizationError:
    """Which right on what is missing, in terms of Kafka's ACLs. `right` in `fields` is the operation, if known."""
    kind, option = _ACL_RESOURCES[code]
    name = str(fields.get(kind.replace(" ", "_"), ""))
    operation = fields.get("right") or _ACL_OPERATIONS.get(
        doing.split(" ", 1)[0], "Write" if "transactional" in kind else ""
    )
    fields = {**fields, "right": operation}
    resource = "the cluster" if kind == "cluster" else f"the {kind} {name}".rstrip()
    missing = f"the right {operation} on {resource}" if operation else f"a right on {resource}"
    command = f"kafka-acls.sh --add --allow-principal User:NAME --operation {operation or 'OPERATION'} {option}"
    return errors.AuthorizationError(
        f"The cluster does not allow {doing}: {missing} is missing",
        found=text,
        hint=f"Ask its owner for it: {command}{f' {name}' if name else '' if kind == 'cluster' else ' …'}",
        **fields,
    )
