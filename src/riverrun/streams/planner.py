"""Which speed each stream runs at, decided and explained before anything starts.

Real-time mode holds a task slot for every partition it reads and every part of its state, all the time, and does not take
every operator. A stream that cannot have it runs near real time, as fast as it goes, and the plan says why.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from riverrun.config import Settings
from riverrun.model.pipeline import Speed, every_ms
from riverrun.model.topic import Topic
from riverrun.streams.compiler import Compilation, Compiled
from riverrun.streams.graph import Graph
from riverrun.streams.session import cores, shuffle_partitions

DEFAULT_SPEED: Speed = "near-real-time"
# A real-time batch: progress, offsets and the event-time clock move at its end, and a crash sends it again.
REAL_TIME_BATCH_MS = 30_000
# The least that real-time mode takes. A table whose rows change is read anew for each batch, and counts from the next on.
MOVING_TABLE_BATCH_MS = 5_000
# How often a stream's rows are split by key, as a guess before it is compiled: to drop what is double, and to count.
SHUFFLES = 2


@dataclass(frozen=True)
class StreamPlan:
    """How one stream will run."""

    name: str
    asked: Speed
    speed: Speed
    # Why it does not run as asked; empty when it does.
    because: str
    output_mode: str
    # Milliseconds between two looks for records (near real time), or of a real-time batch.
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
class Plan:
    """All streams. `slots` is how many tasks can run at once, `needed` how many real-time streams hold."""

    streams: tuple[StreamPlan, ...]
    slots: int
    needed: int

    def of(self, name: str) -> StreamPlan:
        return next(each for each in self.streams if each.name == name)


def asked_speed(own: Speed | None, settings: Settings, override: Speed | None) -> Speed:
    """The command line's, else the stream's own, else the project's, else near real time."""
    return override or own or settings.streams.speed or DEFAULT_SPEED


def slots_for(graph: Graph, settings: Settings, override: Speed | None) -> int:
    """How many task slots to give Spark on this machine: what real-time streams hold, and the cores for the others."""
    held = 0
    for name in graph.order:
        if asked_speed(graph.app.streams[name].speed, settings, override) == "real-time":
            held += sum(topic.partitions for topic in graph.topics(name)) + SHUFFLES * shuffle_partitions(settings)
    return cores() + held


def plan_streams(
    done: Compilation,
    settings: Settings,
    *,
    slots: int,
    speed: Speed | None = None,
    every: str | None = None,
    partitions: Mapping[str, int] | None = None,
) -> Plan:
    """Plan every stream. `partitions` is what topics really have, where they are there already."""
    plans: list[StreamPlan] = []
    held = 0
    names = [name for name in done.graph.order if name in done.streams]
    # Streams that are not in real time take turns in what is left, and tables that are read anew do: it is never nothing.
    kept = 1 if len(names) > 1 or any(moving_tables(done, name) for name in names) else 0
    for name in names:
        compiled = done.streams[name]
        asked = asked_speed(compiled.stream.speed, settings, speed)
        wait = every_ms(every or compiled.stream.every or settings.streams.every, f"every of {name}")
        slots_wanted = _slots(done, compiled, shuffle_partitions(settings, slots), partitions or {})
        plan = _plan(compiled, asked, wait, slots_wanted, slots - held - kept, moving=moving_tables(done, name))
        held += plan.slots
        plans.append(plan)
    return Plan(tuple(plans), slots, held)


def moving_tables(done: Compilation, name: str) -> list[str]:
    """The tables that a stream's query joins and whose rows change: those that are made of topics."""
    inputs = done.graph.inputs[name]
    inner = [table for each in done.streams[name].fused if each in inputs for table in moving_tables(done, each)]
    tables = done.graph.app.tables
    return [each for each in inputs if each in tables and isinstance(tables[each].source, Topic)] + inner


def _plan(
    compiled: Compiled, asked: Speed, wait_ms: int, slots: int, free: int, *, moving: Sequence[str]
) -> StreamPlan:
    stream = compiled.stream
    if asked == "batch":
        return StreamPlan(stream.name, asked, "batch", "", "append", 0, 0, compiled.notes)
    if compiled.against_moving:
        return StreamPlan(stream.name, asked, "batch", compiled.against_moving, "append", 0, 0, compiled.notes)
    if asked == "near-real-time":
        return StreamPlan(stream.name, asked, asked, "", compiled.mode, wait_ms, 0, compiled.notes)
    against = " and ".join(compiled.against_real_time)
    because = ""
    if against and (compiled.fused or stream.emit == "final"):
        because = f"real-time mode sends rows before they are final, and {against}"
    elif against:
        because = f"real-time mode does not take {against}"
    elif slots > free:
        because = f"it would hold {slots} task slots for good, and of Spark's only {max(0, free)} are free"
    if because:
        return StreamPlan(stream.name, asked, "near-real-time", because, compiled.mode, 0, 0, compiled.notes)
    if moving:
        seconds = f"{MOVING_TABLE_BATCH_MS / 1000:g} s"
        note = f"a change of {' or '.join(moving)} counts after at most {seconds}: the batches are that short"
        return StreamPlan(
            stream.name, asked, asked, "", "update", MOVING_TABLE_BATCH_MS, slots, (*compiled.notes, note)
        )
    return StreamPlan(stream.name, asked, asked, "", "update", REAL_TIME_BATCH_MS, slots, compiled.notes)


def _slots(done: Compilation, compiled: Compiled, shuffled: int, partitions: Mapping[str, int]) -> int:
    reads = 0
    for topic in done.sources(compiled.stream.name):
        declared = done.graph.app.topics.get(topic)
        if declared is None:
            writer = next(name for name, each in done.streams.items() if each.stream.target == topic)
            declared = done.output_topic(writer)
        reads += partitions.get(topic, declared.partitions)
    # Rows are split by key before each operator with state, and every part of each holds a slot.
    return reads + shuffled * len(compiled.query.stateful)
