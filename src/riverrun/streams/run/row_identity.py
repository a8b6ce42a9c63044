"""The identity of the records a real-time stream sends: the header `riverrun-id`, the same when a record is sent again.

If every row is made from one input record, its identity is that record's topic, partition and offset, and the row's content.
So two equal rows made from two records are two. The user's code does not pass these three columns on: they are added to its
plan, from the reader up, through every operator that makes each row from one record; where explode(), inline() or stack()
makes several rows, with the position of each in its list (json_tuple() makes one). If a row is made from many records (an
aggregate's), there is no such record, and equal rows have the same identity.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame

# The header of a real-time stream's records.
IDENTITY_HEADER = "riverrun-id"
_ORIGIN_COLUMNS = ("topic", "partition", "offset")
# Operators that make each row from one row and pass on all columns; a projection is changed to do so.
_PASS_THROUGH = {"CollectMetrics", "EventTimeWatermark", "Filter", "Generate", "Join", "ResolvedHint", "SubqueryAlias"}


def add_identity_header(records: "DataFrame") -> "DataFrame":
    """Records with a header that identifies them: a record that is sent again after a crash has the same."""
    from pyspark.sql import functions as F  # noqa: N812

    with_origins = with_origin(records)
    hashed = with_origins if with_origins is not None else records
    identity = F.hex(F.xxhash64(*hashed.columns)).cast("binary")
    header = F.struct(F.lit(IDENTITY_HEADER).alias("key"), identity.alias("value"))
    return hashed.select("key", "value", F.array(header).alias("headers"))


def with_origin(records: "DataFrame") -> "DataFrame | None":
    """Records with the topic, partition and offset of the input record, and what else tells its rows apart; None if a record
    is not made from exactly one."""
    from pyspark.sql import DataFrame

    spark = records.sparkSession
    jvm: Any = spark._jvm  # noqa: SLF001
    analyzed: Any = records._jdf.queryExecution().analyzed()  # noqa: SLF001
    rewritten = _OriginRewriter(jvm).with_origin_columns(analyzed)
    if rewritten is None:
        return None
    dataset = jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, rewritten[0])  # noqa: SLF001
    frame = DataFrame(dataset, spark)
    # Renamed, because the user's columns may have the same names.
    return frame.toDF(
        *records.columns, *[f"origin_{number}" for number in range(len(frame.columns) - len(records.columns))]
    )


class _OriginRewriter:
    """Passes the columns that say which record a row came from through a Spark plan."""

    def __init__(self, jvm: Any) -> None:
        self._jvm = jvm
        self._expressions = jvm.org.apache.spark.sql.catalyst.expressions

    def with_origin_columns(self, plan: Any) -> "tuple[Any, list[Any]] | None":
        """The plan with these columns in its output, and the columns; None if an operator cannot pass them on."""
        name = plan.nodeName()
        children = list(_iterate(plan.children()))
        if name == "StreamingRelationV2":
            columns = {str(column.name()): column for column in _iterate(plan.output())}
            return (
                (plan, [columns[column] for column in _ORIGIN_COLUMNS])
                if columns.keys() >= set(_ORIGIN_COLUMNS)
                else None
            )
        if name == "View":
            return self.with_origin_columns(children[0])
        if name == "Union":
            return self._union(plan, children)
        streaming = [child for child in children if child.isStreaming()]
        if len(streaming) != 1 or name not in {"Project", *_PASS_THROUGH}:
            return None
        rewritten = self.with_origin_columns(streaming[0])
        if rewritten is None:
            return None
        below, origin = rewritten
        if name == "Project":
            own = _ids(_iterate(plan.projectList()))
            more = [column for column in origin if not _ids([column]) & own]
            return self._project([*_iterate(plan.projectList()), *more], below), origin
        if name == "Generate":
            return self._generate(plan, below, origin)
        return plan.withNewChildren(self._seq([below if child.isStreaming() else child for child in children])), origin

    def _generate(self, plan: Any, below: Any, origin: list[Any]) -> "tuple[Any, list[Any]] | None":
        """Several rows from one: explode(), and what does the same with several columns, is changed to also return the
        position of each row in its list, as posexplode() does. None for an unknown generator."""
        generator, outputs = plan.generator(), list(_iterate(plan.generatorOutput()))
        kind = generator.getClass().getSimpleName()
        if kind in ("PosExplode", "JsonTuple"):
            # The first has the position already; the second makes one row from each.
            position = outputs[:1] if kind == "PosExplode" else []
            return self._generated(plan, generator, outputs, below), [*origin, *position]
        if kind == "Explode":
            generator, position, _ = self._with_place(generator.child())
            return self._generated(plan, generator, [position, *outputs], below), [*origin, position]
        if kind in ("Inline", "Stack"):
            structs = generator.child() if kind == "Inline" else self._stacked(generator, outputs)
            generator, position, (struct,) = self._with_place(structs)
            rows = self._generated(plan, generator, [position, struct], below)
            kept = [column for column in _iterate(rows.output()) if not _ids([column]) & _ids([position, struct])]
            fields = [self._field(struct, number, column) for number, column in enumerate(outputs)]
            return self._project([*kept, *fields, position], rows), [*origin, position]
        return None

    def _generated(self, plan: Any, generator: Any, outputs: list[Any], below: Any) -> Any:
        return plan.copy(
            generator, plan.unrequiredChildIndex(), plan.outer(), plan.qualifier(), self._seq(outputs), below
        )

    def _with_place(self, child: Any) -> tuple[Any, Any, list[Any]]:
        """posexplode() of an array, its position column, and the other columns."""
        generator = self._expressions.PosExplode(child)
        columns = self._jvm.org.apache.spark.sql.catalyst.types.DataTypeUtils.toAttributes(generator.elementSchema())
        position, *others = _iterate(columns)
        return generator, position, others

    def _stacked(self, stack: Any, outputs: list[Any]) -> Any:
        """The rows of stack(n, …) as an array of structs; what is missing in the last one is null."""
        count, *values = _iterate(stack.children())
        structs = []
        for row in range(int(count.eval(None))):
            members: list[Any] = []
            for number, column in enumerate(outputs):
                index = row * len(outputs) + number
                known = self._cast(values[index], column) if index < len(values) else self._null(column)
                members += [self._text(f"f{number}"), known]
            structs.append(self._expressions.CreateNamedStruct(self._seq(members)))
        return self._expressions.CreateArray(self._seq(structs), False)

    def _text(self, text: str) -> Any:
        value = self._jvm.org.apache.spark.unsafe.types.UTF8String.fromString(text)
        return self._expressions.Literal(value, self._jvm.org.apache.spark.sql.types.DataTypes.StringType)

    def _null(self, column: Any) -> Any:
        return self._expressions.Literal(None, column.dataType())

    def _cast(self, value: Any, column: Any) -> Any:
        """The value with the column's type: a null in stack() may have none."""
        return self._null(column) if value.dataType().typeName() == "void" else value

    def _field(self, struct: Any, number: int, column: Any) -> Any:
        """One member of a struct, under the name and id of the original column."""
        member = self._expressions.GetStructField(struct, number, self._jvm.scala.Option.empty())
        nothing = self._jvm.scala.Option.empty()
        return self._expressions.Alias(
            member, column.name(), column.exprId(), column.qualifier(), nothing, self._seq([])
        )

    def _union(self, plan: Any, children: list[Any]) -> "tuple[Any, list[Any]] | None":
        """A union matches columns by position: the origin columns must be the last of each side, equally many, and not in
        its output before."""
        sides, counts = [], set()
        for child in children:
            rewritten = self.with_origin_columns(child) if child.isStreaming() else None
            own = list(_iterate(child.output()))
            if rewritten is None or _ids(own) & _ids(rewritten[1]):
                return None
            sides.append(self._project([*own, *rewritten[1]], rewritten[0]))
            counts.add(len(rewritten[1]))
        if len(counts) != 1:
            return None
        union = plan.withNewChildren(self._seq(sides))
        return union, list(_iterate(union.output()))[-counts.pop() :]

    def _project(self, columns: list[Any], child: Any) -> Any:
        return self._jvm.org.apache.spark.sql.catalyst.plans.logical.Project(self._seq(columns), child)

    def _seq(self, items: list[Any]) -> Any:
        return self._jvm.PythonUtils.toSeq(items)


def _ids(columns: "Iterable[Any]") -> set[str]:
    return {str(column.exprId()) for column in columns}


def _iterate(sequence: Any) -> "Iterator[Any]":
    iterator = sequence.iterator()
    while iterator.hasNext():
        yield iterator.next()
