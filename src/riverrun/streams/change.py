"""What a change of a stream's code means for what it has made so far. Compares two blueprints; asks nobody.

- `unchanged`: it does the same.
- `compatible`: it goes on, and the new code counts from the next record on; rows from before stay as they are.
- `kept`: as compatible, and its state is what it was.
- `fresh`: its state, or where it stands, is of no use to the new code: everything must be read again.
- `refused`: its topic would get rows that readers of the rows from before cannot take.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from riverrun.streams.blueprint import Blueprint, History
from riverrun.streams.plan_text import Operator

Kind = Literal["new", "unchanged", "compatible", "kept", "fresh", "refused"]

_INTEGERS = ("byte", "short", "integer", "long")
# Conditions longer than this say little on a terminal.
_LONGEST = 160


@dataclass(frozen=True)
class Change:
    """A verdict. `may_keep`: the user may insist on going on with the state there is."""

    kind: Kind
    reasons: tuple[str, ...] = ()
    may_keep: bool = False
    # The version that the code is again; 0 when it is a new one.
    back_to: int = 0

    @property
    def words(self) -> str:
        """For a table: the verdict and why."""
        kinds = {"kept": "compatible, state kept", "fresh": "needs fresh state"}
        kind = kinds.get(self.kind, self.kind)
        return f"{kind}: {self.because}" if self.reasons else kind

    @property
    def because(self) -> str:
        return "; ".join(self.reasons)


def judge(old: Blueprint, new: Blueprint, earlier: Sequence[Blueprint] = ()) -> Change:
    """What a stream that has run as `old` can do as `new`. `earlier` are those it ran as before `old`."""
    if old.fingerprint == new.fingerprint and old.target == new.target:
        return Change("unchanged")
    against, told = _output(old, new, earlier) if old.target == new.target else ([], [])
    if against:
        return Change("refused", tuple(against))
    hard = list(_hard(old, new))
    # The parts of a plan move together: where an operator has changed, what is before it says nothing more.
    soft = list(_soft(old, new)) if not hard or old.operators == new.operators else []
    if old.target != new.target:
        soft.insert(0, f"its rows go to {new.target} now, where those that it made so far are not")
    if hard or soft:
        return Change("fresh", tuple(dict.fromkeys([*hard, *soft, *told])), may_keep=not hard)
    told = [*_lighter(old, new), *told]
    if old.made_with != new.made_with and not told:
        return Change("unchanged", ("it was made with another version of Spark, Python or riverrun",))
    reasons = tuple(dict.fromkeys(told)) or ("its code has changed",)
    return Change("kept" if new.stateful else "compatible", reasons)


def judge_history(history: History, new: Blueprint) -> Change:
    """The same against all that is written down of a stream."""
    last = history.last
    if last is None:
        return Change("new")
    found = judge(last.blueprint, new, [each.blueprint for each in history.versions[:-1]])
    before = history.same_as(new)
    if found.kind == "unchanged" or before is None:
        return found
    reasons = (f"it is version {before.number} again", *found.reasons)
    return Change(found.kind, reasons, found.may_keep, before.number)


# --- what the state and the position need ---------------------------------------------------------------------------------


def _hard(old: Blueprint, new: Blueprint) -> Iterator[str]:
    """What the checkpoint cannot be used for at all."""
    if old.sources != new.sources:
        if sorted(set(old.sources)) != sorted(set(new.sources)):
            yield f"it reads {_list(new.sources)} instead of {_list(old.sources)}"
        else:
            yield f"it reads its topics in another order ({_list(new.sources)}), and Spark knows them by it"
    if not old.stateful and not new.stateful:
        return
    if not old.stateful:
        yield f"it keeps state now ({_list(each.kind for each in new.operators)}), in which the records so far are not"
        return
    if not new.stateful:
        yield f"it keeps no state any more (it had {_list(each.kind for each in old.operators)})"
        return
    if old.mode != new.mode:
        final = "once, when they are final" if new.mode == "append" else "whenever they change"
        yield f"its rows are sent {final} now"
    if [each.kind for each in old.operators] != [each.kind for each in new.operators]:
        yield (
            f"its state is that of {_list(each.kind for each in new.operators)} now, it was that of "
            f"{_list(each.kind for each in old.operators)}"
        )
        return
    for before, after in zip(old.operators, new.operators, strict=True):
        yield from _operator(before, after, same=old.made_with == new.made_with)
    if [_column(each) for each in old.watermarks] != [_column(each) for each in new.watermarks]:
        yield (
            f"its event time is {_list(_column(each) for each in new.watermarks) or 'gone'}, it was "
            f"{_list(_column(each) for each in old.watermarks) or 'none'}"
        )


def _operator(old: Operator, new: Operator, *, same: bool) -> Iterator[str]:
    found = False
    if old.windows != new.windows and old.windows and new.windows:
        found = True
        yield f"{_list(new.windows)} instead of {_list(old.windows)}"
    if old.kind == "a join of two streams":
        if old.computes != new.computes:
            found = True
            yield f"the join is {_short(_list(new.computes))}, it was {_short(_list(old.computes))}"
        for before, after in zip(old.by, new.by, strict=False):
            if before != after:
                found = True
                yield f"the join keeps the columns {after}, it kept {before}"
    else:
        if old.by != new.by:
            found = True
            yield f"the keys of {new.kind} are {_list(new.by) or 'none'}, they were {_list(old.by) or 'none'}"
        more = [each for each in new.computes if each not in old.computes]
        less = [each for each in old.computes if each not in new.computes]
        if more:
            yield f"it computes {_list(more)}, of which its state has nothing"
        if less:
            yield f"it does not compute {_list(less)} any more"
        if old.computes != new.computes and not more and not less:
            yield f"it computes {_list(new.computes)} in another order, and its state goes by the order"
        found = found or old.computes != new.computes
    if old.form != new.form and same and not found:
        yield f"the types of what {new.kind} keeps have changed"


def _soft(old: Blueprint, new: Blueprint) -> Iterator[str]:
    """Where Spark could go on, with a state that old and new code have made together."""
    if not old.stateful or not new.stateful:
        return
    for topic in dict.fromkeys(new.sources):
        for each, harmless in _record_type(topic, old.types.get(topic) or {}, new.types.get(topic) or {}):
            if not harmless:
                yield each
    yield from _tables(old, new)
    yield from _settings(old, new)
    if old.made_with != new.made_with:
        if old.code != new.code:
            yield (
                "its code, or Python, has changed together with the version of Spark, Python or riverrun, and then riverrun "
                f"cannot tell what of it matters (it was {old.made_with}, it is {new.made_with})"
            )
    elif old.region != new.region:
        changed = list(_functions(old.functions_below, new.functions_below))
        changed += list(_lines(old.below, new.below, "what it computes before its state"))
        yield from [f"before its state, {each}" for each in changed] or ["what goes into its state has changed"]


def _lighter(old: Blueprint, new: Blueprint) -> Iterator[str]:
    """What counts from the next record on."""
    for topic in dict.fromkeys(new.sources):
        for each, harmless in _record_type(topic, old.types.get(topic) or {}, new.types.get(topic) or {}):
            if harmless or not new.stateful:
                yield each
    if not new.stateful:
        yield from _tables(old, new)
        yield from _settings(old, new)
    for before, after in zip(old.watermarks, new.watermarks, strict=False):
        if before != after:
            yield (
                f"records may be {_seconds(after)} late, it was {_seconds(before)}: windows that are over stay over, "
                "and its event-time clock never goes back"
            )
    if old.made_with == new.made_with and old.rest != new.rest:
        yield from _functions(old.functions, new.functions)
        yield from _lines(old.above, new.above, "what it makes of its results" if new.stateful else "what it computes")
    elif old.made_with != new.made_with and old.code != new.code:
        yield "its code has changed"
    if old.time != new.time:
        yield f"its rows have the time {new.time or 'of nothing'}, it was {old.time or 'none'}"


def _settings(old: Blueprint, new: Blueprint) -> Iterator[str]:
    for name in sorted({*old.settings, *new.settings}):
        before, after = old.settings.get(name, "not set"), new.settings.get(name, "not set")
        if before != after:
            yield f"the setting {name} is {after}, it was {before}"


def _tables(old: Blueprint, new: Blueprint) -> Iterator[str]:
    for name in sorted({*old.tables, *new.tables}):
        if name not in new.tables:
            yield f"it does not read the table {name} any more"
        elif name not in old.tables:
            yield f"it reads the table {name}"
        elif old.tables[name] != new.tables[name]:
            yield f"the table {name} comes from elsewhere"


def _functions(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    for name in sorted({*old, *new}):
        if name not in old:
            yield f"it uses the Python function {name}()"
        elif name not in new:
            yield f"it does not use the Python function {name}() any more"
        elif old[name] != new[name]:
            yield f"the Python function {name}() has changed"


def _lines(old: Sequence[str], new: Sequence[str], what: str) -> Iterator[str]:
    """Which conditions have changed, or that something has."""
    gone = [_condition(each) for each in old if each not in new]
    came = [_condition(each) for each in new if each not in old]
    less, more = [each for each in gone if each], [each for each in came if each]
    if len(less) == len(more) == 1:
        yield f"the condition {less[0]} is {more[0]} now"
    else:
        yield from (f"the condition {each} is gone" for each in less)
        yield from (f"the condition {each} is new" for each in more)
    if any(each is None for each in [*gone, *came]):
        yield f"{what} has changed"


def _condition(line: str) -> str | None:
    """A filter in words, empty when it is none of the user's; None for what is no filter."""
    text = line.removeprefix("~")
    if not text.startswith("Filter "):
        return None
    text = text.removeprefix("Filter ").removesuffix(": boolean")
    before = ""
    while before != text:
        before = text
        text = re.sub(r"\b(isnotnull\([^()]*\)|_ok) AND ", "", text)
        text = re.sub(r" AND (isnotnull\([^()]*\)|_ok)(?=\)|$)", "", text)
        text = _bare(text)
    # Those of Spark's and riverrun's own making.
    if re.fullmatch(r"_ok|isnotnull\([^()]*\)|pythonUDF\d+", text):
        return ""
    return _short(text)


# --- what readers of its topic can take -----------------------------------------------------------------------------------


def _output(old: Blueprint, new: Blueprint, earlier: Sequence[Blueprint]) -> tuple[list[str], list[str]]:
    """What readers of the rows so far could not take, and what they can and should know."""
    for each in earlier:
        if (
            (each.target, each.columns, each.key)
            == (new.target, new.columns, new.key)
            != (
                old.target,
                old.columns,
                old.key,
            )
        ):
            return [], [f"its rows are as they were before, and {new.target} has such rows"]
    against, told = columns_change(old.columns, new.columns)
    if old.key != new.key:
        against.append(f"its key is {_list(new.key) or 'none'}, it was {_list(old.key) or 'none'}")
    return against, told


def columns_change(old: Mapping[str, Any], new: Mapping[str, Any], path: str = "") -> tuple[list[str], list[str]]:
    """Against the change of a struct: what a reader of the old one cannot take; and what is told of it."""
    against: list[str] = []
    told: list[str] = []
    before = {each["name"]: each for each in old.get("fields") or []}
    after = {each["name"]: each for each in new.get("fields") or []}
    gone = [name for name in before if name not in after]
    came = [name for name in after if name not in before]
    if len(gone) == len(came) == 1 and before[gone[0]]["type"] == after[came[0]]["type"]:
        against.append(f"the column {path}{gone[0]} is called {path}{came[0]} now")
        came = []
    else:
        against += [f"the column {path}{name} is gone" for name in gone]
    told += [f"the column {path}{name} is new, rows from before do not have it" for name in came]
    for name, field in before.items():
        if name in after:
            worse, known = _type_change(field["type"], after[name]["type"], f"{path}{name}")
            against += worse
            told += known
            if after[name].get("nullable") and not field.get("nullable"):
                told.append(f"the column {path}{name} may be null now")
    return against, told


def _type_change(old: Any, new: Any, path: str) -> tuple[list[str], list[str]]:
    if old == new:
        return [], []
    if isinstance(old, dict) and isinstance(new, dict) and old.get("type") == new.get("type"):
        if old["type"] == "struct":
            return columns_change(old, new, f"{path}.")
        inner = {"array": "elementType", "map": "valueType"}.get(str(old["type"]), "")
        if inner and (old["type"] != "map" or old.get("keyType") == new.get("keyType")):
            return _type_change(old[inner], new[inner], f"{path}[]")
    elif _widens(str(old), str(new)):
        return [], [f"{path} is {_kind(new)} now, it was {_kind(old)}"]
    return [f"{path} is {_kind(new)} now, it was {_kind(old)}"], []


def _widens(old: str, new: str) -> bool:
    """Whether what is written as `new` reads as `old` did, in JSON: a whole number stays one, a fraction stays one."""
    if old in _INTEGERS and new in _INTEGERS:
        return _INTEGERS.index(old) < _INTEGERS.index(new)
    if (old, new) == ("float", "double"):
        return True
    before, after = (re.fullmatch(r"decimal\((\d+),(\d+)\)", each) for each in (old, new))
    return bool(before and after and before[2] == after[2] and int(before[1]) <= int(after[1]))


def _record_type(topic: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """How the records that a topic's readers take have changed, each with whether all earlier ones are still taken alike."""
    if old == new:
        return
    if "columns" in old and "columns" in new:
        against, told = columns_change(old["columns"], new["columns"])
        yield from ((f"in {topic}, {each}", False) for each in against)
        yield from ((f"in {topic}, {each}", " is new" in each) for each in told)
        return
    before, after = _fields(old), _fields(new)
    if before is None or after is None:
        yield f"the type of {topic} has changed", False
        return
    for name in before[0]:
        if name not in after[0]:
            yield f"{topic} has no field {name} any more", False
        elif before[0][name] != after[0][name]:
            yield f"the field {name} of {topic} has another type or other bounds", False
        elif (name in before[1]) != (name in after[1]):
            yield f"the field {name} of {topic} is {'required' if name in after[1] else 'optional'} now", False
    for name in after[0]:
        if name not in before[0]:
            needed = name in after[1]
            yield f"{topic} has a new{' required' if needed else ''} field {name}", not needed
    if before[2:] != after[2:] or old.get("time") != new.get("time"):
        yield f"the type of {topic} has changed", False


def _fields(kind: Mapping[str, Any]) -> tuple[dict[str, Any], list[str], Any] | None:
    """The fields of an event's JSON schema, those that must be there, and all else it says."""
    schema = kind.get("event")
    if not isinstance(schema, dict):
        return None
    inner = dict(schema.get("$defs") or {})
    own = inner.pop(str(schema.get("$ref", "")).rpartition("/")[2], schema)
    more = {name: value for name, value in own.items() if name not in ("properties", "required", "title", "$defs")}
    return dict(own.get("properties") or {}), list(own.get("required") or []), (inner, more)


# --- words ----------------------------------------------------------------------------------------------------------------


def _list(items: Any) -> str:
    return ", ".join(items)


def _bare(text: str) -> str:
    """Without parentheses around all of it, and without double ones."""
    ends: dict[int, int] = {}
    opened: list[int] = []
    for at, each in enumerate(text):
        if each == "(":
            opened.append(at)
        elif each == ")" and opened:
            ends[opened.pop()] = at
    double = {at for at, end in ends.items() if ends.get(at - 1) == end + 1 or (at, end) == (0, len(text) - 1)}
    return "".join(each for at, each in enumerate(text) if at not in double | {ends[opening] for opening in double})


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _column(watermark: str) -> str:
    return watermark.rpartition(" ")[0]


def _seconds(watermark: str) -> str:
    return f"{int(watermark.rpartition(' ')[2]) / 1000:g} s"


def _kind(kind: Any) -> str:
    return str(kind.get("type", kind)) if isinstance(kind, dict) else str(kind)
