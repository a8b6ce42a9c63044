"""The worker's properties. Why these: docs/decisions/0014-kafka-connect.md."""

from pathlib import Path

from riverrun.cluster.connect.plan import CONFIG_PROVIDER, NAME, TOPICS, ConnectPlan
from riverrun.cluster.ports import HOST

GROUP = "riverrun-connect"
AUTHENTICATION = "org.apache.kafka.connect.rest.basic.auth.extension.BasicAuthSecurityRestExtension"
# Long after this a transaction that a killed worker left open holds nobody up.
TRANSACTION_TIMEOUT_MS = 5000


def worker_properties(plan: ConnectPlan, port: int, *, plugins: str, secrets: Path, scan: bool) -> dict[str, str]:
    """What is in its configuration file. `plugins` is the folder it looks at, `scan` whether to look into jars that do
    not say what they hold."""
    converters = {
        f"{part}.converter{rest}": value
        for part in ("key", "value")
        for rest, value in (("", "org.apache.kafka.connect.json.JsonConverter"), (".schemas.enable", "false"))
    }
    topics = {f"{kind}.storage.topic": name for kind, name in TOPICS.items()}
    copies = {f"{kind}.storage.replication.factor": str(plan.copies) for kind in TOPICS}
    properties = {
        "bootstrap.servers": plan.bootstrap_servers,
        "group.id": GROUP,
        "client.id": NAME,
        "listeners": f"http://{HOST}:{port}",
        "rest.advertised.host.name": HOST,
        "rest.extension.classes": AUTHENTICATION,
        **converters,
        **topics,
        **copies,
        "offset.storage.partitions": "4",
        "status.storage.partitions": "2",
        "offset.flush.interval.ms": "5000",
        "plugin.path": plugins,
        # Looking into every jar takes seconds, and ours say what they hold.
        "plugin.discovery": "hybrid_warn" if scan else "service_load",
        "exactly.once.source.support": "enabled",
        "connector.client.config.override.policy": "All",
        # After a kill, a transaction that is left open blocks readers until it ends by itself.
        "producer.transaction.timeout.ms": str(TRANSACTION_TIMEOUT_MS),
        # What streams write in transactions that are not finished is not for sinks.
        "consumer.isolation.level": "read_committed",
        # There is one worker: nobody else could take its work over meanwhile, so there is nothing to wait for.
        "scheduled.rebalance.max.delay.ms": "0",
        # One that was killed is a member of the group until this has passed, and its successor waits for that.
        "session.timeout.ms": "6000",
        "heartbeat.interval.ms": "2000",
        "config.providers": CONFIG_PROVIDER,
        f"config.providers.{CONFIG_PROVIDER}.class": "org.apache.kafka.common.config.provider.DirectoryConfigProvider",
        f"config.providers.{CONFIG_PROVIDER}.param.allowed.paths": str(secrets),
    }
    properties |= plan.properties
    others = [
        provider
        for provider in plan.properties.get("config.providers", "").split(",")
        if provider.strip() not in ("", CONFIG_PROVIDER)
    ]
    properties["config.providers"] = ",".join([CONFIG_PROVIDER, *others])
    return properties
