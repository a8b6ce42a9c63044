"""What an edit means for a stream that has run, judged by two blueprints; and the file that keeps them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from riverrun.errors import CheckpointError
from riverrun.streams.checkpoint import CheckpointOffsets, read_checkpoint_offsets
from riverrun.streams.compile.fingerprint import HISTORY_FILE, StreamFingerprint, VersionHistory
from riverrun.streams.compile.plan_text import StatefulOperator
from riverrun.streams.evolve.change import CodeChange, compare_fingerprints, compare_with_history

GROUP = "groupBy().agg()"
JOIN = "a join of two streams"


def struct(*fields: tuple[str, Any] | tuple[str, Any, bool]) -> dict[str, Any]:
    made = [(field[0], field[1], field[2] if len(field) > 2 else True) for field in fields]
    return {
        "type": "struct",
        "fields": [{"name": name, "type": kind, "nullable": null, "metadata": {}} for name, kind, null in made],
    }


def event(required: tuple[str, ...] = ("house",), **fields: Any) -> dict[str, Any]:
    own = {"type": "object", "properties": fields or {"house": {"type": "string"}}, "required": list(required)}
    return {"event": {"$ref": "#/$defs/Reading", "$defs": {"Reading": own}}, "time": "at"}


PLAIN = StreamFingerprint(
    name="high",
    target="high",
    columns=struct(("house", "string"), ("load", "double")),
    key=("house",),
    mode="append",
    sources=("readings",),
    types={"readings": event()},
    output_hash="r1",
    output_lines=("~Filter (isnotnull(load) AND (_ok AND (load > 2.0)))", "~Project [house, load]"),
    code="c1",
    made_with="1 spark 4.3.0 python 3.11",
)
SUMS = replace(
    PLAIN,
    name="sums",
    target="sums",
    mode="update",
    watermarks=("at 120000",),
    operators=(StatefulOperator(GROUP, ("window", "house"), ("sum(load)",), ("windows of 60 s every 60 s",), "f1"),),
    state_hash="s1",
    state_lines=("~Filter (_ok AND (load > 2.0))",),
    output_lines=("results [house, sum(load) AS load]",),
)


def operator(**changes: Any) -> tuple[StatefulOperator, ...]:
    return (replace(SUMS.operators[0], schema_hash="f2", **changes),)


def same(what: StreamFingerprint, **changes: Any) -> tuple[StreamFingerprint, StreamFingerprint]:
    return what, replace(what, **changes)


@pytest.mark.parametrize("blueprint", [PLAIN, SUMS])
def test_the_same_is_unchanged(blueprint: StreamFingerprint) -> None:
    assert compare_fingerprints(blueprint, replace(blueprint)) == CodeChange("unchanged")
    # What the code looks like is no part of what it does.
    assert compare_fingerprints(blueprint, replace(blueprint, code="c2")).kind == "unchanged"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {
                "output_hash": "r2",
                "output_lines": ("~Filter (isnotnull(load) AND (_ok AND (load > 3.0)))", PLAIN.output_lines[1]),
            },
            "the condition load > 2.0 is load > 3.0 now",
        ),
        ({"output_hash": "r2", "output_lines": (PLAIN.output_lines[1],)}, "the condition load > 2.0 is gone"),
        (
            {"output_hash": "r2", "output_lines": (PLAIN.output_lines[0], "~Project [house, (load * 2.0) AS load]")},
            "what it computes has changed",
        ),
        ({"output_hash": "r2"}, "its code has changed"),
        ({"output_hash": "r2", "output_functions": {"big": "h"}}, "it uses the Python function big()"),
        ({"columns": struct(("house", "string"), ("load", "double"), ("n", "long"))}, "the column n is new"),
        ({"columns": struct(("load", "double"), ("house", "string"))}, "its code has changed"),
        ({"types": {"readings": event(("house", "n"), house={"type": "string"}, n={})}}, "a new required field n"),
        ({"tables": {"houses": "csv a.csv"}}, "it reads the table houses"),
        ({"time": "at"}, "its rows have the time at"),
    ],
)
def test_without_state_the_new_code_counts_from_now_on(change: dict[str, Any], reason: str) -> None:
    found = compare_fingerprints(*same(PLAIN, **change))
    assert found.kind == "compatible"
    assert reason in found.reason_text


def test_a_function_that_has_changed_is_named() -> None:
    old = replace(PLAIN, output_functions={"big": "h1"})
    assert compare_fingerprints(old, replace(old, output_functions={"big": "h2"}, output_hash="r2")).reasons == (
        "the Python function big() has changed",
    )
    old = replace(SUMS, state_functions={"big": "h1"})
    found = compare_fingerprints(old, replace(old, state_functions={"big": "h2"}, state_hash="s2"))
    assert (found.kind, found.can_keep_state) == ("fresh", True)
    assert found.reasons == ("before its state, the Python function big() has changed",)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"output_hash": "r2", "output_lines": ("results [house, (sum(load) * 2) AS load]",)},
            "what it makes of its results",
        ),
        ({"watermarks": ("at 60000",)}, "records may be 60 s late, it was 120 s"),
        ({"columns": struct(("house", "string"), ("load", "double"), ("x", "string"))}, "the column x is new"),
        ({"types": {"readings": event(house={"type": "string"}, more={})}}, "readings has a new field more"),
    ],
)
def test_what_is_above_the_state_leaves_it(change: dict[str, Any], reason: str) -> None:
    found = compare_fingerprints(*same(SUMS, **change))
    assert found.kind == "kept"
    assert reason in found.reason_text


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"operators": operator(by=("window",))}, f"the keys of {GROUP} are window, they were window, house"),
        ({"operators": operator(computes=("sum(load)", "count(1)"))}, "it computes count(1), of which its state"),
        ({"operators": operator(computes=())}, "it does not compute sum(load) any more"),
        ({"operators": operator(windows=("windows of 300 s every 60 s",))}, "windows of 300 s every 60 s instead of"),
        ({"operators": operator()}, f"the types of what {GROUP} keeps have changed"),
        ({"operators": operator(kind="dropDuplicates()")}, f"dropDuplicates() now, it was that of {GROUP}"),
        ({"operators": SUMS.operators * 2}, f"{GROUP}, {GROUP} now"),
        ({"operators": (), "state_hash": ""}, "it keeps no state any more"),
        ({"sources": ("others",)}, "it reads others instead of readings"),
        ({"mode": "append"}, "its rows are sent once, when they are final now"),
        ({"watermarks": ("seen 120000",)}, "its event time is seen, it was at"),
    ],
)
def test_what_the_state_is_made_of_needs_a_fresh_one(change: dict[str, Any], reason: str) -> None:
    found = compare_fingerprints(
        *same(SUMS, state_hash="s2") if not change else same(SUMS, **{"state_hash": "s2", **change})
    )
    assert (found.kind, found.can_keep_state) == ("fresh", False)
    assert reason in found.reason_text


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"state_hash": "s2", "state_lines": ("~Filter (_ok AND (load > 3.0))",)},
            "before its state, the condition load > 2.0 is load > 3.0 now",
        ),
        ({"state_hash": "s2"}, "what goes into its state has changed"),
        ({"types": {"readings": event((), house={"type": "string"})}}, "house of readings is optional now"),
        (
            {"types": {"readings": event(house={"type": "string", "minLength": 1})}},
            "house of readings has another type",
        ),
        ({"tables": {"houses": "csv b.csv"}}, "it reads the table houses"),
        (
            {"settings": {"spark.sql.ansi.enabled": "false"}},
            "the setting spark.sql.ansi.enabled is false, it was not set",
        ),
        ({"target": "elsewhere"}, "its rows go to elsewhere now"),
    ],
)
def test_on_what_is_below_the_user_may_insist(change: dict[str, Any], reason: str) -> None:
    found = compare_fingerprints(*same(SUMS, **change))
    assert (found.kind, found.can_keep_state) == ("fresh", True)
    assert reason in found.reason_text


def test_state_that_comes_or_topics_that_change_places() -> None:
    assert "it keeps state now" in compare_fingerprints(PLAIN, replace(SUMS, target="high")).reason_text
    both = replace(PLAIN, sources=("a", "b"))
    found = compare_fingerprints(both, replace(both, sources=("b", "a")))
    assert (found.kind, found.can_keep_state) == ("fresh", False)
    assert "in another order" in found.reason_text
    assert compare_fingerprints(PLAIN, replace(PLAIN, sources=("others",))).kind == "fresh"


def test_a_join_goes_by_its_columns_and_its_condition() -> None:
    old = replace(
        SUMS, operators=(StatefulOperator(JOIN, ("house string", "house string"), ("Inner (a = b)",), (), "f1"),)
    )
    wider = (replace(old.operators[0], by=("house string, at timestamp", "house string"), schema_hash="f2"),)
    assert (
        "the join keeps the columns house string, at timestamp, it kept house string"
        in compare_fingerprints(old, replace(old, operators=wider, state_hash="s2")).reason_text
    )
    other = (replace(old.operators[0], computes=("LeftOuter (a = b)",), schema_hash="f2"),)
    assert (
        "the join is LeftOuter (a = b), it was Inner (a = b)"
        in compare_fingerprints(old, replace(old, operators=other, state_hash="s2")).reason_text
    )


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        (struct(("house", "string")), "the column load is gone"),
        (struct(("house", "string"), ("kw", "double")), "the column load is called kw now"),
        (struct(("house", "string"), ("load", "float")), "load is float now, it was double"),
        (struct(("house", "string"), ("load", "long")), "load is long now, it was double"),
        (struct(("house", "string"), ("load", "string")), "load is string now, it was double"),
        (struct(("house", "string"), ("load", struct(("kw", "double")))), "load is struct now, it was double"),
    ],
)
@pytest.mark.parametrize("blueprint", [PLAIN, SUMS])
def test_rows_that_readers_cannot_take_are_refused(
    blueprint: StreamFingerprint, columns: dict[str, Any], reason: str
) -> None:
    found = compare_fingerprints(
        blueprint, replace(blueprint, columns=columns, output_hash="r2", state_hash=blueprint.state_hash)
    )
    assert (found.kind, found.reason_text) == ("refused", reason)


def test_another_key_is_refused() -> None:
    assert compare_fingerprints(PLAIN, replace(PLAIN, key=("load",))) == CodeChange(
        "refused", ("its key is load, it was house",)
    )
    assert compare_fingerprints(PLAIN, replace(PLAIN, key=())).kind == "refused"
    # In another topic nobody has read it by the old one.
    assert compare_fingerprints(PLAIN, replace(PLAIN, key=(), target="other")).kind != "refused"


@pytest.mark.parametrize(
    ("old", "new", "fine"),
    [
        ("byte", "short", True), ("short", "integer", True), ("integer", "long", True), ("long", "integer", False),
        ("float", "double", True), ("double", "float", False), ("integer", "double", False), ("long", "string", False),
        ("decimal(10,2)", "decimal(12,2)", True), ("decimal(12,2)", "decimal(10,2)", False),
        ("decimal(10,2)", "decimal(12,3)", False), ("timestamp", "date", False), ("string", "binary", False),
        (struct(("a", "integer")), struct(("a", "long"), ("b", "string")), True),
        (struct(("a", "integer")), struct(("b", "integer")), False),
        ({"type": "array", "elementType": "integer"}, {"type": "array", "elementType": "long"}, True),
        ({"type": "array", "elementType": "long"}, {"type": "array", "elementType": "integer"}, False),
        ({"type": "map", "keyType": "string", "valueType": "float"},
         {"type": "map", "keyType": "string", "valueType": "double"}, True),
        ({"type": "map", "keyType": "string", "valueType": "float"},
         {"type": "map", "keyType": "integer", "valueType": "float"}, False),
    ],
)  # fmt: skip
def test_types_may_widen_where_json_reads_alike(old: Any, new: Any, fine: bool) -> None:
    before, after = same(replace(PLAIN, columns=struct(("x", old))), columns=struct(("x", new)))
    assert compare_fingerprints(before, after).kind == ("compatible" if fine else "refused")


def test_a_column_that_may_be_null_is_told() -> None:
    before, after = same(replace(PLAIN, columns=struct(("x", "long", False))), columns=struct(("x", "long", True)))
    assert compare_fingerprints(before, after) == CodeChange("compatible", ("the column x may be null now",))


def test_other_versions_of_spark_are_compared_by_what_can_be() -> None:
    newer = {"made_with": "1 spark 5.0.0 python 3.11", "state_hash": "other", "output_hash": "other"}
    assert compare_fingerprints(*same(SUMS, **newer)).kind == "unchanged"
    assert compare_fingerprints(*same(PLAIN, **newer, code="c2")).kind == "compatible"
    found = compare_fingerprints(*same(SUMS, **newer, code="c2"))
    assert (found.kind, found.can_keep_state) == ("fresh", True)
    # The form of the state is written in other words by another Spark; its functions are not.
    assert compare_fingerprints(*same(SUMS, **newer, operators=operator())).kind == "unchanged"
    assert compare_fingerprints(*same(SUMS, **newer, operators=operator(computes=("sum(x)",)))).kind == "fresh"


def test_the_words_of_a_verdict() -> None:
    assert CodeChange("unchanged").summary == "unchanged"
    assert CodeChange("kept", ("a", "b")).summary == "compatible, state kept: a; b"
    assert CodeChange("fresh", ("a",)).summary == "needs fresh state: a"


# --- history --------------------------------------------------------------------------------------------------------------


def test_a_history_is_what_was_written(tmp_path: Path) -> None:
    file = tmp_path / "sums" / HISTORY_FILE
    assert StreamFingerprint.read(file) is None
    SUMS.write(file)
    VersionHistory.read(file).add_version(PLAIN, since_batch=5, after_batch=4, begin={"readings": {0: 7}}).write(file)
    found = VersionHistory.read(file)
    assert [version.fingerprint for version in found.versions] == [SUMS, PLAIN]
    assert [version.digest for version in found.versions] == [SUMS.digest, PLAIN.digest]
    assert [(version.number, version.since_batch, version.fresh) for version in found.versions] == [
        (1, 0, True),
        (2, 5, False),
    ]
    assert found.versions[1].begin == {"readings": {0: 7}}
    assert StreamFingerprint.read(file) == PLAIN


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"versions": [{}]}', '{"versions": [{"number": 1}]}'])
def test_a_history_that_makes_no_sense_is_not_guessed(tmp_path: Path, content: str) -> None:
    (tmp_path / HISTORY_FILE).write_text(content)
    with pytest.raises(CheckpointError, match="--fresh"):
        VersionHistory.read(tmp_path / HISTORY_FILE)


def test_going_back_says_to_which_version() -> None:
    more = replace(PLAIN, columns=struct(("house", "string"), ("load", "double"), ("n", "long")), output_hash="r2")
    history = VersionHistory().add_version(PLAIN, fresh=True).add_version(more, since_batch=3)
    back = compare_with_history(history, PLAIN)
    # Rows without the column are in the topic already.
    assert (back.kind, back.restored_version) == ("compatible", 1)
    assert back.reasons[0] == "it is version 1 again"
    less = replace(PLAIN, columns=struct(("house", "string")))
    assert compare_with_history(history, less).kind == "refused"
    assert compare_with_history(VersionHistory(), PLAIN).kind == "new"
    wider = replace(SUMS, operators=operator(by=("house",)), state_hash="s2")
    gone = compare_with_history(VersionHistory().add_version(SUMS).add_version(wider, fresh=True), SUMS)
    assert (gone.kind, gone.restored_version) == ("fresh", 1)


def test_a_version_that_ran_no_batch_does_not_count() -> None:
    history = VersionHistory().add_version(PLAIN).add_version(SUMS, since_batch=5, after_batch=4)
    assert history.without_unused_version(4, 4).versions == history.versions[:1]
    assert history.without_unused_version(5, 5) == history
    # A batch that is cut off may have been begun by either.
    assert history.without_unused_version(4, 5) == history
    assert VersionHistory().add_version(PLAIN).without_unused_version(-1, -1).versions


def test_the_state_is_made_by_the_versions_since_it_began() -> None:
    history = (
        VersionHistory()
        .add_version(PLAIN, fresh=True)
        .add_version(SUMS)
        .add_version(SUMS, fresh=True)
        .add_version(PLAIN)
    )
    assert [each.number for each in history.state_versions] == [3, 4]
    assert [each.number for each in VersionHistory().add_version(PLAIN).state_versions] == [1]


def test_a_position_is_read_off_sparks_files(tmp_path: Path) -> None:
    assert read_checkpoint_offsets(tmp_path) == CheckpointOffsets()
    for folder in ("offsets", "commits"):
        (tmp_path / folder).mkdir()
    conf = json.dumps({"batchWatermarkMs": 0, "conf": {"spark.sql.shuffle.partitions": "2"}})
    for batch in (0, 1):
        (tmp_path / "offsets" / str(batch)).write_text(f'v1\n{conf}\n{{"readings":{{"0":{batch + 3}}}}}')
    (tmp_path / "commits" / "0").write_text("v1\n{}")
    assert read_checkpoint_offsets(tmp_path) == CheckpointOffsets(0, 1, {"readings": {0: 4}}, 2)
