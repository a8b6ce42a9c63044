"""What a change of a stream's code means for its state and rows so far. Only compares two fingerprints.

- `unchanged`: it does the same.
- `compatible`: it goes on, and the new code counts from the next record on; rows from before stay as they are.
- `kept`: as compatible, and its state is what it was.
- `fresh`: the new code cannot use its state or offsets: everything must be read again.
- `refused`: its topic would get rows that readers of the rows from before cannot take.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from riverrun.streams.compile.fingerprint import StreamFingerprint, VersionHistory
from riverrun.streams.compile.plan_text import StatefulOperator

ChangeKind = Literal["new", "unchanged", "compatible", "kept", "fresh", "refused"]

_INTEGERS = ("byte", "short", "integer", "long")
# Conditions longer than this say little on a terminal.
_MAX_CONDITION_CHARS = 160


@dataclass(frozen=True)
class CodeChange:
    """A verdict. `can_keep_state`: the user may insist on going on with the state there is."""

    kind: ChangeKind
    reasons: tuple[str, ...] = ()
    can_keep_state: bool = False
    # The version that the code is again; 0 when it is a new one.
    restored_version: int = 0

    @property
    def summary(self) -> str:
        """For a table: the verdict and why."""
        kinds = {"kept": "compatible, state kept", "fresh": "needs fresh state"}
        kind = kinds.get(self.kind, self.kind)
        return f"{kind}: {self.reason_text}" if self.reasons else kind

    @property
    def reason_text(self) -> str:
        return "; ".join(self.reasons)


def compare_fingerprints(
    old: StreamFingerprint, new: StreamFingerprint, earlier: Sequence[StreamFingerprint] = ()
) -> CodeChange:
    """What a stream that has run as `old` can do as `new`. `earlier` are those it ran as before `old`."""
    if old.digest == new.digest and old.target == new.target:
        return CodeChange("unchanged")
    breaking, notes = _schema_changes(old, new, earlier) if old.target == new.target else ([], [])
    if breaking:
        return CodeChange("refused", tuple(breaking))
    incompatible = list(_incompatible_changes(old, new))
    # If an operator has changed, the plan before it changes too and says nothing more.
    state_changes = list(_state_changes(old, new)) if not incompatible or old.operators == new.operators else []
    if old.target != new.target:
        state_changes.insert(0, f"its rows go to {new.target} now, where those that it made so far are not")
    if incompatible or state_changes:
        return CodeChange(
            "fresh", tuple(dict.fromkeys([*incompatible, *state_changes, *notes])), can_keep_state=not incompatible
        )
    notes = [*_output_changes(old, new), *notes]
    if old.made_with != new.made_with and not notes:
        return CodeChange("unchanged", ("it was made with another version of Spark, Python or riverrun",))
    reasons = tuple(dict.fromkeys(notes)) or ("its code has changed",)
    return CodeChange("kept" if new.stateful else "compatible", reasons)


def compare_with_history(history: VersionHistory, new: StreamFingerprint) -> CodeChange:
    """`compare_fingerprints` with the last version in a stream's history."""
    last = history.last
    if last is None:
        return CodeChange("new")
    change = compare_fingerprints(last.fingerprint, new, [version.fingerprint for version in history.versions[:-1]])
    same_version = history.find_same(new)
    if change.kind == "unchanged" or same_version is None:
        return change
    reasons = (f"it is version {same_version.number} again", *change.reasons)
    return CodeChange(change.kind, reasons, change.can_keep_state, same_version.number)


# --- what the state and the position need ---------------------------------------------------------------------------------


def _incompatible_changes(old: StreamFingerprint, new: StreamFingerprint) -> Iterator[str]:
    """Changes with which the checkpoint cannot be used at all."""
    if old.sources != new.sources:
        if sorted(set(old.sources)) != sorted(set(new.sources)):
            yield f"it reads {_list(new.sources)} instead of {_list(old.sources)}"
        else:
            yield f"it reads its topics in another order ({_list(new.sources)}), and Spark knows them by it"
    if not old.stateful and not new.stateful:
        return
    if not old.stateful:
        yield (
            f"it keeps state now ({_list(operator.kind for operator in new.operators)}), "
            "in which the records so far are not"
        )
        return
    if not new.stateful:
        yield f"it keeps no state any more (it had {_list(operator.kind for operator in old.operators)})"
        return
    if old.mode != new.mode:
        final = "once, when they are final" if new.mode == "append" else "whenever they change"
        yield f"its rows are sent {final} now"
    if [operator.kind for operator in old.operators] != [operator.kind for operator in new.operators]:
        yield (
            f"its state is that of {_list(operator.kind for operator in new.operators)} now, it was that of "
            f"{_list(operator.kind for operator in old.operators)}"
        )
        return
    for before, after in zip(old.operators, new.operators, strict=True):
        yield from _operator_changes(before, after, same_versions=old.made_with == new.made_with)
    if [_column(watermark) for watermark in old.watermarks] != [_column(watermark) for watermark in new.watermarks]:
        yield (
            f"its event time is {_list(_column(watermark) for watermark in new.watermarks) or 'gone'}, it was "
            f"{_list(_column(watermark) for watermark in old.watermarks) or 'none'}"
        )


def _operator_changes(old: StatefulOperator, new: StatefulOperator, *, same_versions: bool) -> Iterator[str]:
    changed = False
    if old.windows != new.windows and old.windows and new.windows:
        changed = True
        yield f"{_list(new.windows)} instead of {_list(old.windows)}"
    if old.kind == "a join of two streams":
        if old.computes != new.computes:
            changed = True
            yield f"the join is {_shortened(_list(new.computes))}, it was {_shortened(_list(old.computes))}"
        for before, after in zip(old.by, new.by, strict=False):
            if before != after:
                changed = True
                yield f"the join keeps the columns {after}, it kept {before}"
    else:
        if old.by != new.by:
            changed = True
            yield f"the keys of {new.kind} are {_list(new.by) or 'none'}, they were {_list(old.by) or 'none'}"
        added = [compute for compute in new.computes if compute not in old.computes]
        removed = [compute for compute in old.computes if compute not in new.computes]
        if added:
            yield f"it computes {_list(added)}, of which its state has nothing"
        if removed:
            yield f"it does not compute {_list(removed)} any more"
        if old.computes != new.computes and not added and not removed:
            yield f"it computes {_list(new.computes)} in another order, and its state goes by the order"
        changed = changed or old.computes != new.computes
    if old.schema_hash != new.schema_hash and same_versions and not changed:
        yield f"the types of what {new.kind} keeps have changed"


def _state_changes(old: StreamFingerprint, new: StreamFingerprint) -> Iterator[str]:
    """Changes with which Spark could go on, but with state made by old and new code together."""
    if not old.stateful or not new.stateful:
        return
    for topic in dict.fromkeys(new.sources):
        for reason, is_compatible in _record_type_changes(
            topic, old.types.get(topic) or {}, new.types.get(topic) or {}
        ):
            if not is_compatible:
                yield reason
    yield from _table_changes(old, new)
    yield from _setting_changes(old, new)
    if old.made_with != new.made_with:
        if old.code != new.code:
            yield (
                "its code, or Python, has changed together with the version of Spark, Python or riverrun, and then riverrun "
                f"cannot tell what of it matters (it was {old.made_with}, it is {new.made_with})"
            )
    elif old.state_hash != new.state_hash:
        changed = list(_function_changes(old.state_functions, new.state_functions))
        changed += list(_line_changes(old.state_lines, new.state_lines, "what it computes before its state"))
        yield from [f"before its state, {reason}" for reason in changed] or ["what goes into its state has changed"]


def _output_changes(old: StreamFingerprint, new: StreamFingerprint) -> Iterator[str]:
    """What counts from the next record on."""
    for topic in dict.fromkeys(new.sources):
        for each, harmless in _record_type_changes(topic, old.types.get(topic) or {}, new.types.get(topic) or {}):
            if harmless or not new.stateful:
                yield each
    if not new.stateful:
        yield from _table_changes(old, new)
        yield from _setting_changes(old, new)
    for before, after in zip(old.watermarks, new.watermarks, strict=False):
        if before != after:
            yield (
                f"records may be {_seconds(after)} late, it was {_seconds(before)}: windows that are over stay over, "
                "and its event-time clock never goes back"
            )
    if old.made_with == new.made_with and old.output_hash != new.output_hash:
        yield from _function_changes(old.output_functions, new.output_functions)
        yield from _line_changes(
            old.output_lines, new.output_lines, "what it makes of its results" if new.stateful else "what it computes"
        )
    elif old.made_with != new.made_with and old.code != new.code:
        yield "its code has changed"
    if old.time != new.time:
        yield f"its rows have the time {new.time or 'of nothing'}, it was {old.time or 'none'}"


def _setting_changes(old: StreamFingerprint, new: StreamFingerprint) -> Iterator[str]:
    for name in sorted({*old.settings, *new.settings}):
        before, after = old.settings.get(name, "not set"), new.settings.get(name, "not set")
        if before != after:
            yield f"the setting {name} is {after}, it was {before}"


def _table_changes(old: StreamFingerprint, new: StreamFingerprint) -> Iterator[str]:
    for name in sorted({*old.tables, *new.tables}):
        if name not in new.tables:
            yield f"it does not read the table {name} any more"
        elif name not in old.tables:
            yield f"it reads the table {name}"
        elif old.tables[name] != new.tables[name]:
            yield f"the table {name} comes from elsewhere"


def _function_changes(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    for name in sorted({*old, *new}):
        if name not in old:
            yield f"it uses the Python function {name}()"
        elif name not in new:
            yield f"it does not use the Python function {name}() any more"
        elif old[name] != new[name]:
            yield f"the Python function {name}() has changed"


def _line_changes(old: Sequence[str], new: Sequence[str], what: str) -> Iterator[str]:
    """Which conditions have changed, or that something has."""
    removed = [_condition(each) for each in old if each not in new]
    added = [_condition(each) for each in new if each not in old]
    removed_conditions, added_conditions = [each for each in removed if each], [each for each in added if each]
    if len(removed_conditions) == len(added_conditions) == 1:
        yield f"the condition {removed_conditions[0]} is {added_conditions[0]} now"
    else:
        yield from (f"the condition {each} is gone" for each in removed_conditions)
        yield from (f"the condition {each} is new" for each in added_conditions)
    if any(each is None for each in [*removed, *added]):
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
        text = _without_parentheses(text)
    # Those of Spark's and riverrun's own making.
    if re.fullmatch(r"_ok|isnotnull\([^()]*\)|pythonUDF\d+", text):
        return ""
    return _shortened(text)


# --- what readers of its topic can take -----------------------------------------------------------------------------------


def _schema_changes(
    old: StreamFingerprint, new: StreamFingerprint, earlier: Sequence[StreamFingerprint]
) -> tuple[list[str], list[str]]:
    """Changes that readers of the rows so far cannot handle, and notes on those that they can."""
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
    breaking, notes = compare_columns(old.columns, new.columns)
    if old.key != new.key:
        breaking.append(f"its key is {_list(new.key) or 'none'}, it was {_list(old.key) or 'none'}")
    return breaking, notes


def compare_columns(old: Mapping[str, Any], new: Mapping[str, Any], path: str = "") -> tuple[list[str], list[str]]:
    """Compare two structs: what a reader of the old one cannot read, and notes on other changes."""
    breaking: list[str] = []
    notes: list[str] = []
    before = {each["name"]: each for each in old.get("fields") or []}
    after = {each["name"]: each for each in new.get("fields") or []}
    removed = [name for name in before if name not in after]
    added = [name for name in after if name not in before]
    if len(removed) == len(added) == 1 and before[removed[0]]["type"] == after[added[0]]["type"]:
        breaking.append(f"the column {path}{removed[0]} is called {path}{added[0]} now")
        added = []
    else:
        breaking += [f"the column {path}{name} is gone" for name in removed]
    notes += [f"the column {path}{name} is new, rows from before do not have it" for name in added]
    for name, field in before.items():
        if name in after:
            breaking_types, type_notes = _compare_types(field["type"], after[name]["type"], f"{path}{name}")
            breaking += breaking_types
            notes += type_notes
            if after[name].get("nullable") and not field.get("nullable"):
                notes.append(f"the column {path}{name} may be null now")
    return breaking, notes


def _compare_types(old: Any, new: Any, path: str) -> tuple[list[str], list[str]]:
    if old == new:
        return [], []
    if isinstance(old, dict) and isinstance(new, dict) and old.get("type") == new.get("type"):
        if old["type"] == "struct":
            return compare_columns(old, new, f"{path}.")
        inner = {"array": "elementType", "map": "valueType"}.get(str(old["type"]), "")
        if inner and (old["type"] != "map" or old.get("keyType") == new.get("keyType")):
            return _compare_types(old[inner], new[inner], f"{path}[]")
    elif _widens(str(old), str(new)):
        return [], [f"{path} is {_type_name(new)} now, it was {_type_name(old)}"]
    return [f"{path} is {_type_name(new)} now, it was {_type_name(old)}"], []


def _widens(old: str, new: str) -> bool:
    """Whether what is written as `new` reads as `old` did, in JSON: a whole number stays one, a fraction stays one."""
    if old in _INTEGERS and new in _INTEGERS:
        return _INTEGERS.index(old) < _INTEGERS.index(new)
    if (old, new) == ("float", "double"):
        return True
    before, after = (re.fullmatch(r"decimal\((\d+),(\d+)\)", each) for each in (old, new))
    return bool(before and after and before[2] == after[2] and int(before[1]) <= int(after[1]))


def _record_type_changes(topic: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """How the records that a topic's readers take have changed, each with whether all earlier ones are still taken alike."""
    if old == new:
        return
    if "columns" in old and "columns" in new:
        breaking, notes = compare_columns(old["columns"], new["columns"])
        yield from ((f"in {topic}, {each}", False) for each in breaking)
        yield from ((f"in {topic}, {each}", " is new" in each) for each in notes)
        return
    before, after = _event_fields(old), _event_fields(new)
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


def _event_fields(kind: Mapping[str, Any]) -> tuple[dict[str, Any], list[str], Any] | None:
    """The fields of an event's JSON schema, those that must be there, and all else it says."""
    schema = kind.get("event")
    if not isinstance(schema, dict):
        return None
    inner = dict(schema.get("$defs") or {})
    event_schema = inner.pop(str(schema.get("$ref", "")).rpartition("/")[2], schema)
    other_keys = {
        name: value for name, value in event_schema.items() if name not in ("properties", "required", "title", "$defs")
    }
    return dict(event_schema.get("properties") or {}), list(event_schema.get("required") or []), (inner, other_keys)


# --- text -----------------------------------------------------------------------------------------------------------------


def _list(items: Any) -> str:
    return ", ".join(items)


def _without_parentheses(text: str) -> str:
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


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_CONDITION_CHARS else f"{text[:_MAX_CONDITION_CHARS]}…"


def _column(watermark: str) -> str:
    return watermark.rpartition(" ")[0]


def _seconds(watermark: str) -> str:
    return f"{int(watermark.rpartition(' ')[2]) / 1000:g} s"


def _type_name(kind: Any) -> str:
    return str(kind.get("type", kind)) if isinstance(kind, dict) else str(kind)
