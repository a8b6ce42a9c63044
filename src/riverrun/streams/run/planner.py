"""Which speed each stream runs at, decided and explained before anything starts.

Real-time mode permanently holds a task slot for every partition it reads and every partition of its state, and does not
support every operator. A stream that cannot use it runs near real time, as fast as it can, and the plan says why.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from riverrun.config import Settings
from riverrun.model.pipeline import Speed, every_ms
from riverrun.model.topic import Topic
from riverrun.streams.compile.compiler import Compilation, CompiledStream
from riverrun.streams.compile.graph import Graph
from riverrun.streams.run.session import cores, shuffle_partitions

DEFAULT_SPEED: Speed = "near-real-time"
# Length of a real-time batch: progress, offsets and watermark move at its end, and after a crash it is sent again.
REAL_TIME_BATCH_MS = 30_000
# The least that real-time mode allows. A table whose rows change is read again for each batch, so changes count from the
# next one on.
MOVING_TABLE_BATCH_MS = 5_000
# A guess, before a stream is compiled, of how many shuffles it has: one to deduplicate and one to aggregate.
SHUFFLES = 2


@dataclass(frozen=True)
class StreamPlan:
    """How one stream will run."""

    name: str
    requested: Speed
    speed: Speed
    # Why it does not run at the requested speed; empty if it does.
    reason: str
    output_mode: str
    # Milliseconds between two triggers (near real time), or the length of a real-time batch.
    every_ms: int
    slots: int
    notes: tuple[str, ...] = ()

    @property
    def pace(self) -> str:
        if self.speed == "batch":
            return "once"
        if self.speed == "real-time":
            return "always"
        return f"every {self.every_ms / 1000:g} s" if self.every_ms else "as fast as it goes"


@dataclass(frozen=True)
class PipelinePlan:
    """The plans of all streams. `slots` is how many tasks can run at once, `held_slots` how many real-time streams hold."""

    streams: tuple[StreamPlan, ...]
    slots: int
    held_slots: int

    def for_stream(self, name: str) -> StreamPlan:
        return next(stream for stream in self.streams if stream.name == name)


def requested_speed(own: Speed | None, settings: Settings, override: Speed | None) -> Speed:
    """The speed from the command line, else of the stream, else of the project, else near real time."""
    return override or own or settings.streams.speed or DEFAULT_SPEED


def slots_for(graph: Graph, settings: Settings, override: Speed | None) -> int:
    """How many task slots to give Spark on this machine: what real-time streams hold, and the cores for the others."""
    held_slots = 0
    for name in graph.order:
        if requested_speed(graph.app.streams[name].speed, settings, override) == "real-time":
            held_slots += sum(topic.partitions for topic in graph.topics(name)) + SHUFFLES * shuffle_partitions(
                settings
            )
    return cores() + held_slots


def plan_streams(
    compilation: Compilation,
    settings: Settings,
    *,
    slots: int,
    speed: Speed | None = None,
    every: str | None = None,
    partitions: Mapping[str, int] | None = None,
) -> PipelinePlan:
    """Plan every stream. `partitions` has the actual partition counts of topics that exist."""
    plans: list[StreamPlan] = []
    held_slots = 0
    names = [name for name in compilation.graph.order if name in compilation.streams]
    # One slot stays free for streams that do not run in real time, and for tables that are read again.
    reserved = 1 if len(names) > 1 or any(changing_tables(compilation, name) for name in names) else 0
    for name in names:
        compiled = compilation.streams[name]
        requested = requested_speed(compiled.stream.speed, settings, speed)
        interval_ms = every_ms(every or compiled.stream.every or settings.streams.every, f"every of {name}")
        slots_wanted = _slots(compilation, compiled, shuffle_partitions(settings, slots), partitions or {})
        plan = _plan(
            compiled,
            requested,
            interval_ms,
            slots_wanted,
            slots - held_slots - reserved,
            changing=changing_tables(compilation, name),
        )
        held_slots += plan.slots
        plans.append(plan)
    return PipelinePlan(tuple(plans), slots, held_slots)


def changing_tables(compilation: Compilation, name: str) -> list[str]:
    """The tables that a stream's query joins and whose rows change: those made from topics."""
    inputs = compilation.graph.inputs[name]
    inner = [
        table
        for stream in compilation.streams[name].fused
        if stream in inputs
        for table in changing_tables(compilation, stream)
    ]
    tables = compilation.graph.app.tables
    return [input_ for input_ in inputs if input_ in tables and isinstance(tables[input_].source, Topic)] + inner


def _plan(
    compiled: CompiledStream, requested: Speed, wait_ms: int, slots: int, free_slots: int, *, changing: Sequence[str]
) -> StreamPlan:
    stream = compiled.stream
    if requested == "batch":
        return StreamPlan(stream.name, requested, "batch", "", "append", 0, 0, compiled.notes)
    if compiled.streaming_blocker:
        return StreamPlan(stream.name, requested, "batch", compiled.streaming_blocker, "append", 0, 0, compiled.notes)
    if requested == "near-real-time":
        return StreamPlan(stream.name, requested, requested, "", compiled.mode, wait_ms, 0, compiled.notes)
    blockers = " and ".join(compiled.real_time_blockers)
    reason = ""
    if blockers and (compiled.fused or stream.emit == "final"):
        reason = f"real-time mode sends rows before they are final, and {blockers}"
    elif blockers:
        reason = f"real-time mode does not take {blockers}"
    elif slots > free_slots:
        reason = f"it would hold {slots} task slots for good, and of Spark's only {max(0, free_slots)} are free"
    if reason:
        return StreamPlan(stream.name, requested, "near-real-time", reason, compiled.mode, 0, 0, compiled.notes)
    if changing:
        seconds = f"{MOVING_TABLE_BATCH_MS / 1000:g} s"
        note = f"a change of {' or '.join(changing)} counts after at most {seconds}: the batches are that short"
        return StreamPlan(
            stream.name, requested, requested, "", "update", MOVING_TABLE_BATCH_MS, slots, (*compiled.notes, note)
        )
    return StreamPlan(stream.name, requested, requested, "", "update", REAL_TIME_BATCH_MS, slots, compiled.notes)


def _slots(compilation: Compilation, compiled: CompiledStream, shuffled: int, partitions: Mapping[str, int]) -> int:
    partitions_read = 0
    for topic in compilation.sources(compiled.stream.name):
        declared = compilation.graph.app.topics.get(topic)
        if declared is None:
            writer = next(name for name, stream in compilation.streams.items() if stream.stream.output_topic == topic)
            declared = compilation.output_topic(writer)
        partitions_read += partitions.get(topic, declared.partitions)
    # Each stateful operator is behind a shuffle, and every one of its partitions holds a slot.
    return partitions_read + shuffled * len(compiled.query.stateful)
