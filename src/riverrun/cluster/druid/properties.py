"""Druid's own settings for a single laptop. Paths are relative to the folder its servers run in."""

import json
from collections.abc import Mapping

from riverrun.cluster.druid.plan import ZOOKEEPER, DruidPlan, RolePlan
from riverrun.cluster.ports import HOST

DERBY = "druid-metadata"
EXTENSIONS = ("druid-kafka-indexing-service", "druid-datasketches")
# ZooKeeper's session timeout: how soon the others learn of a killed server. Druid's 30 s is for networks.
SESSION_MS = 10_000
# Heap of the indexer for each concurrent task: each table has one that reads and, for moments, one that publishes.
TASK_MB = 42


def role_properties(role: RolePlan, plan: DruidPlan, ports: Mapping[str, int], extensions: str) -> dict[str, str]:
    """One role's runtime.properties: the user's own come last."""
    own = {
        "druid.service": f"druid/{role.role}",
        "druid.plaintextPort": str(ports[role.name]),
    }
    return common(ports, extensions) | own | _ROLES[role.role](role) | dict(plan.properties)


def common(ports: Mapping[str, int], extensions: str) -> dict[str, str]:
    return {
        "druid.extensions.directory": extensions,
        "druid.extensions.loadList": json.dumps(EXTENSIONS),
        "druid.host": HOST,
        # Without it Druid listens on every address of the machine.
        "druid.bindOnHost": "true",
        "druid.startup.logging.logProperties": "false",
        "druid.zk.service.host": f"{HOST}:{ports[ZOOKEEPER]}",
        "druid.zk.service.sessionTimeoutMs": str(SESSION_MS),
        "druid.zk.service.connectionTimeoutMs": str(SESSION_MS * 4 // 5),
        "druid.zk.paths.base": "/druid",
        "druid.metadata.storage.type": "derby",
        "druid.metadata.storage.connector.connectURI": f"jdbc:derby://{HOST}:{ports[DERBY]}/metadata.db;create=true",
        "druid.metadata.storage.connector.host": HOST,
        "druid.metadata.storage.connector.port": str(ports[DERBY]),
        "druid.storage.type": "local",
        "druid.storage.storageDirectory": "segments",
        "druid.indexer.logs.type": "file",
        "druid.indexer.logs.directory": "indexing-logs",
        "druid.selectors.indexing.serviceName": "druid/overlord",
        "druid.selectors.coordinator.serviceName": "druid/coordinator",
        "druid.emitter": "noop",
        "druid.monitoring.monitors": "[]",
        "druid.lookup.enableLookupSyncOnStartup": "false",
        "druid.sql.enable": "true",
        "druid.processing.buffer.sizeBytes": "10MiB",
        "druid.processing.numThreads": "1",
        # Three exact distinct counts in one query; each takes its share of `RolePlan.direct_mb`.
        "druid.processing.numMergeBuffers": "4",
        "druid.processing.tmpDir": "processing",
        "druid.server.http.numThreads": "10",
        "druid.global.http.numConnections": "10",
        "druid.centralizedDatasourceSchema.enabled": "false",
        # Exact distinct counts over more than fits into a buffer.
        "druid.query.groupBy.maxOnDiskStorage": "1GiB",
        "druid.server.http.gracefulShutdownTimeout": "PT2S",
    }


def _coordinator(role: RolePlan) -> dict[str, str]:  # noqa: ARG001
    return {
        "druid.coordinator.startDelay": "PT1S",
        "druid.coordinator.period": "PT5S",
        "druid.coordinator.period.indexingPeriod": "PT60S",
        "druid.manager.segments.pollDuration": "PT2S",
        "druid.coordinator.asOverlord.enabled": "true",
        "druid.coordinator.asOverlord.overlordService": "druid/overlord",
        "druid.indexer.queue.startDelay": "PT1S",
        "druid.indexer.storage.type": "metadata",
        # Unused data is deleted automatically: logs and records of old tasks, segments that were replaced.
        "druid.indexer.logs.kill.enabled": "true",
        "druid.indexer.logs.kill.durationToRetain": str(86_400_000),
        "druid.indexer.logs.kill.initialDelay": str(300_000),
        "druid.indexer.logs.kill.delay": str(3_600_000),
        "druid.coordinator.kill.on": "true",
        "druid.coordinator.kill.period": "PT1H",
        "druid.coordinator.kill.durationToRetain": "P1D",
        "druid.coordinator.kill.bufferPeriod": "P1D",
    }


def _broker(role: RolePlan) -> dict[str, str]:  # noqa: ARG001
    return {
        "druid.broker.http.numConnections": "5",
        "druid.broker.http.maxQueuedBytes": "5MiB",
        # How soon SQL sees a new table or column.
        "druid.sql.planner.metadataRefreshPeriod": "PT1S",
        "druid.broker.cache.useCache": "false",
        "druid.broker.cache.populateCache": "false",
    }


def _historical(role: RolePlan) -> dict[str, str]:  # noqa: ARG001
    return {
        "druid.segmentCache.locations": json.dumps([{"path": "segment-cache", "maxSize": "10g"}]),
        "druid.historical.cache.useCache": "false",
        "druid.historical.cache.populateCache": "false",
    }


def _indexer(role: RolePlan) -> dict[str, str]:
    return {
        "druid.worker.capacity": str(role.heap_mb // TASK_MB),
        "druid.worker.numConcurrentMerges": "1",
        # Divided among all tasks, busy or not; with Druid's own default, a sixth of the heap, each would write tiny
        # files.
        "druid.worker.globalIngestionHeapLimitBytes": str(role.heap_mb * (1 << 20) // 3),
        "druid.indexer.task.baseTaskDir": "task",
        # With true, a kill after a persist in the middle of a task left a row twice in a published segment.
        "druid.indexer.task.restoreTasksOnRestart": "false",
        "druid.indexer.task.gracefulShutdownTimeout": "PT5S",
    }


def _router(role: RolePlan) -> dict[str, str]:  # noqa: ARG001
    return {
        "druid.router.defaultBrokerServiceName": "druid/broker",
        "druid.router.coordinatorServiceName": "druid/coordinator",
        "druid.router.managementProxy.enabled": "true",
        "druid.router.http.numConnections": "10",
        "druid.router.http.numMaxThreads": "20",
    }


_ROLES = {
    "coordinator": _coordinator,
    "broker": _broker,
    "historical": _historical,
    "indexer": _indexer,
    "router": _router,
}


def zookeeper_properties(port: int) -> dict[str, str]:
    """ZooKeeper's zoo.cfg."""
    return {
        "tickTime": "2000",
        "dataDir": f"./{ZOOKEEPER}",
        "clientPort": str(port),
        "clientPortAddress": HOST,
        "admin.enableServer": "false",
        "maxClientCnxns": "0",
        # At each start and once a day: deletes snapshots and logs that newer ones have replaced.
        "autopurge.purgeInterval": "24",
        "autopurge.snapRetainCount": "3",
        "4lw.commands.whitelist": "ruok,srvr",
    }
