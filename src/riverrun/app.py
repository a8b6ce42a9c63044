"""The pipeline file: an `App` collects what it declares, and `load_app` reads the file."""

import importlib.util
import inspect
import keyword
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from riverrun.errors import DeclarationError, RiverrunError
from riverrun.model.alert import Alert, AlertOptions, AlertSource, build_alert
from riverrun.model.connector import Sink, SinkBinding, Source, SourceBinding
from riverrun.model.connectors.postgres import postgres
from riverrun.model.dashboard import DEFAULT_STALE, Dashboard, Tile, build_dashboard
from riverrun.model.event import Event
from riverrun.model.framing import Format
from riverrun.model.pipeline import Emit, FileSource, SourceLine, Speed, Stream, Table, TableOptions
from riverrun.model.suggest import nearest
from riverrun.model.table import GRANULARITIES, ROLLUPS
from riverrun.model.topic import Topic, check_topic_name
from riverrun.model.units import parse_duration_ms

if TYPE_CHECKING:
    from riverrun.kafka.admin.topics import TopicChanges
    from riverrun.kafka.connection import Connection
    from riverrun.store.client import Rows

E = TypeVar("E", bound=Event)
# Packages that come with riverrun[spark] and that pipeline files import.
_SPARK_PACKAGES = ("pandas", "pyarrow", "pyspark")


class App:
    """A pipeline: declare topics, tables and streams in it. Declaring only records what is declared; nothing runs.

    Streams name their inputs: a topic, a table or another stream of the app. All share one namespace.
    """

    def __init__(self, name: str) -> None:
        self.name = check_topic_name(name)
        self.topics: dict[str, Topic[Event]] = {}
        self.tables: dict[str, Table] = {}
        self.streams: dict[str, Stream] = {}
        # Table options from `store`, by table name; a stream without an entry becomes a table with the defaults.
        self.table_options: dict[str, TableOptions] = {}
        self.dashboards: dict[str, Dashboard] = {}
        self.alerts: dict[str, Alert] = {}
        # Connectors, by their names.
        self.sources: dict[str, SourceBinding] = {}
        self.sinks: dict[str, SinkBinding] = {}
        # Where each name was declared, and the folder that relative paths of table files start from.
        self.declared_at: dict[str, SourceLine] = {}
        self.folder = Path()
        # The pipeline file, if `load_app` read one.
        self.path: Path | None = None

    @property
    def file(self) -> str:
        """The pipeline file, else the file of the first declaration; empty when neither is known."""
        return str(self.path) if self.path else next((line.file for line in self.declared_at.values()), "")

    def topic(
        self,
        name: str,
        event: type[E] | None = None,
        *,
        partitions: int = 1,
        replicas: int = 0,
        retention: str | timedelta | None = None,
        retention_size: str | int | None = None,
        compact: bool = False,
        config: Mapping[str, str] | None = None,
        format: Format = "json",  # noqa: A002  -- users know it by this name
    ) -> Topic[E]:
        """Declare a topic once; see `Topic` for what the arguments mean."""
        line = _caller_line()
        if name in self.topics:
            raise DeclarationError(
                f"The topic {name} is declared twice in the app {self.name}",
                hint="Declare it once and use what app.topic() returns",
                topic=name,
            )
        self._check_name_unused(name)
        topic = Topic(name, event, partitions, replicas, retention, retention_size, compact, dict(config or {}), format)
        self.topics[name] = topic
        self.declared_at[name] = line
        return topic

    def table(self, name: str, source: FileSource | postgres | Topic[Any], *, key: str | Sequence[str] = ()) -> Table:
        """Reference data that streams can join: `riverrun.csv(…)`, `.json(…)`, `.parquet(…)`, `.postgres(…)`, or a topic, of
        which the newest record of each key counts. `key` names the columns that identify a row; a topic, and a database
        table with a primary key, have their own."""
        line = _caller_line()
        self._check_name_unused(name)
        _check_name(name, "table")
        keys = _column_names(key)
        if isinstance(source, Topic):
            schema = source.schema
            if schema is None or schema.key_field is None:
                raise DeclarationError(
                    f"The table {name} cannot be made of the topic {source.name}: its records have no key",
                    expected="a topic whose event type has a riverrun.key()",
                    table=name,
                )
            keys = keys or (schema.key_field,)
        elif isinstance(source, postgres):
            return self._table_from_postgres(name, replace(source, key=keys or source.key), line)
        elif not isinstance(source, FileSource):
            raise DeclarationError(
                f"The table {name} cannot be made of {source!r}",
                expected='riverrun.csv("…"), riverrun.json("…"), riverrun.parquet("…"), riverrun.postgres("…") or a topic',
                table=name,
            )
        table = Table(name, source, keys, line)
        self.tables[name] = table
        self.declared_at[name] = line
        return table

    def _table_from_postgres(self, name: str, source: postgres, line: SourceLine) -> Table:
        """A database table, read through a topic of its own. Columns that are not declared are looked up when a command
        loads the file (connectors/postgres/columns.py)."""
        binding = SourceBinding(name, check_topic_name(f"{self.name}.{name}"), source, line)
        self._check_connector(binding.name, self.sources)
        self._check_name_unused(binding.topic)
        table = Table(name, source, source.keys, line)
        if source.columns:
            from riverrun.model.connectors.postgres_types import compacted_topic_for, parse_columns

            columns = parse_columns(source.columns, source.table)
            names = [column.name for column in columns]
            if not source.keys or (absent := [key for key in source.keys if key not in names]):
                missing = f"names the key {absent[0]}, which is not one of its columns" if source.keys else "has no key"
                raise DeclarationError(
                    f"The table {name} {missing}", expected=f"key= one of {', '.join(names)}", table=name
                )
            topic = compacted_topic_for(binding.topic, columns, source.keys, source.partitions)
            self.topics[topic.name], self.declared_at[topic.name] = topic, line
            table = replace(table, source=topic)
        self.sources[binding.name] = binding
        self.tables[name] = table
        self.declared_at[name] = line
        return table

    def source(self, topic: "Topic[Any]", source: Source, *, name: str = "") -> SourceBinding:
        """Say where records of a topic come from: `riverrun.http()`, `riverrun.mqtt(…)`, … or a `Source` of your own. A
        topic may have several. The connector keeps its position under `name`; the default is the topic's name."""
        line = _caller_line()
        if not any(topic is declared for declared in self.topics.values()):
            raise DeclarationError(
                f"app.source cannot fill {topic!r}", expected="a topic of this app, as app.topic() gives it", line=line
            )
        if not isinstance(source, Source):
            raise DeclarationError(
                f"The records of {topic.name} cannot come from {source!r}",
                expected="a source such as riverrun.mqtt(…) or riverrun.http()",
                line=line,
            )
        source.check(topic)
        binding = SourceBinding(check_topic_name(name or topic.name), topic.name, source, line)
        self._check_connector(binding.name, self.sources)
        self.sources[binding.name] = binding
        return binding

    def sink(self, upstream: "Stream | Topic[Any]", sink: Sink, *, name: str = "") -> SinkBinding:
        """Say where the rows of a stream, or the records of a topic, also go: `riverrun.jdbc(…)`, `riverrun.webhook(…)`,
        or a `Sink` of your own. Its consumer group is named after the app and `name`."""
        line = _caller_line()
        if not isinstance(upstream, Stream | Topic):
            raise DeclarationError(
                f"app.sink cannot take {upstream!r}", expected="a stream or a topic of the app", line=line
            )
        if not isinstance(sink, Sink):
            raise DeclarationError(
                f"The rows of {upstream.name} cannot go to {sink!r}",
                expected="a sink such as riverrun.jdbc(…) or riverrun.webhook(…)",
                line=line,
            )
        if isinstance(upstream, Topic) and upstream.registered and sink.runs_as == "connect":
            raise DeclarationError(
                f"The records of {upstream.name} are {upstream.format}, and Kafka Connect reads plain JSON here",
                hint="Make a stream of it, and give that to the sink",
                topic=upstream.name,
            )
        binding = SinkBinding(check_topic_name(name or upstream.name), upstream.name, sink, line)
        self._check_connector(binding.name, self.sinks)
        self.sinks[binding.name] = binding
        return binding

    def _check_connector(self, name: str, others: "Mapping[str, SourceBinding | SinkBinding]") -> None:
        if name in others:
            raise DeclarationError(
                f"The connector {name} is declared twice in the app {self.name}: see {others[name].line}",
                hint="Give one of them another name=",
                name=name,
            )

    @overload
    def stream(self, function: Callable[..., Any], /) -> Stream: ...

    @overload
    def stream(
        self,
        *,
        speed: Speed | None = None,
        every: str | timedelta | None = None,
        key: str | Sequence[str] = (),
        time: str = "",
        emit: Emit = "updates",
        topic: "str | Topic[Any]" = "",
        partitions: int = 0,
        replicas: int = 0,
        retention: str | timedelta | None = None,
    ) -> Callable[[Callable[..., Any]], Stream]: ...

    def stream(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:  # type: ignore[misc]
        """Declare a stream: a function from DataFrames to one DataFrame. Its parameters name its inputs, its name is the
        stream's and, unless `topic` says another, the output topic's. See `Stream` for the options."""
        if function is not None:
            return self._stream_from_function(function, _caller_line(), {})
        line = _caller_line()
        return lambda function: self._stream_from_function(function, line, options)

    def sql(self, name: str, query: str, **options: Any) -> Stream:
        """Declare a stream in Spark's SQL. The tables it reads are topics, tables and streams of the app."""
        line = _caller_line()
        if not query.strip():
            raise DeclarationError(f"The SQL of {name} is empty", stream=name)
        return self._add_stream(name, line, options, sql=query)

    def store(
        self,
        source: "Stream | Topic[Any]",
        *,
        name: str = "",
        key: str | Sequence[str] = (),
        retention: str | timedelta | None = None,
        segment: str = "",
        granularity: str = "",
        rollup: Mapping[str, str] | None = None,
    ) -> TableOptions:
        """Say how a stream, or a topic of events, is kept as a table. Streams are tables without this.

        Rows older than `retention` (by their own time) are deleted. With `key`, the newest row of each key counts;
        without, a stream decides by itself (an aggregate's rows are updated), and all events of a topic are kept.
        `segment` and `granularity` are Druid's segment and query granularity ("hour", "minute"); `rollup` names columns
        that Druid adds up as they come in, such as {"load_kw": "sum"}: sum, min, max or count.
        """
        line = _caller_line()
        if not isinstance(source, Stream | Topic):
            raise DeclarationError(
                f"app.store cannot keep {source!r}", expected="a stream or a topic of the app", line=line
            )
        options = TableOptions(
            source.name, line, name, _column_names(key), retention, segment, granularity, dict(rollup or {})
        )
        _check_name(options.table, "table of the store")
        _check_table_options(options)
        other = self.table_options.get(options.table)
        name_taken = options.table != options.source and (options.table in self.streams or options.table in self.tables)
        if other is not None or name_taken:
            where = other.line if other is not None else self.declared_at[options.table]
            raise DeclarationError(
                f"The table {options.table} is declared twice in the app {self.name}: see {where}",
                hint="Give one of them another name=",
                name=options.table,
            )
        self.table_options[options.table] = options
        return options

    def dashboard(
        self, *tiles: Tile, title: str = "", name: str = "main", stale: str | timedelta = DEFAULT_STALE
    ) -> Dashboard:
        """Declare what people see: tiles such as `riverrun.number(…)`, in the order in which they are read. An app may have
        several dashboards, each with a `name`. Figures are shown as stale when no row has come in for `stale`."""
        line = _caller_line()
        if name in self.dashboards:
            raise DeclarationError(
                f"The dashboard {name} is declared twice in the app {self.name}: see {self.dashboards[name].line}",
                hint="Give one of them another name=",
                name=name,
            )
        dashboard = build_dashboard(tiles, name=name, title=title, stale=stale, line=line, app=self.name)
        self.dashboards[name] = dashboard
        return dashboard

    def alert(self, name: str, source: AlertSource, **options: Unpack[AlertOptions]) -> Alert:
        """Declare an alert on the rows of a stream or a topic. It has an incident for each key `by` (by default the key of
        that stream or topic): the incident begins `when` a condition holds (for as long as `lasting`), or when the key has
        been `silent`; it ends when `clear` holds. `to` and `text` are required. docs/alerts.md has every option."""
        line = _caller_line()
        if name in self.alerts:
            raise DeclarationError(
                f"The alert {name} is declared twice in the app {self.name}: see {self.alerts[name].line}",
                hint="Give one of them another name",
                name=name,
            )
        alert = build_alert(name, source, line, options)
        self.alerts[name] = alert
        return alert

    def _stream_from_function(self, function: Callable[..., Any], line: SourceLine, options: dict[str, Any]) -> Stream:
        name = getattr(function, "__name__", "")
        parameters = inspect.signature(function).parameters.values()
        unsupported = [
            parameter.name
            for parameter in parameters
            if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]
        if unsupported or not parameters:
            raise DeclarationError(
                f"The stream {name} has {'the parameter ' + unsupported[0] if unsupported else 'no parameters'}",
                expected="one plain parameter for each input, named like it",
                stream=name,
            )
        return self._add_stream(
            name, line, options, function=function, parameters=tuple(parameter.name for parameter in parameters)
        )

    def _add_stream(self, name: str, line: SourceLine, options: dict[str, Any], **body: Any) -> Stream:
        known = set(Stream.__dataclass_fields__) - {"name", "line", "function", "sql", "parameters"}
        if unknown := sorted(set(options) - known):
            suggestion = nearest(unknown[0], known)
            raise DeclarationError(
                f"The stream {name} has no option {unknown[0]!r}",
                expected=", ".join(sorted(known)),
                hint=f"Did you mean {suggestion!r}?" if suggestion else "",
                stream=name,
            )
        self._check_name_unused(name)
        _check_name(name, "stream")
        arguments = dict(options) | {"key": _column_names(options.get("key", ()))}
        if isinstance(arguments.get("topic"), Topic):
            arguments["topic"] = arguments["topic"].name
        stream = Stream(name, line, **body, **arguments)
        check_topic_name(stream.output_topic)
        other = next(
            (declared for declared in self.streams.values() if declared.output_topic == stream.output_topic), None
        )
        if other is not None:
            raise DeclarationError(
                f"The streams {other.name} and {name} both write the topic {stream.output_topic}",
                hint="Give one of them another topic; a third stream can union the two",
                stream=name,
            )
        self.streams[name] = stream
        self.declared_at[name] = line
        return stream

    def _check_name_unused(self, name: str) -> None:
        for kind, taken in (("topic", self.topics), ("table", self.tables), ("stream", self.streams)):
            if name in taken:
                where = f" at {self.declared_at[name]}" if name in self.declared_at else ""
                raise DeclarationError(
                    f"{name} is declared twice in the app {self.name}: it is a {kind}{where}",
                    hint="Names of topics, tables and streams must differ, because streams refer to all of them by name",
                    name=name,
                )

    def apply(
        self, connection: "Connection | str | None" = None, *, more_partitions: bool = False
    ) -> "list[TopicChanges]":
        """Make the cluster's topics match the declarations: create them, change what is safe, and refuse the rest before
        anything is changed. `more_partitions` allows adding partitions, which moves keys. Returns the changes by topic."""
        from riverrun.kafka.admin.admin import Admin
        from riverrun.kafka.admin.topics import apply_topics
        from riverrun.kafka.connection import as_connection

        topics = list(self.topics.values())
        return apply_topics(Admin(as_connection(connection)), topics, allow_more_partitions=more_partitions)

    def query(self, sql: str, *, rows: int = 10_000, seconds: float = 30.0) -> "Rows":
        """Query the store that is served for this app's project (`riverrun serve`, `riverrun run`) in riverrun's SQL.

        Returns rows: iterate over them for dicts, or take `.arrow()`, `.pandas()` or `.polars()`.
        """
        from riverrun.config import find_project
        from riverrun.store.client import query_project

        return query_project(find_project(self.path.parent if self.path else None), sql, rows=rows, seconds=seconds)


def declared_names(app: App) -> frozenset[str]:
    """All names its file declares. Messages write them as they are, even at the start of a sentence."""
    return frozenset(
        {app.name, *app.topics, *app.streams, *app.tables, *app.table_options, *app.alerts, *app.sources, *app.sinks}
    )


def _caller_line() -> SourceLine:
    """The line of the file that called the App's method."""
    frame = sys._getframe(2)  # noqa: SLF001
    return SourceLine(frame.f_code.co_filename, frame.f_lineno)


def _column_names(key: str | Sequence[str]) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) and key else tuple(key)


def _check_name(name: str, kind: str) -> None:
    """Check that streams can use the name as a parameter and in SQL."""
    if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
        raise DeclarationError(
            f"{name!r} cannot be the name of a {kind}",
            expected="a name that can be a parameter in Python, such as house_load",
            name=name,
        )


def _check_table_options(options: TableOptions) -> None:
    if options.retention is not None:
        parse_duration_ms(options.retention, what=f"retention of the table {options.table}")
    for what, word in (("segment", options.segment), ("granularity", options.granularity)):
        if word and word not in GRANULARITIES:
            raise DeclarationError(
                f"The table {options.table} cannot have {what}={word!r}",
                expected=", ".join(GRANULARITIES),
                table=options.table,
            )
    if unknown := sorted(set(options.rollup.values()) - set(ROLLUPS)):
        raise DeclarationError(
            f"The table {options.table} cannot roll up by {unknown[0]!r}",
            expected=", ".join(ROLLUPS),
            table=options.table,
        )


def load_app(path: Path) -> App:
    """Run the pipeline file and return its app. Every error names the file and the line."""
    path = path.resolve()
    if not path.is_file():
        raise DeclarationError(
            f"There is no pipeline file {path}", hint="Give its path, or run `riverrun init`", file=path
        )
    module_name = app_module_name(path)
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise DeclarationError(f"{path.name} is not a Python file", expected="a name that ends in .py", file=path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise DeclarationError(f"{path.name}:{error.lineno}: this is not Python: {error.msg}", file=path) from error
    except RiverrunError as error:
        raise DeclarationError(f"{_error_location(path, error)}: {error.what}", expected=error.expected, found=error.found,
                               hint=error.hint, **error.fields) from error  # fmt: skip
    except Exception as error:
        streams = isinstance(error, ImportError) and (error.name or "").partition(".")[0] in _SPARK_PACKAGES
        hint = 'pip install "riverrun[spark]" installs it' if streams else "The file raised this while it was read"
        raise DeclarationError(
            f"{_error_location(path, error)}: {type(error).__name__}: {error}",
            hint=hint,
            file=path,
        ) from error
    finally:
        sys.path.remove(str(path.parent))
    apps = [value for value in vars(module).values() if isinstance(value, App)]
    if len(apps) != 1:
        raise _not_one_app(path, [app.name for app in apps])
    apps[0].folder, apps[0].path = path.parent, path
    return apps[0]


def _not_one_app(path: Path, names: list[str]) -> DeclarationError:
    if names:
        return DeclarationError(
            f"{path} has {len(names)} riverrun.App: {', '.join(names)}",
            expected="exactly one",
            hint="Declare everything in one of them, or give each a file of its own",
            file=path,
        )
    empty = not path.read_bytes().strip()
    return DeclarationError(
        f"{path} {'is empty' if empty else 'has no riverrun.App'}",
        expected='exactly one riverrun.App, such as app = riverrun.App("meters")',
        hint="Make one at the top of the file and declare topics and streams in it; "
        "`riverrun init FOLDER` writes a whole example",
        file=path,
    )


def app_module_name(path: Path) -> str:
    """The module name a pipeline file is loaded under; not its own, which may be the name of a package."""
    return f"riverrun_app_{path.stem}"


def _error_location(path: Path, error: BaseException) -> str:
    """The line of the user's file that led to the error: the last of its frames."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"{path.name}:{frames[-1].lineno}" if frames else path.name
