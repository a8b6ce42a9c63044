"""A record's offset for Druid 33, whose Kafka input format has a record's time and headers, and not its place in the topic.

Kafka's consumer lets a class look at what it has read. Ours, which Druid loads beside its Kafka extension, adds a header
with the record's place as one number. This is it, as Java:

    package riverrun;

    public class OffsetHeader implements ConsumerInterceptor {
        public ConsumerRecords onConsume(ConsumerRecords records) {
            for (Iterator each = records.iterator(); each.hasNext(); ) {
                ConsumerRecord record = (ConsumerRecord) each.next();
                record.headers().remove("version");
                record.headers().add("version", Long.toString((record.offset() << 16) + record.partition()).getBytes());
            }
            return records;
        }
        public void onCommit(Map offsets) {}
        public void close() {}
        public void configure(Map settings) {}
    }

A user's machine has no Java compiler, and 40 instructions need none: they are put together here. Newer Druids have a
record's offset by themselves (`offsetColumnName`); with one of these this file goes.
"""

import os
import struct
import tempfile
import zipfile
from pathlib import Path

from riverrun.errors import CacheError

CLASS = "riverrun/OffsetHeader"
HEADER = "version"
SHIFT = 16
JAR = "riverrun-offset-header-1.jar"

_CONSUMER = "org/apache/kafka/clients/consumer"
_HEADERS = "org/apache/kafka/common/header/Headers"
# Java 5's format: the last that needs no map of the stack's types.
_VERSION = (0, 49)
_PUBLIC, _SUPER = 0x0001, 0x0020
_NOW = (1980, 1, 1, 0, 0, 0)


class _Constants:
    """The constant pool of a class: each constant once, by its number."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}

    def _add(self, constant: bytes) -> int:
        return self._numbers.setdefault(constant, len(self._numbers) + 1)

    def utf8(self, text: str) -> int:
        raw = text.encode()
        return self._add(struct.pack(">BH", 1, len(raw)) + raw)

    def class_(self, name: str) -> int:
        return self._add(struct.pack(">BH", 7, self.utf8(name)))

    def string(self, text: str) -> int:
        return self._add(struct.pack(">BH", 8, self.utf8(text)))

    def method(self, owner: str, name: str, kind: str, *, interface: bool = False) -> int:
        place = self._add(struct.pack(">BHH", 12, self.utf8(name), self.utf8(kind)))
        return self._add(struct.pack(">BHH", 11 if interface else 10, self.class_(owner), place))

    def __bytes__(self) -> bytes:
        return struct.pack(">H", len(self._numbers) + 1) + b"".join(self._numbers)


def class_file() -> bytes:
    """The compiled class."""
    pool = _Constants()
    this, above = pool.class_(CLASS), pool.class_("java/lang/Object")
    contract = pool.class_(f"{_CONSUMER}/ConsumerInterceptor")
    records = f"L{_CONSUMER}/ConsumerRecords;"
    nothing = bytes([0xB1])  # return
    begin = _code(b"\x2a\xb7" + _two(pool.method("java/lang/Object", "<init>", "()V")) + nothing, 1, 1)
    methods = [
        _method(pool, "<init>", "()V", begin),
        _method(pool, "onConsume", f"({records}){records}", _code(_on_consume(pool), 6, 4)),
        _method(pool, "onCommit", "(Ljava/util/Map;)V", _code(nothing, 0, 2)),
        _method(pool, "close", "()V", _code(nothing, 0, 1)),
        _method(pool, "configure", "(Ljava/util/Map;)V", _code(nothing, 0, 2)),
    ]
    return b"".join([
        struct.pack(">IHH", 0xCAFEBABE, *_VERSION),
        bytes(pool),
        struct.pack(">HHHHH", _PUBLIC | _SUPER, this, above, 1, contract),
        struct.pack(">HH", 0, len(methods)),
        *methods,
        struct.pack(">H", 0),
    ])  # fmt: skip


def offset_header_jar(folder: Path) -> Path:
    """The jar with the class in `folder`; made when it is not there."""
    path = folder / JAR
    if path.is_file():
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        number, name = tempfile.mkstemp(dir=folder, prefix=".new-")
        with os.fdopen(number, "wb") as file, zipfile.ZipFile(file, "w") as jar:
            # With one fixed time the jar is the same each time it is made.
            jar.writestr(zipfile.ZipInfo("META-INF/MANIFEST.MF", _NOW), "Manifest-Version: 1.0\r\n\r\n")
            jar.writestr(zipfile.ZipInfo(f"{CLASS}.class", _NOW), class_file())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except OSError as error:
        raise CacheError(
            f"{path} could not be written: {error.strerror or error}",
            hint="Correct the rights of the cache, or name another folder with artifacts.cache_dir",
            path=path,
        ) from error
    return path


def _on_consume(pool: _Constants) -> bytes:
    """Locals: 0 this, 1 the records, 2 their iterator, 3 the record."""
    record = f"{_CONSUMER}/ConsumerRecord"
    headers = pool.method(record, "headers", f"()L{_HEADERS};")
    take_headers = b"\x2d\xb6" + _two(headers)  # aload_3, invokevirtual
    before = b"".join([
        b"\x2b\xb6", _two(pool.method(f"{_CONSUMER}/ConsumerRecords", "iterator", "()Ljava/util/Iterator;")),
        b"\x4d",  # astore_2
    ])  # fmt: skip
    ask = b"\x2c\xb9" + _two(pool.method("java/util/Iterator", "hasNext", "()Z", interface=True)) + b"\x01\x00"
    body = b"".join([
        b"\x2c\xb9", _two(pool.method("java/util/Iterator", "next", "()Ljava/lang/Object;", interface=True)), b"\x01\x00",
        b"\xc0", _two(pool.class_(record)), b"\x4e",  # checkcast, astore_3
        take_headers, b"\x13", _two(pool.string(HEADER)),  # ldc_w
        b"\xb9", _two(pool.method(_HEADERS, "remove", f"(Ljava/lang/String;)L{_HEADERS};", interface=True)), b"\x02\x00",
        b"\x57",  # pop
        take_headers, b"\x13", _two(pool.string(HEADER)),
        b"\x2d\xb6", _two(pool.method(record, "offset", "()J")), bytes([0x10, SHIFT]), b"\x79",  # bipush, lshl
        b"\x2d\xb6", _two(pool.method(record, "partition", "()I")), b"\x85\x61",  # i2l, ladd
        b"\xb8", _two(pool.method("java/lang/Long", "toString", "(J)Ljava/lang/String;")),
        b"\xb6", _two(pool.method("java/lang/String", "getBytes", "()[B")),
        b"\xb9", _two(pool.method(_HEADERS, "add", f"(Ljava/lang/String;[B)L{_HEADERS};", interface=True)), b"\x03\x00",
        b"\x57",
    ])  # fmt: skip
    jump, back = 3, len(ask) + 3 + len(body)  # ifeq past the loop; goto its beginning
    leave = b"\x99" + _two(jump + len(body) + 3)
    again = b"\xa7" + struct.pack(">h", -back)
    return before + ask + leave + body + again + b"\x2b\xb0"  # aload_1, areturn


def _method(pool: _Constants, name: str, kind: str, code: bytes) -> bytes:
    attribute = struct.pack(">HI", pool.utf8("Code"), len(code)) + code
    return struct.pack(">HHHH", _PUBLIC, pool.utf8(name), pool.utf8(kind), 1) + attribute


def _code(instructions: bytes, stack: int, places: int) -> bytes:
    return struct.pack(">HHI", stack, places, len(instructions)) + instructions + struct.pack(">HH", 0, 0)


def _two(number: int) -> bytes:
    return struct.pack(">H", number)
