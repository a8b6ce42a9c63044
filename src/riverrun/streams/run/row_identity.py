"""Which record is which, of those that a real-time stream sends: the header `riverrun-id`, the same when one is sent again.

Where every row is made of one record of the input, its identity is that record's topic, partition and offset, and what the
row says. So two rows that are equal and were made of two records are two. A user's code does not hand these three columns
on: they are put into the plan that it has made, from the reader up, through every operator that makes rows of one record
each; where one makes several by explode(), inline() or stack(), with the place of each in its list (json_tuple() makes one).
Where rows are made of many (an aggregate's), there is no such record, and equal rows have the same identity.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame

# The header of a real-time stream's records.
IDENTITY_HEADER = "riverrun-id"
_ORIGIN_COLUMNS = ("topic", "partition", "offset")
# Operators that make rows of one row each. They hand on all columns that they get; a projection is told to.
_PASS_THROUGH = {"CollectMetrics", "EventTimeWatermark", "Filter", "Generate", "Join", "ResolvedHint", "SubqueryAlias"}


def add_identity_header(records: "DataFrame") -> "DataFrame":
    """Records with a header that says which they are: a record that is sent again after a crash has the same."""
    from pyspark.sql import functions as F  # noqa: N812

    with_origins = with_origin(records)
    hashed = with_origins if with_origins is not None else records
    identity = F.hex(F.xxhash64(*hashed.columns)).cast("binary")
    header = F.struct(F.lit(IDENTITY_HEADER).alias("key"), identity.alias("value"))
    return hashed.select("key", "value", F.array(header).alias("headers"))


def with_origin(records: "DataFrame") -> "DataFrame | None":
    """Records with the topic, partition and offset of the record each is made of, and what else tells its rows apart; None
    where they are not made of one each."""
    from pyspark.sql import DataFrame

    spark = records.sparkSession
    jvm: Any = spark._jvm  # noqa: SLF001
    analyzed: Any = records._jdf.queryExecution().analyzed()  # noqa: SLF001
    rewritten = _OriginRewriter(jvm).with_origin_columns(analyzed)
    if rewritten is None:
        return None
    dataset = jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, rewritten[0])  # noqa: SLF001
    frame = DataFrame(dataset, spark)
    # Their names may be there twice.
    return frame.toDF(
        *records.columns, *[f"origin_{number}" for number in range(len(frame.columns) - len(records.columns))]
    )


class _OriginRewriter:
    """Puts the columns that tell where a row came from through a plan of Spark's."""

    def __init__(self, jvm: Any) -> None:
        self._jvm = jvm
        self._expressions = jvm.org.apache.spark.sql.catalyst.expressions

    def with_origin_columns(self, plan: Any) -> "tuple[Any, list[Any]] | None":
        """The plan with these columns in its output, and which they are; None where an operator does not let them pass."""
        name = plan.nodeName()
        children = list(_iterate(plan.children()))
        if name == "StreamingRelationV2":
            columns = {str(each.name()): each for each in _iterate(plan.output())}
            return (
                (plan, [columns[each] for each in _ORIGIN_COLUMNS]) if columns.keys() >= set(_ORIGIN_COLUMNS) else None
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
            more = [each for each in origin if not _ids([each]) & own]
            return self._project([*_iterate(plan.projectList()), *more], below), origin
        if name == "Generate":
            return self._generate(plan, below, origin)
        return plan.withNewChildren(self._seq([below if child.isStreaming() else child for child in children])), origin

    def _generate(self, plan: Any, below: Any, origin: list[Any]) -> "tuple[Any, list[Any]] | None":
        """Several rows of one: explode() is made to tell the place of each in its list, as posexplode() does, and so is what
        does the same with several columns. None for a generator that we do not know."""
        generator, outputs = plan.generator(), list(_iterate(plan.generatorOutput()))
        kind = generator.getClass().getSimpleName()
        if kind in ("PosExplode", "JsonTuple"):
            # That has the place already; this makes one row of each.
            position = outputs[:1] if kind == "PosExplode" else []
            return self._generated(plan, generator, outputs, below), [*origin, *position]
        if kind == "Explode":
            generator, position, _ = self._with_place(generator.child())
            return self._generated(plan, generator, [position, *outputs], below), [*origin, position]
        if kind in ("Inline", "Stack"):
            structs = generator.child() if kind == "Inline" else self._stacked(generator, outputs)
            generator, position, (struct,) = self._with_place(structs)
            rows = self._generated(plan, generator, [position, struct], below)
            kept = [each for each in _iterate(rows.output()) if not _ids([each]) & _ids([position, struct])]
            fields = [self._field(struct, number, column) for number, column in enumerate(outputs)]
            return self._project([*kept, *fields, position], rows), [*origin, position]
        return None

    def _generated(self, plan: Any, generator: Any, outputs: list[Any], below: Any) -> Any:
        return plan.copy(
            generator, plan.unrequiredChildIndex(), plan.outer(), plan.qualifier(), self._seq(outputs), below
        )

    def _with_place(self, child: Any) -> tuple[Any, Any, list[Any]]:
        """posexplode() of an array, its column with the place, and the others."""
        generator = self._expressions.PosExplode(child)
        columns = self._jvm.org.apache.spark.sql.catalyst.types.DataTypeUtils.toAttributes(generator.elementSchema())
        place, *others = _iterate(columns)
        return generator, place, others

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
        """Of the column's type: a null of stack() may have none."""
        return self._null(column) if value.dataType().typeName() == "void" else value

    def _field(self, struct: Any, number: int, column: Any) -> Any:
        """One member of a struct, as the column that it was before."""
        member = self._expressions.GetStructField(struct, number, self._jvm.scala.Option.empty())
        nothing = self._jvm.scala.Option.empty()
        return self._expressions.Alias(
            member, column.name(), column.exprId(), column.qualifier(), nothing, self._seq([])
        )

    def _union(self, plan: Any, children: list[Any]) -> "tuple[Any, list[Any]] | None":
        """Columns go by their place in a union: these have to be the last of each side, as many, and of no side before."""
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
