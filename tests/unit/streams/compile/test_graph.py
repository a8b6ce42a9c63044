"""Names, cycles, order and lineage of a pipeline file, without Spark."""

from typing import Any

import pytest

import riverrun as rr
from riverrun.errors import DeclarationError
from riverrun.streams.compile.graph import build_graph, graph_text, mermaid_chart


class Reading(rr.Event):
    house_id: str = rr.key()
    load_kw: float


def same(*frames: Any) -> Any:
    return frames[0]


def made(**streams: str) -> rr.App:
    """An app with the topic `readings`, and streams that read what is named."""
    app = rr.App("city")
    app.topic("readings", Reading)
    for name, inputs in streams.items():
        scope: dict[str, Any] = {"same": same}
        exec(f"def {name}({inputs}): return same({inputs})", scope)  # noqa: S102
        app.stream(scope[name])
    return app


def test_streams_come_after_what_they_read() -> None:
    graph = build_graph(made(last="first, second", second="first", first="readings"))
    assert graph.problems == ()
    assert graph.order == ("first", "second", "last")
    assert graph.readers("first") == ["second", "last"]
    assert [topic.name for topic in graph.topics("last")] == ["readings"]


def test_sql_names_its_inputs() -> None:
    app = made()
    app.table("houses", rr.csv("houses.csv"), key="house_id")
    app.sql("load", "with r as (select * from readings) select * from r join houses using (house_id)")
    graph = build_graph(app)
    assert graph.problems == ()
    assert {name: set(inputs) for name, inputs in graph.inputs.items()} == {"load": {"readings", "houses"}}


def test_all_problems_come_at_once_with_their_lines() -> None:
    app = made(one="readigns", two="nothing_like_it")
    app.sql("three", "select from where")
    app.sql("four", "drop table readings")
    texts = [str(problem) for problem in build_graph(app).problems]
    assert any("one reads readigns, which the app does not have. Did you mean readings?" in text for text in texts)
    assert any("two reads nothing_like_it" in text and "It has readings, one, two" in text for text in texts)
    assert any("The SQL of three cannot be read" in text for text in texts)
    assert any("The SQL of four is DROP. Write one SELECT." in text for text in texts)
    assert all(text.startswith("test_graph.py:") for text in texts)


def test_a_circle_is_shown_whole() -> None:
    (problem,) = build_graph(made(egg="hen", hen="egg")).problems
    assert "in a circle: " in problem.text
    assert {"egg → hen → egg", "hen → egg → hen"} & {problem.text.partition("circle: ")[2]}


def test_a_stream_of_tables_only_does_not_move() -> None:
    app = made()
    app.table("houses", rr.csv("houses.csv"), key="house_id")
    app.sql("load", "select * from houses")
    assert "reads no topic and no stream" in str(build_graph(app).problems[0])


def test_lineage_as_text_and_as_a_picture() -> None:
    graph = build_graph(made(first="readings", second="first"))
    assert graph_text(graph) == "topic readings\n  stream first\n    stream second"
    assert mermaid_chart(graph).splitlines() == [
        "flowchart LR",
        '  n_readings[("readings")]',
        '  n_first("first")',
        '  n_second("second")',
        "  n_readings --> n_first",
        "  n_first --> n_second",
    ]


def test_names_are_shared_by_topics_tables_and_streams() -> None:
    app = made(first="readings")
    with pytest.raises(
        DeclarationError, match=r"first is declared twice in the app city: it is a stream at test_graph\.py:\d+"
    ):
        app.table("first", rr.csv("x.csv"))
    app.sql("a", "select * from readings", topic="out")
    with pytest.raises(DeclarationError, match="both write the topic out"):
        app.sql("b", "select * from readings", topic="out")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"speed": "realtime"}, "Did you mean 'real-time'?"),
        ({"emit": "never"}, '"updates" or "final"'),
        ({"every": "soon"}, "every of bad"),
        ({"colour": "red"}, "has no option 'colour'"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        made().sql("bad", "select * from readings", **options)
    assert said in str(caught.value)


def test_connectors_are_part_of_the_lineage() -> None:
    app = rr.App("web")
    lines: rr.Topic[rr.Event] = app.topic("lines")
    app.source(lines, rr.tail("app.log"), name="log")
    errors = app.sql("errors", "select * from lines where line like '%error%'")
    app.sink(errors, rr.webhook("https://example.org/"), name="hook")
    graph = build_graph(app)
    assert graph_text(graph) == "topic lines ← tail\n  stream errors → webhook"
    assert mermaid_chart(graph).splitlines()[-2:] == [
        '  n_from_log>"tail log"] --> n_lines',
        '  n_errors --> n_to_hook["webhook hook"]',
    ]
