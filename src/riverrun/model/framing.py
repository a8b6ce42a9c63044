"""How the value of a topic with a schema registry begins: Confluent's header, a byte 0 and the schema's id in four bytes.

Any client that knows such registries reads and writes the same (docs/decisions/0019-schema-registry.md).
"""

from typing import Literal

# The formats of a topic's values. "json" is JSON as it is, without a registry.
Format = Literal["json", "json-schema", "avro"]
FORMATS: tuple[Format, ...] = ("json", "json-schema", "avro")

MAGIC = 0
HEADER_BYTES = 5


def encode_frame(schema_id: int, payload: bytes) -> bytes:
    return frame_header(schema_id) + payload


def frame_header(schema_id: int) -> bytes:
    return bytes([MAGIC]) + schema_id.to_bytes(4, "big")


def is_framed(value: bytes | None) -> bool:
    """Whether these bytes may be such a value. JSON never begins with a byte 0."""
    return value is not None and len(value) >= HEADER_BYTES and value[0] == MAGIC


def decode_frame(value: bytes) -> tuple[int, bytes]:
    """The schema's id and the payload; ValueError, with the reason in words, when there is no header."""
    if not is_framed(value):
        begins = f"begins with {value[:HEADER_BYTES]!r}" if value else "is empty"
        raise ValueError(f"it has no header of a schema registry (a byte 0, then a schema's id): it {begins}")
    return int.from_bytes(value[1:HEADER_BYTES], "big"), value[HEADER_BYTES:]


def subject_of(topic: str) -> str:
    """The registry's subject for the values of a topic: Confluent's TopicNameStrategy."""
    return f"{topic}-value"
