"""Every error riverrun raises on purpose. The base is in base.py, those of a part that has many in a file of their own.

A message has four parts: what failed and where, what was expected, what was found, what to do next. The class says which
kind of failure it is, `code` is stable and is what tests and scripts compare, `fields` holds the values in the message,
`retryable` says whether the same call may work later without a change. Exceptions of the libraries below are translated
where they cross into riverrun, with `from`, so that one `except RiverrunError` is enough.

    RiverrunError
    ├── UsageError                   USAGE                  a flag or argument is wrong              (exit code 2)
    ├── ConfigError                  CONFIG_INVALID         riverrun.toml, environment or flags      (exit code 2)
    ├── DeclarationError             DECLARATION_INVALID    an event class, topic or app in code     (exit code 2)
    ├── PipelineError                PIPELINE_INVALID       streams that cannot run as written       (exit code 2)
    ├── EventError
    │   ├── EventInvalidError        EVENT_INVALID          an event breaks its own type
    │   └── RecordUnreadableError    RECORD_UNREADABLE      bytes in a topic are not such an event
    ├── ArtifactError
    │   ├── ArtifactCorruptError     ARTIFACT_CORRUPT       a file differs from the lock file
    │   ├── ArtifactMissingError     ARTIFACT_MISSING       not in the cache, and may not be fetched
    │   ├── DownloadError            DOWNLOAD_FAILED        retryable
    │   ├── RepositoryError          REPOSITORY_REFUSED     it answers, but not with the file: login, TLS, a web page
    │   ├── CacheError               CACHE_UNUSABLE         the user's cache cannot be read or written
    │   └── LockFileError            LOCK_INVALID
    ├── JavaError                    JAVA_NOT_FOUND
    ├── ClusterError
    │   ├── ServerDiedError          SERVER_DIED            a child process ended by itself
    │   ├── ServerNotReadyError      SERVER_NOT_READY       retryable; still starting at its deadline
    │   ├── PortTakenError           PORT_TAKEN
    │   ├── DataDirectoryError       DATA_DIRECTORY         not writable, of another cluster or version
    │   ├── DiskFullError            DISK_FULL
    │   ├── AlreadyRunningError      ALREADY_RUNNING
    │   └── NotRunningError          NOT_RUNNING
    ├── StreamError
    │   ├── SparkUnavailableError    SPARK_UNAVAILABLE      PySpark is missing, or its session does not start
    │   ├── StreamCodeError          STREAM_CODE_FAILED     the stream's own code failed on a record
    │   ├── StreamFailedError        STREAM_FAILED          retryable; something around the stream failed
    │   ├── VerificationFailedError  VERIFY_DIFFERS         its output is not what its code makes of its input
    │   ├── StreamChangedError       STREAM_CHANGED         edited so that it cannot go on by itself  (exit code 2)
    │   ├── BatchChangedError        BATCH_CHANGED          a batch that was written is made of other records now
    │   ├── StreamTakenOverError     STREAM_TAKEN_OVER      another run of the stream writes to its topic
    │   └── CheckpointError          CHECKPOINT_UNUSABLE    a stream's checkpoint is gone or damaged
    ├── DatabaseError
    │   ├── DatabaseUnreachableError DATABASE_UNREACHABLE   retryable; it does not answer, or not in time
    │   ├── DatabaseRefusedError     DATABASE_REFUSED       it answers, and does not let us in or do this
    │   └── DatabaseNotReadyError    DATABASE_NOT_READY     it cannot be followed or written as it is set up
    ├── StoreError
    │   ├── StoreUnavailableError    STORE_UNAVAILABLE      retryable; no store runs, or it does not answer
    │   ├── StoreTableError          STORE_TABLE_DIFFERS    a table cannot become what is declared
    │   ├── QueryError               QUERY_INVALID          a query the store does not understand     (exit code 2)
    │   ├── QueryRefusedError        QUERY_REFUSED          one that does more than read its tables   (exit code 2)
    │   ├── QueryTimeoutError        QUERY_TIMEOUT          it took longer than it may
    │   └── QueryCancelledError      QUERY_CANCELLED
    ├── ConnectError
    │   ├── ConnectUnavailableError  CONNECT_UNAVAILABLE    retryable; no Kafka Connect runs, or it does not answer
    │   ├── ConnectRefusedError      CONNECT_REFUSED        Connect does not take a connector's configuration (exit code 2)
    │   ├── ConnectorNotFoundError   CONNECTOR_NOT_FOUND
    │   └── ConnectFailedError       CONNECT_FAILED         a connector or one of its tasks failed, with its reason
    ├── ConnectorError
    │   ├── ConnectorFailedError     CONNECTOR_FAILED       retryable; a source or sink failed, and may work later
    │   ├── RetryLaterError          CONNECTOR_LATER        retryable; a sink's target is away, or wants us to wait
    │   ├── ConnectorRefusedError    CONNECTOR_REFUSED      trying again cannot help
    │   └── PositionUnknownError     POSITION_UNKNOWN       the position a source is to go on from is gone
    ├── RegistryError
    │   ├── RegistryUnavailableError REGISTRY_UNAVAILABLE   retryable; no schema registry is known, or it does not answer
    │   ├── RegistryRefusedError     REGISTRY_REFUSED       it answers, and does not let us in or do this
    │   ├── SchemaUnknownError       SCHEMA_UNKNOWN         no schema of this topic, or of this id, is there
    │   └── SchemaIncompatibleError  SCHEMA_INCOMPATIBLE    a change of a type that readers could not follow (exit code 2)
    └── KafkaError
        ├── BrokerUnreachableError   KAFKA_UNREACHABLE      retryable
        ├── AuthenticationError      KAFKA_AUTHENTICATION
        ├── AuthorizationError       KAFKA_AUTHORIZATION
        ├── TopicNotFoundError       TOPIC_NOT_FOUND
        ├── TopicExistsError         TOPIC_EXISTS
        ├── TopicDiffersError        TOPIC_DIFFERS          declared and real topic cannot be made equal
        ├── RecordTooLargeError      RECORD_TOO_LARGE
        ├── QueueFullError           QUEUE_FULL             retryable; back pressure reached its deadline
        ├── DeliveryError            DELIVERY_FAILED        records that were sent and not acknowledged
        ├── TransactionError         TRANSACTION_FAILED
        ├── ProducerFencedError      PRODUCER_FENCED        a newer producer has this transactional id
        ├── CommitError              COMMIT_FAILED          retryable
        ├── OffsetOutOfRangeError    OFFSET_OUT_OF_RANGE    retention removed what was to be read
        ├── MaxPollExceededError     MAX_POLL_EXCEEDED      a plain loop took too long; others have its partitions
        ├── GroupNotFoundError       GROUP_NOT_FOUND
        ├── GroupNotEmptyError       GROUP_NOT_EMPTY        offsets of a group with members are not moved
        └── HandlerError             HANDLER_FAILED         the user's handler gave up on a record
"""

from collections.abc import Sequence
from typing import Any

from riverrun.errors.base import RiverrunError as RiverrunError
from riverrun.errors.registry import RegistryError as RegistryError
from riverrun.errors.registry import RegistryRefusedError as RegistryRefusedError
from riverrun.errors.registry import RegistryUnavailableError as RegistryUnavailableError
from riverrun.errors.registry import SchemaIncompatibleError as SchemaIncompatibleError
from riverrun.errors.registry import SchemaUnknownError as SchemaUnknownError


class UsageError(RiverrunError):
    """A flag or argument is wrong, and so nothing was done."""

    code = "USAGE"
    exit_code = 2


class ConfigError(RiverrunError):
    """The configuration has problems: all of them, each with its location."""

    code = "CONFIG_INVALID"
    exit_code = 2

    def __init__(self, problems: Sequence[str], **fields: Any) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        listed = "".join(f"\n  {problem}" for problem in self.problems)
        super().__init__(f"{count} problem{'s' if count != 1 else ''} in the configuration:{listed}", **fields)

    def __str__(self) -> str:
        return self.what


class DeclarationError(RiverrunError):
    """An event class, topic or app is declared wrongly in the user's code."""

    code = "DECLARATION_INVALID"
    exit_code = 2


class PipelineError(RiverrunError):
    """The streams of a pipeline file cannot run as written: all problems, each with its location."""

    code = "PIPELINE_INVALID"
    exit_code = 2

    def __init__(self, problems: Sequence[str], *, file: str = "", **fields: Any) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        where = f" in {file}" if file else ""
        super().__init__(f"{count} problem{'s' if count != 1 else ''}{where}", lines=self.problems, file=file, **fields)

    def __str__(self) -> str:
        return "\n  ".join([f"{self.what}:", *self.problems])


class EventError(RiverrunError):
    """Something is wrong with one event."""

    code = "EVENT"


class EventInvalidError(EventError):
    """An event breaks its own type or constraint; it was not sent."""

    code = "EVENT_INVALID"


class RecordUnreadableError(EventError):
    """The bytes of a record are not an event of the topic's type."""

    code = "RECORD_UNREADABLE"


class ArtifactError(RiverrunError):
    """Something is wrong with a downloaded file."""

    code = "ARTIFACT"


class ArtifactCorruptError(ArtifactError):
    """A file differs from what the lock file says; it is not used."""

    code = "ARTIFACT_CORRUPT"


class ArtifactMissingError(ArtifactError):
    """A file is not in the cache, and riverrun is offline or the repository does not have it."""

    code = "ARTIFACT_MISSING"


class DownloadError(ArtifactError):
    """A file could not be fetched; the part that arrived is kept for the next try."""

    code = "DOWNLOAD_FAILED"
    retryable = True


class RepositoryError(ArtifactError):
    """The repository, or a proxy on the way, refuses us or is refused by us; trying again does not help."""

    code = "REPOSITORY_REFUSED"


class CacheError(ArtifactError):
    """The cache of downloaded files cannot be read or written."""

    code = "CACHE_UNUSABLE"


class LockFileError(ArtifactError):
    """A lock file cannot be read."""

    code = "LOCK_INVALID"


class JavaError(RiverrunError):
    """No Java that can run the servers."""

    code = "JAVA_NOT_FOUND"


class ClusterError(RiverrunError):
    """Something is wrong with a server riverrun runs."""

    code = "CLUSTER"


class ServerDiedError(ClusterError):
    """A server ended by itself; the message ends with the last lines of its log."""

    code = "SERVER_DIED"


class ServerNotReadyError(ClusterError):
    """A server lives but was not ready at its deadline."""

    code = "SERVER_NOT_READY"
    retryable = True


class PortTakenError(ClusterError):
    """A requested port belongs to another process."""

    code = "PORT_TAKEN"


class DataDirectoryError(ClusterError):
    """A data directory cannot be used: rights, another cluster's data, a newer version's data."""

    code = "DATA_DIRECTORY"


class DiskFullError(ClusterError):
    """Too little space to start, or none left."""

    code = "DISK_FULL"


class AlreadyRunningError(ClusterError):
    """This project's servers run already with other settings, or its pipeline runs already."""

    code = "ALREADY_RUNNING"


class NotRunningError(ClusterError):
    """This needs a running cluster, and the project has none."""

    code = "NOT_RUNNING"


class StreamError(RiverrunError):
    """A stream could not be run."""

    code = "STREAM"


class SparkUnavailableError(StreamError):
    """PySpark is not installed, or its session does not start."""

    code = "SPARK_UNAVAILABLE"


def not_installed(error: ImportError) -> SparkUnavailableError:
    """The error for a package that streams need and that cannot be imported."""
    package = "PySpark" if (error.name or "").startswith("pyspark") else error.name or "a package"
    return SparkUnavailableError(f"{package} is not installed", hint='Install it: pip install "riverrun[spark]"')


class StreamCodeError(StreamError):
    """The user's own code (a function, an expression) failed on a record; running it again would fail again."""

    code = "STREAM_CODE_FAILED"


class StreamFailedError(StreamError):
    """A stream ended because of something around it: a broker, a disk, memory. It may work later."""

    code = "STREAM_FAILED"
    retryable = True


class VerificationFailedError(StreamError):
    """A stream's output is not what its code computes from its input."""

    code = "VERIFY_DIFFERS"


class StreamChangedError(StreamError):
    """Streams were edited so that they cannot go on from where they were: all of them, each with what to do."""

    code = "STREAM_CHANGED"
    exit_code = 2

    def __init__(self, problems: Sequence[str], **fields: Any) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        what = f"{count} stream{'s' if count != 1 else ''} cannot go on as edited, and no stream was started"
        super().__init__(what, lines=self.problems, **fields)

    def __str__(self) -> str:
        return "\n  ".join([f"{self.what}:", *self.problems])


class BatchChangedError(StreamError):
    """Rows of a batch are in their topic, but the batch of that number now has other records, or is split otherwise."""

    code = "BATCH_CHANGED"


class StreamTakenOverError(StreamError):
    """Another run of the same stream has begun; this one must not write any more."""

    code = "STREAM_TAKEN_OVER"


class CheckpointError(StreamError):
    """The checkpoint of a stream is gone, damaged, or belongs to another stream."""

    code = "CHECKPOINT_UNUSABLE"


class DatabaseError(RiverrunError):
    """Something is wrong with a database that connectors follow or write to."""

    code = "DATABASE"


class DatabaseUnreachableError(DatabaseError):
    """The database does not answer, or not in time."""

    code = "DATABASE_UNREACHABLE"
    retryable = True


class DatabaseRefusedError(DatabaseError):
    """The database answers, and does not let us in or does not do what it was asked."""

    code = "DATABASE_REFUSED"


class DatabaseNotReadyError(DatabaseError):
    """Databases cannot be followed or written to as they are set up: all problems, each with the SQL that mends it."""

    code = "DATABASE_NOT_READY"

    def __init__(self, problems: Sequence[str], **fields: Any) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        what = f"{count} problem{'s' if count != 1 else ''} with the databases of the connectors"
        super().__init__(what, lines=self.problems, **fields)

    def __str__(self) -> str:
        return "\n  ".join([f"{self.what}:", *self.problems])


class StoreError(RiverrunError):
    """Something is wrong with a store, its tables or a query."""

    code = "STORE"


class StoreUnavailableError(StoreError):
    """No store runs, or it does not answer."""

    code = "STORE_UNAVAILABLE"
    retryable = True


class StoreTableError(StoreError):
    """A table in the store cannot become what is declared now; nothing was changed."""

    code = "STORE_TABLE_DIFFERS"


class QueryError(StoreError):
    """A query that the store does not understand: its words, its names, or what this store cannot do."""

    code = "QUERY_INVALID"
    exit_code = 2


class QueryRefusedError(QueryError):
    """A query that does more than read the store's tables. It was not run."""

    code = "QUERY_REFUSED"


class QueryTimeoutError(StoreError):
    """A query that exceeded its time limit, and was ended."""

    code = "QUERY_TIMEOUT"


class QueryCancelledError(StoreError):
    """A query that somebody cancelled."""

    code = "QUERY_CANCELLED"


class ConnectError(RiverrunError):
    """Kafka Connect refused or failed a request."""

    code = "CONNECT"


class ConnectUnavailableError(ConnectError):
    """No Kafka Connect runs for this project, or it does not answer."""

    code = "CONNECT_UNAVAILABLE"
    retryable = True


class ConnectRefusedError(ConnectError):
    """Connect does not take the configuration of connectors: all problems, each with its property. Nothing was changed."""

    code = "CONNECT_REFUSED"
    exit_code = 2

    def __init__(self, problems: Sequence[str], **fields: Any) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        what = f"{count} problem{'s' if count != 1 else ''} in the configuration of connectors, and nothing was changed"
        super().__init__(what, lines=self.problems, **fields)

    def __str__(self) -> str:
        return "\n  ".join([f"{self.what}:", *self.problems])


class ConnectorNotFoundError(ConnectError):
    """Connect has no connector of that name."""

    code = "CONNECTOR_NOT_FOUND"


class ConnectFailedError(ConnectError):
    """A connector, or one of its tasks, failed: with the reason in Connect's own words."""

    code = "CONNECT_FAILED"


class ConnectorError(RiverrunError):
    """Something is wrong with a source or a sink."""

    code = "CONNECTOR"


class ConnectorFailedError(ConnectorError):
    """A source or a sink failed, and may work later: it is tried again."""

    code = "CONNECTOR_FAILED"
    retryable = True


class RetryLaterError(ConnectorError):
    """The target of a sink is unavailable, or wants us to wait `after_seconds`. Records are retried without a limit."""

    code = "CONNECTOR_LATER"
    retryable = True

    def __init__(self, what: str, *, after_seconds: float = 0.0, **parts: Any) -> None:
        super().__init__(what, **parts)
        self.after_seconds = after_seconds


class ConnectorRefusedError(ConnectorError):
    """A retry cannot help: a record that a target never takes, or a source that cannot be read as declared."""

    code = "CONNECTOR_REFUSED"


class PositionUnknownError(ConnectorRefusedError):
    """The position a source is to continue from no longer exists. It does not guess another one."""

    code = "POSITION_UNKNOWN"


class KafkaError(RiverrunError):
    """A Kafka broker refused or failed a request."""

    code = "KAFKA"


class BrokerUnreachableError(KafkaError):
    """No broker answered in time."""

    code = "KAFKA_UNREACHABLE"
    retryable = True


class AuthenticationError(KafkaError):
    """The brokers refuse our identity, or we refuse theirs (TLS)."""

    code = "KAFKA_AUTHENTICATION"


class AuthorizationError(KafkaError):
    """The brokers know us and do not let us do this."""

    code = "KAFKA_AUTHORIZATION"


class TopicNotFoundError(KafkaError):
    """The cluster has no such topic."""

    code = "TOPIC_NOT_FOUND"


class TopicExistsError(KafkaError):
    """The topic is there already."""

    code = "TOPIC_EXISTS"


class TopicDiffersError(KafkaError):
    """The topic on the cluster differs from its declaration in a way that is not safe to change."""

    code = "TOPIC_DIFFERS"


class RecordTooLargeError(KafkaError):
    """A record is larger than the producer or the topic allows; it was not sent."""

    code = "RECORD_TOO_LARGE"


class QueueFullError(KafkaError):
    """The producer's queue stayed full until the deadline; this record was not taken."""

    code = "QUEUE_FULL"
    retryable = True


class DeliveryError(KafkaError):
    """Records that were taken by the producer were not acknowledged by the cluster.

    `undelivered` holds the first of them (the whole record and its own error); the field `count` says how many there are.
    """

    code = "DELIVERY_FAILED"

    def __init__(self, what: str, *, undelivered: Sequence[Any] = (), **parts: Any) -> None:
        super().__init__(what, **parts)
        self.undelivered = tuple(undelivered)


class TransactionError(KafkaError):
    """A transaction could not be completed and was aborted: none of its records are visible."""

    code = "TRANSACTION_FAILED"


class ProducerFencedError(TransactionError):
    """A newer producer took over this transactional id; this one must stop."""

    code = "PRODUCER_FENCED"


class CommitError(KafkaError):
    """Offsets were not committed; what was handled since will be read again."""

    code = "COMMIT_FAILED"
    retryable = True


class OffsetOutOfRangeError(KafkaError):
    """Records between a reader's position and the start of the log were removed by retention."""

    code = "OFFSET_OUT_OF_RANGE"


class MaxPollExceededError(KafkaError):
    """A loop over records took too long for one of them, and the group gave its partitions to others. It may go on."""

    code = "MAX_POLL_EXCEEDED"


class GroupNotFoundError(KafkaError):
    """The cluster has no such consumer group."""

    code = "GROUP_NOT_FOUND"


class GroupNotEmptyError(KafkaError):
    """The group has members; its offsets are theirs to move."""

    code = "GROUP_NOT_EMPTY"


class HandlerError(KafkaError):
    """The user's handler failed on a record for good, and the consumer is configured to stop then."""

    code = "HANDLER_FAILED"
