"""A node's storage, formatted by ourselves: what Kafka's StorageTool would write, without a JVM for it.

Formatting is two small files: `meta.properties` says whose storage this is, `bootstrap.checkpoint` which features a new
cluster starts with. Kafka's own tool takes a JVM of its own for that, more than a second of every first start
(docs/decisions/0003-cluster-runner.md). The feature levels are known per Kafka version; for a version that is not in
the table the tool is used, and a test compares the table and the files with the tool.
"""

import base64
import secrets
import struct
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from riverrun.cluster.home import ClusterHome
from riverrun.cluster.jvm import JavaRuntime
from riverrun.cluster.properties import format_properties, parse_properties
from riverrun.config.private_files import write_private
from riverrun.errors import DataDirectoryError, ServerNotReadyError

META = "meta.properties"
BOOTSTRAP = "bootstrap.checkpoint"

# Highest production level of each feature, by Kafka's major.minor version: `StorageTool version-mapping`.
FEATURES: Mapping[str, Mapping[str, int]] = {
    "4.3": {
        "metadata.version": 30,
        "eligible.leader.replicas.version": 1,
        "group.version": 1,
        "share.version": 1,
        "streams.version": 1,
        "transaction.version": 2,
    },
}


def new_id() -> str:
    """A random id in Kafka's format: a UUID in 22 characters. Kafka reserves some."""
    while True:
        raw = bytearray(secrets.token_bytes(16))
        raw[6] = raw[6] & 0x0F | 0x40
        raw[8] = raw[8] & 0x3F | 0x80
        text = base64.urlsafe_b64encode(raw).decode().rstrip("=")
        # An id that begins with a dash looks like an option on a command line.
        if not text.startswith("-"):
            return text


def is_formatted(folder: Path) -> bool:
    return (folder / META).is_file()


def format_storage(folder: Path, cluster_id: str, node_id: int, features: Mapping[str, int]) -> None:
    """Format a node's storage. meta.properties comes last: without it, the folder counts as not formatted."""
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / BOOTSTRAP, bootstrap_checkpoint(features, int(time.time() * 1000)))
    meta = f"version=1\ncluster.id={cluster_id}\nnode.id={node_id}\ndirectory.id={new_id()}\n"
    _write(folder / META, meta.encode())


def check_storage(folder: Path, cluster_id: str, node_id: int) -> None:
    """Refuse storage of another cluster or another node, before a JVM does so more slowly."""
    try:
        meta = parse_properties((folder / META).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise DataDirectoryError(f"{folder / META} cannot be read: {error}", path=folder) from error
    for key, expected in (("cluster.id", cluster_id), ("node.id", str(node_id))):
        if meta.get(key) != expected:
            raise DataDirectoryError(
                f"The data in {folder} belongs to another {'cluster' if key == 'cluster.id' else 'node'}",
                expected=f"{key} {expected}",
                found=meta.get(key, "none"),
                hint="Put the right data back, or delete all of it with `riverrun down --delete-data`",
                path=folder,
            )


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(content)
    temporary.replace(path)


# --- the checkpoint: Kafka's record batches, as its snapshot reader wants them -------------------------------------

# Control record types of a snapshot, and the type and version of a FeatureLevelRecord.
_SNAPSHOT_HEADER, _SNAPSHOT_FOOTER = 3, 4
_FEATURE_LEVEL, _FEATURE_LEVEL_VERSION = 12, 0
_CONTROL_BATCH = 0x20


def bootstrap_checkpoint(features: Mapping[str, int], now_ms: int) -> bytes:
    """The first snapshot of a cluster: header, one record per feature, footer."""
    header = _control_record(_SNAPSHOT_HEADER, struct.pack(">hqb", 0, 0, 0))
    records = [_feature_record(name, level) for name, level in features.items()]
    footer = _control_record(_SNAPSHOT_FOOTER, struct.pack(">hb", 0, 0))
    return b"".join((
        _batch(0, [header], now_ms, _CONTROL_BATCH),
        _batch(1, records, now_ms, 0),
        _batch(1 + len(records), [footer], now_ms, _CONTROL_BATCH),
    ))  # fmt: skip


def _control_record(kind: int, value: bytes) -> tuple[bytes | None, bytes]:
    return struct.pack(">hh", 0, kind), value


def _feature_record(name: str, level: int) -> tuple[bytes | None, bytes]:
    # Frame version, record type, record version; then the record: compact string, int16, no tagged fields.
    frame = bytes((1, _FEATURE_LEVEL, _FEATURE_LEVEL_VERSION))
    encoded = name.encode()
    return None, frame + _unsigned(len(encoded) + 1) + encoded + struct.pack(">h", level) + b"\x00"


def _batch(offset: int, records: Sequence[tuple[bytes | None, bytes]], now_ms: int, attributes: int) -> bytes:
    """A record batch of format 2, uncompressed, without a producer id."""
    body = struct.pack(
        ">hiqqqhii", attributes, len(records) - 1, now_ms, now_ms, -1, -1, -1, len(records)
    ) + b"".join(_record(delta, key, value) for delta, (key, value) in enumerate(records))  # fmt: skip
    rest = struct.pack(">ibI", 0, 2, crc32c(body)) + body
    return struct.pack(">qi", offset, len(rest)) + rest


def _record(delta: int, key: bytes | None, value: bytes) -> bytes:
    key_part = _signed(-1) if key is None else _signed(len(key)) + key
    content = b"\x00" + _signed(0) + _signed(delta) + key_part + _signed(len(value)) + value + _signed(0)
    return _signed(len(content)) + content


def _signed(number: int) -> bytes:
    return _unsigned((number << 1) ^ (number >> 63))


def _unsigned(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def crc32c(content: bytes) -> int:
    """CRC-32C, which Python's own modules lack. Bit by bit: the content is a few hundred bytes."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


# --- Kafka's own tool, for versions that the table above does not have ----------------------------------------------


def format_with_tool(
    runtime: JavaRuntime,
    home: ClusterHome,
    name: str,
    *,
    cluster_id: str,
    properties: Mapping[str, str],
    timeout: float = 60.0,
) -> None:
    """Format a node's storage with Kafka's StorageTool."""
    configuration = home.run / f"{name}.format.properties"
    write_private(configuration, format_properties(properties))
    command = runtime.command(
        "kafka.tools.StorageTool", ["format", "-t", cluster_id, "-c", f"../../run/{configuration.name}"]
    )
    try:
        done = subprocess.run(
            command,
            cwd=home.data / "kafka",
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ServerNotReadyError(
            f"Formatting the storage of {name} took longer than {timeout:.0f} s", server=name
        ) from error
    finally:
        configuration.unlink(missing_ok=True)
    if done.returncode:
        raise DataDirectoryError(
            f"Kafka's StorageTool did not format the storage of {name}",
            found=(done.stderr or done.stdout).strip()[-500:],
            path=home.data / "kafka" / name,
        )
