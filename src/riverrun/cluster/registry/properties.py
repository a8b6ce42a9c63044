"""The registry's configuration. Its own names, and why these: docs/decisions/0019-schema-registry.md."""

from riverrun.cluster.ports import HOST
from riverrun.cluster.single_server import USER

# Where it serves Confluent's API.
PATH = "/apis/ccompat/v7"
# It keeps all its state in these topics of the cluster.
JOURNAL, SNAPSHOTS, EVENTS = "_registry-journal", "_registry-snapshots", "_registry-events"


def registry_properties(bootstrap_servers: str, port: int, *, password: str, log: str, folder: str) -> dict[str, str]:
    """The content of its configuration file: a secret among it."""
    pools = {
        f"apicurio.datasource.{which}jdbc.{name}": value
        for which in ("", "blue.", "green.")
        # Its own database is in memory, and it would open twenty connections to each of three before it is ready.
        for name, value in (("initial-size", "1"), ("min-size", "1"), ("max-size", "8"))
    }
    return {
        "quarkus.http.host": HOST,
        "quarkus.http.port": str(port),
        "quarkus.http.auth.basic": "true",
        "quarkus.http.auth.permission.all.paths": "/*",
        "quarkus.http.auth.permission.all.policy": "authenticated",
        "quarkus.security.users.embedded.plain-text": "true",
        f"quarkus.security.users.embedded.users.{USER}": password,
        "quarkus.http.access-log.enabled": "false",
        "quarkus.http.cors": "false",
        "apicurio.storage.kind": "kafkasql",
        "apicurio.kafkasql.bootstrap.servers": bootstrap_servers,
        "apicurio.kafkasql.topic": JOURNAL,
        "apicurio.kafkasql.snapshots.topic": SNAPSHOTS,
        "apicurio.events.kafka.topic": EVENTS,
        # How long it polls for a record of its journal before it checks again whether it must stop.
        "apicurio.kafkasql.consumer.poll.timeout": "500",
        "apicurio.storage.snapshot.location": folder,
        "apicurio.import.work-dir": folder,
        **pools,
        "quarkus.log.console.enable": "false",
        "quarkus.log.file.enable": "true",
        "quarkus.log.file.path": log,
        "quarkus.log.file.json": "false",
        "quarkus.log.file.format": "%d{yyyy-MM-dd HH:mm:ss.SSS} %-5p %m (%c{1})%n%e",
        "quarkus.log.file.rotation.max-file-size": "8M",
        "quarkus.log.file.rotation.max-backup-index": "3",
        'quarkus.log.category."io.apicurio".level': "WARN",
        'quarkus.log.category."io.apicurio.registry.storage".level': "INFO",
        'quarkus.log.category."io.quarkus".level': "INFO",
        # Two lines for each request.
        'quarkus.log.category."io.apicurio.registry.auth".level': "WARN",
    }
