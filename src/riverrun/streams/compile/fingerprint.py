"""What a stream's code does, saved beside its checkpoint, so that the next start can tell what has changed.

A `StreamFingerprint` has everything that is needed to judge a change (change.py). `VersionHistory` is a stream's file
`code_versions.json`: one version for each fingerprint that it has run with; its checkpoint was made by the last one.
"""

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from riverrun.errors import CheckpointError
from riverrun.model.pipeline import FileSource
from riverrun.streams.checkpoint import Offsets, parse_offsets
from riverrun.streams.compile.code_hash import code_hash
from riverrun.streams.compile.plan_text import StatefulOperator, read_plan_text
from riverrun.streams.compile.sources import event_time_of

if TYPE_CHECKING:
    from riverrun.streams.compile.compiler import Compilation

HISTORY_FILE = "code_versions.json"
# Incremented when the same code gets another fingerprint: those of an earlier format are compared by their code alone.
FORMAT = 1
_SETTINGS = ("spark.sql.ansi.enabled", "spark.sql.caseSensitive", "spark.sql.session.timeZone")


@dataclass(frozen=True)
class StreamFingerprint:
    """One version of a stream's code, as fields that can be compared. Everything in it is plain JSON."""

    name: str = ""
    # The topic its rows go to, and their schema: Spark's JSON of a struct.
    target: str = ""
    columns: Mapping[str, Any] = field(default_factory=dict)
    key: tuple[str, ...] = ()
    time: str = ""
    # Output mode: append or update.
    mode: str = ""
    # The topics it reads, in the order in which Spark numbers them, and the types of their records.
    sources: tuple[str, ...] = ()
    types: Mapping[str, Any] = field(default_factory=dict)
    tables: Mapping[str, str] = field(default_factory=dict)
    # Event-time columns, each with how late records may be in milliseconds: "at 120000".
    watermarks: tuple[str, ...] = ()
    operators: tuple[StatefulOperator, ...] = ()
    # Hashes of the plan: all that the state depends on (empty without state), and the rest.
    state_hash: str = ""
    output_hash: str = ""
    state_lines: tuple[str, ...] = ()
    output_lines: tuple[str, ...] = ()
    state_functions: Mapping[str, str] = field(default_factory=dict)
    output_functions: Mapping[str, str] = field(default_factory=dict)
    # Settings of Spark's that change the result of expressions.
    settings: Mapping[str, str] = field(default_factory=dict)
    # A hash of the stream's own code, to compare when the plans come from two versions of Spark.
    code: str = ""
    made_with: str = ""

    @property
    def stateful(self) -> bool:
        return bool(self.operators)

    @property
    def digest(self) -> str:
        """Equal for streams that do the same; names and output topics do not count."""
        what = [
            self.columns, self.key, self.time, self.mode, self.sources, self.types, self.tables, self.watermarks,
            [asdict(operator) for operator in self.operators], self.state_hash, self.output_hash,
            self.settings, self.made_with,
        ]  # fmt: skip
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:32]

    @classmethod
    def read(cls, file: Path) -> "StreamFingerprint | None":
        """The fingerprint that the stream's checkpoint was made by; None if there is none."""
        history = VersionHistory.read(file)
        return history.versions[-1].fingerprint if history.versions else None

    def write(self, file: Path, *, since_batch: int = 0, fresh: bool = True) -> None:
        """Make this the last version. `fresh`: its state is made by this code alone, from `since_batch` on."""
        VersionHistory.read(file).add_version(self, since_batch=since_batch, fresh=fresh).write(file)


@dataclass(frozen=True)
class CodeVersion:
    """A fingerprint that a stream has run with, from the batch `since_batch` on, and the offsets it began at."""

    number: int
    since_batch: int
    started_at: str
    riverrun: str
    spark: str
    digest: str
    fingerprint: StreamFingerprint
    # Whether its state began empty with this version.
    fresh: bool = False
    # The last batch that was committed when it began.
    after_batch: int = -1
    begin: Offsets = field(default_factory=dict)


@dataclass(frozen=True)
class VersionHistory:
    """The versions of a stream, oldest first."""

    versions: tuple[CodeVersion, ...] = ()

    @classmethod
    def read(cls, file: Path) -> "VersionHistory":
        """Read a file; CheckpointError if it is invalid, because a guess could combine state with the wrong code."""
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            return cls(tuple(_parse_version(version_content) for version_content in content["versions"]))
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"{file} cannot be read: it says by which code the checkpoint of {file.parent.name} was made",
                found=f"{type(error).__name__}: {error}",
                hint=f"Put it back, or begin again with `--fresh {file.parent.name}`",
                stream=file.parent.name,
            ) from error

    def write(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_suffix(".tmp")
        temporary.write_text(
            json.dumps({"versions": [asdict(code_version) for code_version in self.versions]}), encoding="utf-8"
        )
        temporary.replace(file)

    @property
    def last(self) -> CodeVersion | None:
        return self.versions[-1] if self.versions else None

    @property
    def state_versions(self) -> tuple[CodeVersion, ...]:
        """The versions that have contributed to the stream's current state: since the last fresh one."""
        fresh_indexes = [index for index, code_version in enumerate(self.versions) if code_version.fresh]
        return self.versions[fresh_indexes[-1] if fresh_indexes else 0 :]

    def add_version(
        self,
        fingerprint: StreamFingerprint,
        *,
        since_batch: int = 0,
        fresh: bool = False,
        after_batch: int = -1,
        begin: Offsets | None = None,
    ) -> "VersionHistory":
        """The history with one version more."""
        number = max((code_version.number for code_version in self.versions), default=0) + 1
        new = CodeVersion(
            number,
            since_batch,
            datetime.now(UTC).isoformat(timespec="seconds"),
            _installed("riverrun"),
            _installed("pyspark"),
            fingerprint.digest,
            fingerprint,
            fresh,
            after_batch,
            begin or {},
        )
        return VersionHistory((*self.versions, new))

    def without_unused_version(self, committed_batch: int, planned_batch: int) -> "VersionHistory":
        """The history without a last version that ran no batch, given the last committed and the last planned batch."""
        last = self.last
        if last is None or len(self.versions) == 1:
            return self
        if committed_batch > last.after_batch or planned_batch >= last.since_batch or planned_batch > committed_batch:
            return self
        return VersionHistory(self.versions[:-1])

    def find_same(self, fingerprint: StreamFingerprint) -> CodeVersion | None:
        """The newest version that does the same."""
        digest = fingerprint.digest
        return next((code_version for code_version in reversed(self.versions) if code_version.digest == digest), None)


def compute_fingerprint(compilation: "Compilation", name: str) -> StreamFingerprint:
    """The fingerprint of a compiled stream. Nothing is started, and no broker is needed."""
    compiled = compilation.streams[name]
    stream = compiled.stream
    code = _hash_code(stream.function, stream.sql)
    text = read_plan_text(compilation.spark, compiled.query.plan, code)
    app = compilation.graph.app
    tables = {
        input_: _table_text(app.tables[input_].source) for input_ in _inputs(compilation, name) if input_ in app.tables
    }
    return StreamFingerprint(
        name=name,
        target=stream.output_topic,
        columns=_without_metadata(compiled.columns.jsonValue()),
        key=compiled.key,
        time=compiled.time,
        mode=compiled.mode,
        sources=tuple(text.sources),
        types={topic: _record_type(compilation, topic) for topic in dict.fromkeys(text.sources)},
        tables=tables,
        # Without state the watermark has no effect.
        watermarks=tuple(text.watermarks) if text.operators else (),
        operators=tuple(text.operators),
        state_hash=text.state_hash,
        output_hash=text.output_hash,
        state_lines=tuple(text.state_lines),
        output_lines=tuple(text.output_lines),
        state_functions=text.state_functions,
        output_functions=text.output_functions,
        settings={setting: str(compilation.spark.conf.get(setting)) for setting in _SETTINGS},
        code=code,
        made_with=f"{FORMAT} spark {compilation.spark.version} python {platform.python_version_tuple()[0]}."
        f"{platform.python_version_tuple()[1]}",
    )


def _inputs(compilation: "Compilation", name: str) -> list[str]:
    """The names of all inputs of a stream's query, including those of the streams fused into it."""
    names: dict[str, None] = {}
    for input_name in compilation.streams[name].inputs:
        names[input_name] = None
        if input_name in compilation.streams[name].fused:
            names |= dict.fromkeys(_inputs(compilation, input_name))
    return list(names)


def _record_type(compilation: "Compilation", topic: str) -> dict[str, Any]:
    """What makes a record valid: the fields of a topic's events and their bounds, or the columns of its stream."""
    declared = compilation.graph.app.topics.get(topic)
    if declared is not None and declared.event is not None:
        schema = msgspec.json.schema(declared.event)
        event_schema = _without_metadata(_without(schema, "description", "title"))
        return {"event": event_schema, "time": event_time_of(declared)[0]}
    writer = next((stream for stream in compilation.streams.values() if stream.stream.output_topic == topic), None)
    return {"columns": _without_metadata(writer.columns.jsonValue())} if writer is not None else {}


def _without(value: Any, *names: str) -> Any:
    if isinstance(value, dict):
        return {
            name: _without(item, *names) for name, item in value.items() if name not in names or isinstance(item, dict)
        }
    return [_without(item, *names) for item in value] if isinstance(value, list) else value


def _without_metadata(value: Any) -> Any:
    """The JSON of a Spark type without the metadata of its columns."""
    if isinstance(value, dict):
        return {name: {} if name == "metadata" else _without_metadata(item) for name, item in value.items()}
    return [_without_metadata(item) for item in value] if isinstance(value, list) else value


def _table_text(source: Any) -> str:
    if isinstance(source, FileSource):
        return f"{source.format} {source.path} {source.columns} {dict(sorted(source.options.items()))}"
    return f"topic {source.name}"


def _hash_code(function: Any, sql: str) -> str:
    return code_hash(function) if function is not None else code_hash(" ".join(sql.split()))


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _parse_version(content: Mapping[str, Any]) -> CodeVersion:
    known = {field_.name for field_ in fields(CodeVersion)}
    parsed = CodeVersion(**{name: value for name, value in content.items() if name in known})
    return replace(
        parsed, fingerprint=_parse_fingerprint(content["fingerprint"]), begin=parse_offsets(content.get("begin") or {})
    )


def _parse_fingerprint(content: Mapping[str, Any]) -> StreamFingerprint:
    operators = tuple(StatefulOperator(**_tuples(operator, StatefulOperator)) for operator in content["operators"])
    return StreamFingerprint(**{**_tuples(content, StreamFingerprint), "operators": operators})


def _tuples(content: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """The fields of a class in some JSON, with lists as tuples."""
    known = {field_.name for field_ in fields(kind)}
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in content.items() if name in known
    }
