"""Kafka consumer interceptors for Druid 33, whose Kafka input format has a record's time and headers, but not its
partition and offset.

Ours, which Druid loads beside its Kafka extension, add a header with one number, as text: `OffsetHeader` partition and
offset, which order the versions of a key; `IdentityHeader` what copies of one record share. As Java, the second of them:

    package riverrun;

    public class IdentityHeader implements ConsumerInterceptor {
        public ConsumerRecords onConsume(ConsumerRecords records) {
            for (Iterator iterator = records.iterator(); iterator.hasNext(); ) {
                ConsumerRecord record = (ConsumerRecord) iterator.next();
                Header header = record.headers().lastHeader("riverrun-id");
                byte[] bytes = header == null ? null : header.value();
                long number;
                if (bytes == null || bytes.length == 0) {
                    // It has no copies: its offset and partition, as a negative number.
                    number = ~((record.offset() << 16) + record.partition());
                } else {
                    number = 0;
                    for (byte b : bytes) number = number * 31 + b;
                    if (number < 0) number = ~number;
                }
                record.headers().remove("id");
                record.headers().add("id", Long.toString(number).getBytes());
            }
            return records;
        }
        public void onCommit(Map offsets) {}
        public void close() {}
        public void configure(Map settings) {}
    }

and of `OffsetHeader`, whose header is "version", only the number differs: (record.offset() << 16) + record.partition().

A user's machine has no Java compiler, and some 80 instructions need none: they are assembled here. (Druid's own
expressions can compute the identity from a header too, and took a seventh of the indexer's time:
docs/decisions/0011-druid-store.md.) Newer Druids have a record's offset by themselves (`offsetColumnName`).
"""

import os
import struct
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from riverrun.errors import CacheError

OFFSET_CLASS, IDENTITY_CLASS = "riverrun/OffsetHeader", "riverrun/IdentityHeader"
OFFSET_HEADER, IDENTITY_HEADER = "version", "id"
WRITERS_HEADER = "riverrun-id"
SHIFT = 16
JAR = "riverrun-record-headers-1.jar"

_CONSUMER = "org/apache/kafka/clients/consumer"
_RECORD = f"{_CONSUMER}/ConsumerRecord"
_HEADERS, _HEADER = "org/apache/kafka/common/header/Headers", "org/apache/kafka/common/header/Header"
# Java 5's format: the last that needs no stack map frames.
_VERSION = (0, 49)
_PUBLIC, _SUPER = 0x0001, 0x0020
_NOW = (1980, 1, 1, 0, 0, 0)
# The local variables of `onConsume` (a long takes two slots), and the maximum stack depth.
_RECORDS, _EACH, _ONE, _NUMBER, _BYTES, _AT, _SAID = 1, 2, 3, 4, 6, 7, 8
_PLACES, _STACK = 9, 6

_OPCODES = {
    "iconst_m1": 0x02, "iconst_0": 0x03, "lconst_0": 0x09, "bipush": 0x10, "ldc_w": 0x13, "iload": 0x15, "lload": 0x16,
    "aload": 0x19, "baload": 0x33, "istore": 0x36, "lstore": 0x37, "astore": 0x3A, "pop": 0x57, "ladd": 0x61, "lmul": 0x69,
    "lshl": 0x79, "lxor": 0x83, "iinc": 0x84, "i2l": 0x85, "lcmp": 0x94, "ifeq": 0x99, "ifge": 0x9C, "if_icmpge": 0xA2,
    "goto": 0xA7, "areturn": 0xB0, "return": 0xB1, "invokevirtual": 0xB6, "invokespecial": 0xB7, "invokestatic": 0xB8,
    "invokeinterface": 0xB9, "arraylength": 0xBE, "checkcast": 0xC0, "ifnull": 0xC6,
}  # fmt: skip


class _Constants:
    """The constant pool of a class: each constant once, by its index."""

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
        index = self._add(struct.pack(">BHH", 12, self.utf8(name), self.utf8(kind)))
        return self._add(struct.pack(">BHH", 11 if interface else 10, self.class_(owner), index))

    def __bytes__(self) -> bytes:
        return struct.pack(">H", len(self._numbers) + 1) + b"".join(self._numbers)


class _Code:
    """Instructions by their names; jumps go to labels."""

    def __init__(self, pool: _Constants) -> None:
        self._pool = pool
        self._made = bytearray()
        self._places: dict[str, int] = {}
        self._jumps: list[tuple[int, str]] = []

    def do(self, name: str, *bytes_: int) -> "_Code":
        self._made += bytes([_OPCODES[name], *bytes_])
        return self

    def text(self, text: str) -> "_Code":
        return self.do("ldc_w", *_two(self._pool.string(text)))

    def cast(self, name: str) -> "_Code":
        return self.do("checkcast", *_two(self._pool.class_(name)))

    def call(self, owner: str, name: str, kind: str, how: str = "invokevirtual") -> "_Code":
        return self.do(how, *_two(self._pool.method(owner, name, kind)))

    def ask(self, owner: str, name: str, kind: str, words: int) -> "_Code":
        """Invoke an interface method; `words` is how many stack slots its arguments take."""
        number = self._pool.method(owner, name, kind, interface=True)
        return self.do("invokeinterface", *_two(number), words, 0)

    def jump(self, name: str, label: str) -> "_Code":
        self._jumps.append((len(self._made), label))
        return self.do(name, 0, 0)

    def here(self, label: str) -> "_Code":
        self._places[label] = len(self._made)
        return self

    def __bytes__(self) -> bytes:
        made = bytearray(self._made)
        for at, label in self._jumps:
            struct.pack_into(">h", made, at + 1, self._places[label] - at)
        return bytes(made)


def offset_class() -> bytes:
    return _class(OFFSET_CLASS, OFFSET_HEADER, _place_of)


def identity_class() -> bytes:
    return _class(IDENTITY_CLASS, IDENTITY_HEADER, _identity_of)


def record_headers_jar(folder: Path) -> Path:
    """The jar with both classes in `folder`; created when it is missing."""
    path = folder / JAR
    if path.is_file():
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        number, name = tempfile.mkstemp(dir=folder, prefix=".new-")
        with os.fdopen(number, "wb") as file, zipfile.ZipFile(file, "w") as jar:
            # With one fixed time the jar is identical each time it is built.
            jar.writestr(zipfile.ZipInfo("META-INF/MANIFEST.MF", _NOW), "Manifest-Version: 1.0\r\n\r\n")
            jar.writestr(zipfile.ZipInfo(f"{OFFSET_CLASS}.class", _NOW), offset_class())
            jar.writestr(zipfile.ZipInfo(f"{IDENTITY_CLASS}.class", _NOW), identity_class())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except OSError as error:
        raise CacheError(
            f"{path} could not be written: {error.strerror or error}",
            hint="Correct the rights of the cache, or name another folder with artifacts.cache_dir",
            path=path,
        ) from error
    return path


def _class(name: str, header: str, number_of: Callable[[_Code], None]) -> bytes:
    """An interceptor that adds a header with the number that `number_of` leaves in its variable."""
    pool = _Constants()
    this, above = pool.class_(name), pool.class_("java/lang/Object")
    contract = pool.class_(f"{_CONSUMER}/ConsumerInterceptor")
    records = f"L{_CONSUMER}/ConsumerRecords;"
    begin = _Code(pool).do("aload", 0).call("java/lang/Object", "<init>", "()V", "invokespecial").do("return")
    nothing = _Code(pool).do("return")
    methods = [
        _method(pool, "<init>", "()V", begin, 1),
        _method(pool, "onConsume", f"({records}){records}", _on_consume(pool, header, number_of), _PLACES),
        _method(pool, "onCommit", "(Ljava/util/Map;)V", nothing, 2),
        _method(pool, "close", "()V", nothing, 1),
        _method(pool, "configure", "(Ljava/util/Map;)V", nothing, 2),
    ]
    return b"".join([
        struct.pack(">IHH", 0xCAFEBABE, *_VERSION),
        bytes(pool),
        struct.pack(">HHHHH", _PUBLIC | _SUPER, this, above, 1, contract),
        struct.pack(">HH", 0, len(methods)),
        *methods,
        struct.pack(">H", 0),
    ])  # fmt: skip


def _on_consume(pool: _Constants, header: str, number_of: Callable[[_Code], None]) -> _Code:
    code = _Code(pool)
    code.do("aload", _RECORDS).call(f"{_CONSUMER}/ConsumerRecords", "iterator", "()Ljava/util/Iterator;")
    code.do("astore", _EACH)
    code.here("next").do("aload", _EACH).ask("java/util/Iterator", "hasNext", "()Z", 1).jump("ifeq", "done")
    code.do("aload", _EACH).ask("java/util/Iterator", "next", "()Ljava/lang/Object;", 1).cast(_RECORD).do(
        "astore", _ONE
    )
    number_of(code)
    _headers(code).text(header).ask(_HEADERS, "remove", f"(Ljava/lang/String;)L{_HEADERS};", 2).do("pop")
    _headers(code).text(header).do("lload", _NUMBER)
    code.call("java/lang/Long", "toString", "(J)Ljava/lang/String;", "invokestatic")
    code.call("java/lang/String", "getBytes", "()[B")
    code.ask(_HEADERS, "add", f"(Ljava/lang/String;[B)L{_HEADERS};", 3).do("pop")
    return code.jump("goto", "next").here("done").do("aload", _RECORDS).do("areturn")


def _headers(code: _Code) -> _Code:
    return code.do("aload", _ONE).call(_RECORD, "headers", f"()L{_HEADERS};")


def _place_of(code: _Code) -> None:
    code.do("aload", _ONE).call(_RECORD, "offset", "()J").do("bipush", SHIFT).do("lshl")
    code.do("aload", _ONE).call(_RECORD, "partition", "()I").do("i2l").do("ladd").do("lstore", _NUMBER)


def _identity_of(code: _Code) -> None:
    _headers(code).text(WRITERS_HEADER).ask(_HEADERS, "lastHeader", f"(Ljava/lang/String;)L{_HEADER};", 2)
    code.do("astore", _SAID).do("aload", _SAID).jump("ifnull", "nobody")
    code.do("aload", _SAID).ask(_HEADER, "value", "()[B", 1).do("astore", _BYTES)
    code.do("aload", _BYTES).jump("ifnull", "nobody")
    code.do("aload", _BYTES).do("arraylength").jump("ifeq", "nobody")
    code.do("lconst_0").do("lstore", _NUMBER).do("iconst_0").do("istore", _AT)
    code.here("byte").do("iload", _AT).do("aload", _BYTES).do("arraylength").jump("if_icmpge", "hashed")
    code.do("lload", _NUMBER).do("bipush", 31).do("i2l").do("lmul")
    code.do("aload", _BYTES).do("iload", _AT).do("baload").do("i2l").do("ladd").do("lstore", _NUMBER)
    code.do("iinc", _AT, 1).jump("goto", "byte")
    code.here("hashed").do("lload", _NUMBER).do("lconst_0").do("lcmp").jump("ifge", "made").jump("goto", "turned")
    code.here("nobody")
    _place_of(code)
    code.here("turned").do("lload", _NUMBER).do("iconst_m1").do("i2l").do("lxor").do("lstore", _NUMBER).here("made")


def _method(pool: _Constants, name: str, kind: str, code: _Code, places: int) -> bytes:
    instructions = bytes(code)
    body = struct.pack(">HHI", _STACK, places, len(instructions)) + instructions + struct.pack(">HH", 0, 0)
    attribute = struct.pack(">HI", pool.utf8("Code"), len(body)) + body
    return struct.pack(">HHHH", _PUBLIC, pool.utf8(name), pool.utf8(kind), 1) + attribute


def _two(number: int) -> bytes:
    return struct.pack(">H", number)
