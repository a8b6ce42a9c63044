"""Every setting, declared once.

The parser, the environment's names, `riverrun config`, the annotated sample file and docs/reference/settings.md all come
from these classes. A setting is found, highest first: flag, environment, `[profile.NAME]`, project file, default.
"""

import dataclasses
import ipaddress
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_origin, get_type_hints

from riverrun.config.formats import (
    FOLDER,
    HOST,
    HOSTS,
    MASTER,
    REGION,
    SERVERS,
    SIZE,
    ZONE,
    SettingFormat,
    address_format,
    duration_format,
)
from riverrun.config.secret import Secret

ENVIRONMENT_PREFIX = "RIVERRUN_"

# The maximum of a number whose setting does not say, by the unit in its name.
_MAX_BY_UNIT = {"port": 65_535, "mb": 2**20, "seconds": 86_400}
MAX_INT = 2**31 - 1


def setting(
    default: Any,
    help: str,  # noqa: A002  -- the word users know from command lines
    *,
    example: str = "",
    minimum: int | None = None,
    maximum: int | None = None,
    minimum_nonzero: int | None = None,
    format: SettingFormat | None = None,  # noqa: A002
    advanced: bool = False,
) -> Any:
    """Declare one setting. The unit, where there is one, is part of the name (`_seconds`, `_mb`, `port`), and bounds the
    number; `minimum_nonzero` is the least where 0 stands for a default; `format` is what its text must look like."""
    metadata = {
        "help": help,
        "example": example,
        "minimum": minimum,
        "maximum": maximum,
        "minimum_nonzero": minimum_nonzero,
        "format": format,
        "advanced": advanced,
    }
    if isinstance(default, dict):
        return field(default_factory=lambda: types.MappingProxyType(dict(default)), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class ProjectSettings:
    """What belongs to this project."""

    app: str = setting(
        "", "The pipeline file, so that commands know its topics and types without --app.", example="meters.py"
    )


@dataclass(frozen=True)
class KafkaSettings:
    """The Kafka cluster: the one riverrun runs for the project, or one that runs elsewhere."""

    bootstrap_servers: str = setting(
        "",
        "Attach to this cluster (host:port, comma separated) instead of running one.",
        example="broker-1.example:9092,broker-2.example:9092",
        format=SERVERS,
    )
    brokers: int = setting(1, "How many brokers `riverrun up` runs.", minimum=1, maximum=32)
    controllers: int = setting(
        0,
        "How many controllers of their own the cluster has. 0: the first brokers (up to three) are controllers as well.",
        minimum=0,
        maximum=9,
    )
    replication: int = setting(
        0, "Copies of each partition, where a topic does not say. 0: three, or as many as there are brokers.", minimum=0
    )
    min_insync: int = setting(
        0, "Copies that must have a record before it counts as written. 0: one less than the copies.", minimum=0
    )
    port: int = setting(
        0, "Port of the first broker on 127.0.0.1. 0: 9092, or the next free one.", minimum=0, maximum=65535
    )
    heap_mb: int = setting(256, "Java heap of each broker, in MiB.", minimum=128)
    jvm_options: str = setting(
        "", "Any other option for the brokers' Java, separated by spaces.", example="-XX:+UseG1GC", advanced=True
    )
    start_timeout_seconds: int = setting(90, "How long a broker may take to be ready.", minimum=1)
    stop_timeout_seconds: int = setting(30, "How long a broker may take to stop before it is killed.", minimum=1)
    request_timeout_seconds: int = setting(10, "How long one request to the cluster may take.", minimum=1)
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = setting(
        "PLAINTEXT", "How to talk to the brokers of an attached cluster."
    )
    sasl_mechanism: Literal["", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] = setting(
        "", "How to log in, when security_protocol says SASL.", example="SCRAM-SHA-512"
    )
    sasl_username: str = setting("", "User for PLAIN and SCRAM.")
    sasl_password: Secret = setting(Secret(), "Password for PLAIN and SCRAM.")
    oauth_token_url: str = setting(
        "",
        "Token endpoint for OAUTHBEARER (OIDC client credentials).",
        advanced=True,
        format=address_format("https://login.example/token", query=True),
    )
    oauth_client_id: str = setting("", "Client for OAUTHBEARER.", advanced=True)
    oauth_client_secret: Secret = setting(Secret(), "Client secret for OAUTHBEARER.", advanced=True)
    oauth_scope: str = setting("", "Scope to ask for, for OAUTHBEARER.", advanced=True)
    ssl_ca_file: str = setting("", "Certificates that sign the brokers' (PEM). Empty: the system's.", advanced=True)
    ssl_certificate_file: str = setting("", "Our own certificate (PEM), for mutual TLS.", advanced=True)
    ssl_key_file: str = setting("", "The key of our certificate (PEM).", advanced=True)
    ssl_key_password: Secret = setting(Secret(), "Password of the key.", advanced=True)
    client: Mapping[str, str] = setting(
        {},
        "Any other librdkafka property, for all clients.",
        example='{ "socket.keepalive.enable" = "true" }',
        advanced=True,
    )
    broker: Mapping[str, str] = setting(
        {},
        "Any other broker property, for the brokers riverrun runs.",
        example='{ "num.io.threads" = "8" }',
        advanced=True,
    )


@dataclass(frozen=True)
class ArtifactSettings:
    """Where the servers' jars come from."""

    maven_url: str = setting(
        "",
        "Repository to fetch from. Empty: the mirror in Maven's settings.xml, else Maven Central.",
        format=address_format("https://repo.example/maven2", "http", "https", "file", login="user:password"),
    )
    maven_username: str = setting("", "User for that repository, if settings.xml does not have one.", advanced=True)
    maven_password: Secret = setting(Secret(), "Password or token for that user.", advanced=True)
    cache_dir: str = setting("", "Cache shared by all projects of a user. Empty: ~/.cache/riverrun.")
    offline: bool = setting(False, "Fetch nothing; fail when something is missing.")
    parallel: int = setting(8, "Downloads at the same time.", minimum=1, maximum=64, advanced=True)


@dataclass(frozen=True)
class JavaSettings:
    """The Java that runs the servers."""

    home: str = setting("", "A Java 17 or newer. Empty: JAVA_HOME, then `java` on PATH, then the one from PyPI.")


@dataclass(frozen=True)
class SparkSettings:
    """The Spark that runs the streams: in this process's own session, or on a cluster."""

    master: str = setting(
        "", "Where Spark runs. Empty: on this machine, with as many task slots as the streams need.",
        example="spark://spark.example:7077",
        format=MASTER,
    )  # fmt: skip
    python: str = setting(
        "", "The Python of Spark's workers: on a cluster a path that every worker has, with riverrun[spark] installed. "
        "Empty: the one that runs riverrun.",
        example="/opt/riverrun/bin/python",
    )  # fmt: skip
    driver_memory_mb: int = setting(
        768,
        "The most that the heap of Spark's process on this machine grows to. Batch runs over much history, and streams that "
        "join large tables, are faster with more.",
        minimum=512,
    )
    executor_memory_mb: int = setting(
        1024,
        "The heap of each of Spark's executors on a cluster; no more than a worker has to give. On this machine the streams "
        "compute in the process that driver_memory_mb is for.",
        minimum=512,
    )
    shuffle_partitions: int = setting(
        0,
        "Into how many parts a stream's rows are split by key. 0: on this machine one per core, 2 to 8; on a cluster half "
        "as many as its executors have task slots, 2 to 64. A stream keeps what it began with.",
        minimum=0,
        maximum=10_000,
    )
    config: Mapping[str, str] = setting(
        {}, "Any setting of Spark's, above ours.", example='{ "spark.executor.cores" = "2" }', advanced=True
    )


@dataclass(frozen=True)
class StreamSettings:
    """How streams run where the pipeline file does not say."""

    speed: Literal["", "batch", "near-real-time", "real-time"] = setting(
        "", "The speed of all streams. Empty: each stream's own, else near-real-time."
    )
    every: str = setting(
        "0 s",
        "How often near-real-time streams look for new records. 0: again as soon as a batch is done.",
        example="5 seconds",
        format=duration_format(allow_zero=True),
    )
    checkpoints: str = setting(
        "", "Where streams remember how far they are. Empty: in .riverrun. A shared file system for a Spark cluster.",
        example="hdfs://namenode/riverrun",
        format=FOLDER,
    )  # fmt: skip
    transaction_timeout: str = setting(
        "5 minutes", "How long a part of a batch may take from its first row sent to the last. At most what brokers allow "
        "(transaction.max.timeout.ms, 15 minutes).",
        format=duration_format(),
    )  # fmt: skip
    port: int = setting(
        0, "Port of /metrics and /api/streams on 127.0.0.1. 0: the first free one from 9404.", minimum=0
    )


@dataclass(frozen=True)
class StoreSettings:
    """Where results are kept as tables: in a file of riverrun's own, or in Druid."""

    kind: Literal["embedded", "druid", "none"] = setting("embedded", "Which store results go to.")
    memory_mb: int = setting(
        0, "Memory of the embedded store. 0: a quarter of the machine's, up to 4 GiB.", minimum=0, minimum_nonzero=64
    )
    max_size: str = setting(
        "", "The embedded store's file may grow to this; then the oldest rows go. Empty: as large as it must be.",
        example="20 GB",
        format=SIZE,
    )  # fmt: skip
    query_seconds: int = setting(30, "How long one question may take.", minimum=1)
    query_rows: int = setting(10_000, "How many rows one question gives, where it does not say.", minimum=1)
    port: int = setting(
        0, "Port of the tables' HTTP API on 127.0.0.1. 0: the first free one from 8480.", minimum=0, maximum=65535
    )


@dataclass(frozen=True)
class ServeSettings:
    """Dashboards and tables for other machines. On 127.0.0.1 they are always; anywhere else a login is asked for."""

    host: str = setting(
        "127.0.0.1",
        "The address to serve at for others. Any but a loopback address asks for a login.",
        example="0.0.0.0",  # noqa: S104,
        format=HOST,
    )
    port: int = setting(0, "Port at that address. 0: the first free one from 8440.", minimum=0, maximum=65535)
    names: str = setting(
        "", "The names browsers call this machine by, comma separated; others are refused. Empty: serve.host alone.",
        example="dash.example.org, 192.0.2.7",
        format=HOSTS,
    )  # fmt: skip
    ssl_certificate_file: str = setting("", "The certificate of those names, and those above it (PEM).")
    ssl_key_file: str = setting("", "The key of that certificate (PEM).")
    ssl_key_password: Secret = setting(Secret(), "Password of the key.", advanced=True)
    insecure: bool = setting(
        False, "Serve others without TLS: whoever is on the way reads password and figures.", advanced=True
    )
    trusted_proxies: str = setting(
        "", "Proxies in front that have the certificate: addresses or networks whose X-Forwarded headers count.",
        example="127.0.0.1, 10.0.0.0/8",
    )  # fmt: skip
    session_hours: int = setting(12, "How long a login lasts at most.", minimum=1, maximum=8760)
    session_idle_minutes: int = setting(
        60, "How long it lasts without a page that is open or a request.", minimum=1, maximum=525_600
    )
    oidc_issuer: str = setting(
        "",
        "Log in at this OpenID Connect provider instead of by password.",
        example="https://login.example.org",
        format=address_format("https://login.example.org"),
    )
    oidc_client_id: str = setting("", "Who we are there.")
    oidc_client_secret: Secret = setting(Secret(), "How we prove it. Empty: a public client.")
    oidc_emails: str = setting(
        "", "E-mail addresses that may look, comma separated. One of these three lists is needed.",
        example="ada@example.org, bo@example.org",
    )  # fmt: skip
    oidc_domains: str = setting(
        "",
        "Everybody with an e-mail address there may look.",
        example="example.org",
        format=HOSTS,
    )
    oidc_groups: str = setting("", "Everybody in one of these groups may look (claim `groups`).", example="ops, energy")
    oidc_scope: str = setting("openid email profile", "What is asked for there.", advanced=True)

    @property
    def beyond(self) -> bool:
        """Whether other machines are served, and so a login is required: a proxy on this machine serves others too."""
        return not is_loopback(self.host) or bool(split_list(self.trusted_proxies))


@dataclass(frozen=True)
class IngestSettings:
    """Records by HTTP, for the topics that say `riverrun.http()`. On 127.0.0.1 no key is asked for; anywhere else one is."""

    host: str = setting(
        "127.0.0.1",
        "The address to take records at. Any but a loopback address asks for a key.",
        example="0.0.0.0",  # noqa: S104,
        format=HOST,
    )
    port: int = setting(
        0,
        "Port at that address. 0: the one it had before, else the first free one from 8470.",
        minimum=0,
        maximum=65535,
    )
    require_key: bool = setting(
        False, "Ask for a key on 127.0.0.1 as well. Where `keys` names some, it is always asked for."
    )
    keys: Mapping[str, str] = setting(
        {},
        "Keys by name, besides the one in .riverrun/ingest-key.txt: where each is kept.",
        example='{ factory = "env:FACTORY_KEY", shop = "file:secrets/shop-key.txt" }',
    )
    key_topics: Mapping[str, str] = setting(
        {}, "Which topics a key is good for, comma separated. A key that is not named here is good for all.",
        example='{ factory = "readings, events" }',
    )  # fmt: skip
    ssl_certificate_file: str = setting("", "Our certificate, and those above it (PEM).")
    ssl_key_file: str = setting("", "The key of that certificate (PEM).")
    ssl_key_password: Secret = setting(Secret(), "Password of the key.", advanced=True)
    insecure: bool = setting(
        False,
        "Take records from others without TLS: a proxy in front does it, or the network is all yours.",
        advanced=True,
    )
    max_body_mb: int = setting(16, "The largest request, unpacked, in MiB.", minimum=1, maximum=1024)
    max_records: int = setting(10_000, "Records in one request.", minimum=1, maximum=1_000_000)
    memory_mb: int = setting(
        64, "Requests that are read or wait for Kafka, together, in MiB; more are told to come back (429).", minimum=1
    )
    timeout_seconds: int = setting(
        10,
        "How long a request may take: its body, its turn and Kafka; then the answer is 408, 429 or 503.",
        minimum=1,
        maximum=300,
    )
    idempotency_window: str = setting(
        "24 hours",
        "How long an Idempotency-Key is remembered.",
        example="1 hour",
        format=duration_format(),
    )
    idempotency_keys: int = setting(
        500_000,
        "Idempotency-Keys remembered at a time, 0.2 kB each; further ones are told to come back (429).",
        minimum=1,
    )

    @property
    def beyond(self) -> bool:
        """Whether other machines may post."""
        return not is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own. A name other than localhost may be anything, and so is not."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def is_wildcard_host(host: str) -> bool:
    """Whether it means all addresses of this machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return False


def split_list(text: str) -> tuple[str, ...]:
    """The values of a list setting, in order."""
    return tuple(part for item in text.split(",") if (part := item.strip()))


@dataclass(frozen=True)
class DruidSettings:
    """The Druid that riverrun runs beside Kafka, or one that runs elsewhere."""

    url: str = setting(
        "",
        "Attach to this Druid (its router) instead of running one.",
        example="https://druid.example:9088",
        format=address_format("https://druid.example:9088"),
    )
    username: str = setting("", "User of an attached Druid.")
    password: Secret = setting(Secret(), "Password of that user.")
    kafka_servers: str = setting(
        "",
        "The brokers as an attached Druid reaches them. Empty: as we do.",
        example="broker-1.internal:9092",
        format=SERVERS,
    )
    kafka_properties: Mapping[str, str] = setting(
        {}, "Consumer properties for an attached Druid's Kafka ingestion, such as its login.", advanced=True
    )
    port: int = setting(0, "Port of the router on 127.0.0.1. 0: 8888, or the next free one.", minimum=0, maximum=65535)
    memory_mb: int = setting(
        0, "Heap and buffers of Druid's servers together, in MiB. 0: the least that works, 944.", minimum=0
    )
    quick_start: bool = setting(
        False, "Start in 0.6 of the time, from the second start on, for 180 MiB more memory.", advanced=True
    )
    start_timeout_seconds: int = setting(240, "How long Druid may take to be ready.", minimum=1)
    stop_timeout_seconds: int = setting(30, "How long Druid may take to stop before it is killed.", minimum=1)
    task_seconds: int = setting(
        3600, "How long one ingestion task reads before it publishes a segment. Shorter ones make more, smaller segments.",
        minimum=10, advanced=True,
    )  # fmt: skip
    config: Mapping[str, str] = setting(
        {}, "Any property of Druid's, for the servers riverrun runs.", example='{ "druid.processing.numThreads" = "2" }',
        advanced=True,
    )  # fmt: skip


@dataclass(frozen=True)
class ConnectSettings:
    """The Kafka Connect that riverrun runs beside Kafka, or one that runs elsewhere."""

    url: str = setting(
        "",
        "Attach to this Connect (its REST API) instead of running one.",
        example="https://connect.example:8083",
        format=address_format("https://connect.example:8083"),
    )
    username: str = setting("", "User of an attached Connect.")
    password: Secret = setting(Secret(), "Password of that user.")
    port: int = setting(
        0, "Port of its REST API on 127.0.0.1. 0: 8083, or the next free one.", minimum=0, maximum=65535
    )
    heap_mb: int = setting(256, "Java heap of the worker, in MiB; it takes what its connectors need of it.", minimum=96)
    plugins: str = setting(
        "", "Folder with connector plugins of your own: a folder or a jar each.", example="connect-plugins"
    )
    references: Mapping[str, str] = setting(
        {},
        "For an attached Connect: what stands there for a secret, by connector and property.",
        example='{ "shop.postgres.database.password" = "${file:/etc/connect/db.properties:password}" }',
        advanced=True,
    )
    start_timeout_seconds: int = setting(180, "How long Connect may take to be ready.", minimum=1)
    stop_timeout_seconds: int = setting(30, "How long Connect may take to stop before it is killed.", minimum=1)
    request_timeout_seconds: int = setting(30, "How long one request to it may take.", minimum=1)
    config: Mapping[str, str] = setting(
        {}, "Any other property of the worker that riverrun runs.", example='{ "offset.flush.interval.ms" = "1000" }',
        advanced=True,
    )  # fmt: skip


@dataclass(frozen=True)
class RegistrySettings:
    """The schema registry of topics whose format is Avro or JSON Schema: one that riverrun runs beside Kafka, or another."""

    url: str = setting(
        "",
        "Attach to this registry (any that speaks Confluent's API) instead of running one.",
        example="https://registry.example:8081",
        format=address_format("https://registry.example:8081"),
    )
    username: str = setting("", "User of an attached registry.")
    password: Secret = setting(Secret(), "Password of that user.")
    token: Secret = setting(Secret(), "Bearer token for an attached registry, instead of user and password.")
    ssl_ca_file: str = setting("", "Certificates that sign the registry's (PEM). Empty: the usual ones.", advanced=True)
    port: int = setting(0, "Port of ours on 127.0.0.1. 0: 8081, or the next free one.", minimum=0, maximum=65535)
    heap_mb: int = setting(256, "Java heap of ours, in MiB.", minimum=128)
    start_timeout_seconds: int = setting(180, "How long ours may take to be ready.", minimum=1)
    stop_timeout_seconds: int = setting(30, "How long ours may take to stop before it is killed.", minimum=1)
    request_timeout_seconds: int = setting(15, "How long one request to it may take.", minimum=1)


@dataclass(frozen=True)
class AlertSettings:
    """How alerts reach people: by SMS, and by whatever the Apprise library knows."""

    sms_url: str = setting(
        "",
        "Base URL of Infobip's API, or of a gateway that speaks it.",
        example="https://xyz.api.infobip.com",
        format=address_format("https://xyz.api.infobip.com"),
    )
    sms_key: Secret = setting(Secret(), "API key for it.")
    sms_sender: str = setting("", "The name (at most 11 letters) or number that receivers see.", example="riverrun")
    sms_region: str = setting(
        "",
        "The country of numbers that are written without one.",
        example="IE",
        format=REGION,
    )
    sms_entity_id: str = setting("", "Who we are registered as where a country asks for it (India: DLT).")
    sms_template_id: str = setting("", "What our text is registered as there, where a rule does not say.")
    sms_telemarketer_id: str = setting("", "Who sends for us there.", advanced=True)
    sms_callback_url: str = setting(
        "",
        "Where the provider reports what was delivered.",
        example="https://dash.example.org/api/alerts/delivered",
        format=address_format("https://dash.example.org/api/alerts/delivered", query=True),
    )
    sms_max_parts: int = setting(
        4, "A longer text is refused. A part has 160 characters, or 70 beyond GSM's.", minimum=1
    )
    sms_daily_parts: int = setting(1000, "Parts per day, in all. More wait for the next day. 0: no limit.", minimum=0)
    sms_budget_zone: str = setting(
        "UTC",
        "When a day begins.",
        example="Europe/Dublin",
        advanced=True,
        format=ZONE,
    )
    sms_per_second: int = setting(10, "Messages per second, in all. 0: no limit.", minimum=0)
    sms_per_receiver_hour: int = setting(20, "Messages per hour to one receiver. 0: no limit.", minimum=0)
    sms_timeout_seconds: int = setting(10, "How long the provider may take to answer.", minimum=1, maximum=120)
    phone_port: int = setting(
        0, "Port of the phones on this machine, which show SMS where no provider is set. 0: the last one, or a free one.",
        minimum=0, maximum=65535,
    )  # fmt: skip
    channels: Mapping[str, str] = setting(
        {},
        "Other channels by name: where the Apprise URL of each is kept. `{to}` in the URL stands for the receiver.",
        example='{ ops = "env:OPS_URL", mail = "file:secrets/mail-url.txt" }',
    )


@dataclass(frozen=True)
class PostgresSettings:
    """The databases that `riverrun.postgres(…)` follows and `riverrun.jdbc(…)` writes to."""

    url: str = setting(
        "", "The database, where a connector does not name another, and its user. Without the password.",
        example="postgresql://cdc@127.0.0.1:5432/shop",
        format=address_format(
            "postgresql://cdc@127.0.0.1:5432/shop", "postgresql", "postgres", login="user:password", query=True
        ),
    )  # fmt: skip
    password: Secret = setting(Secret(), "Password of that user.")
    databases: Mapping[str, str] = setting(
        {}, "Other databases by name: where the URL of each, password included, is kept.",
        example='{ billing = "env:BILLING_URL", crm = "file:secrets/crm-url.txt" }',
    )  # fmt: skip
    follow: bool = setting(
        True,
        "Whether the tables that the pipeline file names are followed. Without: something else fills their topics.",
    )
    timeout_seconds: int = setting(5, "How long a database may take to answer.", minimum=1, maximum=120)
    heartbeat_seconds: int = setting(
        10, "How often the place in the log is moved on where nothing changes, so that the database can let go of it.",
        minimum=1, advanced=True,
    )  # fmt: skip
    poll_ms: int = setting(
        50, "How often Connect looks for changes. Shorter is sooner, and costs more when nothing changes.",
        minimum=1, maximum=60_000, advanced=True,
    )  # fmt: skip


@dataclass(frozen=True)
class MqttSettings:
    """The MQTT broker that devices publish at, for connectors that do not name another."""

    url: str = setting(
        "",
        "The broker: mqtt://HOST:PORT, or mqtts:// with TLS.",
        example="mqtts://mqtt.example:8883",
        format=address_format("mqtts://mqtt.example:8883", "mqtt", "mqtts", path=False),
    )
    username: str = setting("", "User there.")
    password: Secret = setting(Secret(), "Password of that user.")
    insecure: bool = setting(
        False,
        "Send a password to a broker on another machine without TLS: the network is all yours.",
        advanced=True,
    )
    ssl_ca_file: str = setting("", "Certificates that sign the broker's (PEM). Empty: the system's.", advanced=True)
    ssl_certificate_file: str = setting("", "Our own certificate (PEM), where the broker asks for one.", advanced=True)
    ssl_key_file: str = setting("", "The key of our certificate (PEM).", advanced=True)
    ssl_key_password: Secret = setting(Secret(), "Password of the key.", advanced=True)


@dataclass(frozen=True)
class Settings:
    """All settings of a project, checked."""

    project: ProjectSettings = ProjectSettings()
    kafka: KafkaSettings = KafkaSettings()
    artifacts: ArtifactSettings = ArtifactSettings()
    java: JavaSettings = JavaSettings()
    spark: SparkSettings = SparkSettings()
    streams: StreamSettings = StreamSettings()
    store: StoreSettings = StoreSettings()
    serve: ServeSettings = ServeSettings()
    druid: DruidSettings = DruidSettings()
    connect: ConnectSettings = ConnectSettings()
    registry: RegistrySettings = RegistrySettings()
    alerts: AlertSettings = AlertSettings()
    postgres: PostgresSettings = PostgresSettings()
    ingest: IngestSettings = IngestSettings()
    mqtt: MqttSettings = MqttSettings()


@dataclass(frozen=True)
class SettingSpec:
    """One setting as the parser, the sample file and the reference page see it."""

    section: str
    name: str
    kind: type
    choices: tuple[str, ...]
    default: Any
    help: str
    example: str
    minimum: int | None
    maximum: int | None
    minimum_nonzero: int | None
    format: SettingFormat | None
    advanced: bool

    @property
    def key(self) -> str:
        return f"{self.section}.{self.name}"

    @property
    def environment(self) -> str:
        return f"{ENVIRONMENT_PREFIX}{self.section}_{self.name}".upper()

    @property
    def secret(self) -> bool:
        return self.kind is Secret

    @property
    def table(self) -> bool:
        return self.kind is Mapping


SECTIONS: Mapping[str, type] = {
    "project": ProjectSettings,
    "kafka": KafkaSettings,
    "artifacts": ArtifactSettings,
    "java": JavaSettings,
    "spark": SparkSettings,
    "streams": StreamSettings,
    "store": StoreSettings,
    "serve": ServeSettings,
    "druid": DruidSettings,
    "connect": ConnectSettings,
    "registry": RegistrySettings,
    "alerts": AlertSettings,
    "postgres": PostgresSettings,
    "ingest": IngestSettings,
    "mqtt": MqttSettings,
}


def setting_specs() -> Iterator[SettingSpec]:
    """All settings, in the order they are declared."""
    for section, cls in SECTIONS.items():
        hints = get_type_hints(cls)
        for declared in dataclasses.fields(cls):
            hint = hints[declared.name]
            choices = get_args(hint) if get_origin(hint) is Literal else ()
            kind = str if choices else (get_origin(hint) or hint)
            default = declared.default if declared.default is not dataclasses.MISSING else {}
            details = dict(declared.metadata)
            if kind is int and details["maximum"] is None:
                details["maximum"] = _MAX_BY_UNIT.get(declared.name.rpartition("_")[2], MAX_INT)
            yield SettingSpec(section, declared.name, kind, choices, default, **details)
