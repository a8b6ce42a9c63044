"""The worker's properties. Why these: docs/decisions/0014-kafka-connect.md."""

from pathlib import Path

from riverrun.cluster.connect.plan import CONFIG_PROVIDER, NAME, TOPICS, ConnectPlan
from riverrun.cluster.ports import HOST

GROUP = "riverrun-connect"
AUTHENTICATION = "org.apache.kafka.connect.rest.basic.auth.extension.BasicAuthSecurityRestExtension"
# By then a transaction that a killed worker left open no longer blocks anybody.
TRANSACTION_TIMEOUT_MS = 5000


def worker_properties(plan: ConnectPlan, port: int, *, plugins: str, secrets: Path, scan: bool) -> dict[str, str]:
    """The content of its configuration file. `plugins` is the plugin path, `scan` whether to scan jars that do not list
    their plugins."""
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
        # Scanning every jar takes seconds, and ours list their plugins.
        "plugin.discovery": "hybrid_warn" if scan else "service_load",
        "exactly.once.source.support": "enabled",
        "connector.client.config.override.policy": "All",
        # After a kill, an open transaction blocks readers until it times out.
        "producer.transaction.timeout.ms": str(TRANSACTION_TIMEOUT_MS),
        # Sinks read committed records only.
        "consumer.isolation.level": "read_committed",
        # There is one worker: nobody else could take over its work meanwhile, so there is nothing to wait for.
        "scheduled.rebalance.max.delay.ms": "0",
        # A killed worker stays a member of the group until this has passed, and its successor waits for that.
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
