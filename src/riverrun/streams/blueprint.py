"""What a stream's code does, written down beside its checkpoint: so that the next start can tell what has changed.

A `Blueprint` is all of it that a change can be judged by (change.py). `History` is a stream's file `blueprint.json`: one
version for each blueprint that it has run with; the last one is what its checkpoint was made by.
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
from riverrun.streams.checkpoint import Offsets, offsets_of
from riverrun.streams.code_hash import code_hash
from riverrun.streams.plan_text import Operator, plan_text
from riverrun.streams.sources import time_of

if TYPE_CHECKING:
    from riverrun.streams.compiler import Compilation

FILE = "blueprint.json"
# Raised when the same code gives another blueprint: those of an earlier format are compared by their code alone.
FORMAT = 1
_SETTINGS = ("spark.sql.ansi.enabled", "spark.sql.caseSensitive", "spark.sql.session.timeZone")


@dataclass(frozen=True)
class Blueprint:
    """One version of a stream's code, in parts that can be compared. Everything in it is plain JSON."""

    name: str = ""
    # The topic its rows go to, and what they look like: Spark's words for a struct.
    target: str = ""
    columns: Mapping[str, Any] = field(default_factory=dict)
    key: tuple[str, ...] = ()
    time: str = ""
    # Output mode: append or update.
    mode: str = ""
    # The topics it reads, in the order in which Spark numbers them, and what their records look like.
    sources: tuple[str, ...] = ()
    types: Mapping[str, Any] = field(default_factory=dict)
    tables: Mapping[str, str] = field(default_factory=dict)
    # Event-time columns, each with how late records may be in milliseconds: "at 120000".
    watermarks: tuple[str, ...] = ()
    operators: tuple[Operator, ...] = ()
    # Hashes of the plan: all that the state depends on (empty without state), and the rest.
    region: str = ""
    rest: str = ""
    below: tuple[str, ...] = ()
    above: tuple[str, ...] = ()
    functions_below: Mapping[str, str] = field(default_factory=dict)
    functions: Mapping[str, str] = field(default_factory=dict)
    # Spark's settings that decide what an expression gives.
    settings: Mapping[str, str] = field(default_factory=dict)
    # The stream's own code: what is left to compare where plans of two versions of Spark cannot be.
    code: str = ""
    made_with: str = ""

    @property
    def stateful(self) -> bool:
        return bool(self.operators)

    @property
    def fingerprint(self) -> str:
        """Equal for streams that do the same; their names and where their rows go are no part of it."""
        what = [
            self.columns, self.key, self.time, self.mode, self.sources, self.types, self.tables, self.watermarks,
            [asdict(each) for each in self.operators], self.region, self.rest, self.settings, self.made_with,
        ]  # fmt: skip
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:32]

    @classmethod
    def read(cls, file: Path) -> "Blueprint | None":
        """The one that the stream's checkpoint was made by; None when there is none."""
        history = History.read(file)
        return history.versions[-1].blueprint if history.versions else None

    def write(self, file: Path, *, since_batch: int = 0, fresh: bool = True) -> None:
        """Make this the last version. `fresh`: its state is made by this code alone, from `since_batch` on."""
        History.read(file).begin(self, since_batch=since_batch, fresh=fresh).write(file)


@dataclass(frozen=True)
class Version:
    """A blueprint that a stream has run with, from the batch `since_batch` on, and where it began to read then."""

    number: int
    since_batch: int
    started_at: str
    riverrun: str
    spark: str
    fingerprint: str
    blueprint: Blueprint
    # Whether its state began with it; what earlier versions made is not in it.
    fresh: bool = False
    # The last batch that had ended when it began.
    after: int = -1
    begin: Offsets = field(default_factory=dict)


@dataclass(frozen=True)
class History:
    """The versions of a stream, oldest first."""

    versions: tuple[Version, ...] = ()

    @classmethod
    def read(cls, file: Path) -> "History":
        """CheckpointError for a file that makes no sense: to guess here could mix what must not be mixed."""
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            return cls(tuple(_version(each) for each in content["versions"]))
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
        temporary.write_text(json.dumps({"versions": [asdict(each) for each in self.versions]}), encoding="utf-8")
        temporary.replace(file)

    @property
    def last(self) -> Version | None:
        return self.versions[-1] if self.versions else None

    @property
    def of_state(self) -> tuple[Version, ...]:
        """The versions that have made what the stream's state and its batches are now: since the last fresh one."""
        begun = [number for number, each in enumerate(self.versions) if each.fresh]
        return self.versions[begun[-1] if begun else 0 :]

    def begin(
        self,
        blueprint: Blueprint,
        *,
        since_batch: int = 0,
        fresh: bool = False,
        after: int = -1,
        begin: Offsets | None = None,
    ) -> "History":
        """The history with one version more."""
        number = max((each.number for each in self.versions), default=0) + 1
        new = Version(
            number,
            since_batch,
            datetime.now(UTC).isoformat(timespec="seconds"),
            _installed("riverrun"),
            _installed("pyspark"),
            blueprint.fingerprint,
            blueprint,
            fresh,
            after,
            begin or {},
        )
        return History((*self.versions, new))

    def that_ran(self, ended: int, planned: int) -> "History":
        """Without a last version that ran no batch: `ended` is the last batch that ended, `planned` that was begun."""
        last = self.last
        if last is None or len(self.versions) == 1:
            return self
        if ended > last.after or planned >= last.since_batch or planned > ended:
            return self
        return History(self.versions[:-1])

    def same_as(self, blueprint: Blueprint) -> Version | None:
        """The newest version that does the same."""
        wanted = blueprint.fingerprint
        return next((each for each in reversed(self.versions) if each.fingerprint == wanted), None)


def blueprint_of(done: "Compilation", name: str) -> Blueprint:
    """The blueprint of a compiled stream. Nothing is started, and no broker asked."""
    compiled = done.streams[name]
    stream = compiled.stream
    code = _code(stream.function, stream.sql)
    text = plan_text(done.spark, compiled.query.plan, code)
    app = done.graph.app
    tables = {each: _table(app.tables[each].source) for each in _inputs(done, name) if each in app.tables}
    return Blueprint(
        name=name,
        target=stream.target,
        columns=_bare_type(compiled.columns.jsonValue()),
        key=compiled.key,
        time=compiled.time,
        mode=compiled.mode,
        sources=tuple(text.sources),
        types={topic: _record_type(done, topic) for topic in dict.fromkeys(text.sources)},
        tables=tables,
        # Without state nobody follows the event time.
        watermarks=tuple(text.watermarks) if text.operators else (),
        operators=tuple(text.operators),
        region=text.region,
        rest=text.rest,
        below=tuple(text.below),
        above=tuple(text.above),
        functions_below=text.functions_below,
        functions=text.functions,
        settings={each: str(done.spark.conf.get(each)) for each in _SETTINGS},
        code=code,
        made_with=f"{FORMAT} spark {done.spark.version} python {platform.python_version_tuple()[0]}."
        f"{platform.python_version_tuple()[1]}",
    )


def _inputs(done: "Compilation", name: str) -> list[str]:
    """What a stream's query reads by name, through the streams that run inside it."""
    found: dict[str, None] = {}
    for each in done.streams[name].inputs:
        found[each] = None
        if each in done.streams[name].fused:
            found |= dict.fromkeys(_inputs(done, each))
    return list(found)


def _record_type(done: "Compilation", topic: str) -> dict[str, Any]:
    """What records must be to be taken: the fields of a topic's events and their bounds, or the columns of its stream."""
    declared = done.graph.app.topics.get(topic)
    if declared is not None and declared.event is not None:
        schema = msgspec.json.schema(declared.event)
        bare = _bare_type(_without(schema, "description", "title"))
        return {"event": bare, "time": time_of(declared)[0]}
    writer = next((each for each in done.streams.values() if each.stream.target == topic), None)
    return {"columns": _bare_type(writer.columns.jsonValue())} if writer is not None else {}


def _without(value: Any, *names: str) -> Any:
    if isinstance(value, dict):
        return {
            name: _without(each, *names) for name, each in value.items() if name not in names or isinstance(each, dict)
        }
    return [_without(each, *names) for each in value] if isinstance(value, list) else value


def _bare_type(value: Any) -> Any:
    """A type of Spark's without the notes that it keeps on columns."""
    if isinstance(value, dict):
        return {name: {} if name == "metadata" else _bare_type(each) for name, each in value.items()}
    return [_bare_type(each) for each in value] if isinstance(value, list) else value


def _table(source: Any) -> str:
    if isinstance(source, FileSource):
        return f"{source.format} {source.path} {source.columns} {dict(sorted(source.options.items()))}"
    return f"topic {source.name}"


def _code(function: Any, sql: str) -> str:
    return code_hash(function) if function is not None else code_hash(" ".join(sql.split()))


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _version(content: Mapping[str, Any]) -> Version:
    known = {each.name for each in fields(Version)}
    made = Version(**{name: value for name, value in content.items() if name in known})
    return replace(made, blueprint=_blueprint(content["blueprint"]), begin=offsets_of(content.get("begin") or {}))


def _blueprint(content: Mapping[str, Any]) -> Blueprint:
    operators = tuple(Operator(**_tuples(each, Operator)) for each in content["operators"])
    return Blueprint(**{**_tuples(content, Blueprint), "operators": operators})


def _tuples(content: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """What a class knows of some JSON; its lists are tuples."""
    known = {each.name for each in fields(kind)}
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in content.items() if name in known
    }
