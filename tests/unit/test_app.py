"""Reading a pipeline file: what is said of one that has no app, or more than one, or an app without streams."""

from pathlib import Path

import pytest

import riverrun as rr
from riverrun.app import load_app
from riverrun.errors import DeclarationError, PipelineError
from riverrun.streams.pipeline import build_checked_graph


def written(folder: Path, text: str) -> Path:
    path = folder / "meters.py"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "meters.py is empty"),
        ("\n\n", "meters.py is empty"),
        ("import riverrun\n", "meters.py has no riverrun.App"),
    ],
)
def test_a_file_without_an_app_says_what_to_write(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        load_app(written(tmp_path, text))
    assert f"{tmp_path}/{said}" in caught.value.what
    assert 'app = riverrun.App("meters")' in caught.value.expected
    assert "riverrun init" in caught.value.hint


def test_a_file_with_two_apps_names_them(tmp_path: Path) -> None:
    with pytest.raises(DeclarationError) as caught:
        load_app(written(tmp_path, 'import riverrun\na = riverrun.App("one")\nb = riverrun.App("two")\n'))
    assert caught.value.what.endswith("has 2 riverrun.App: one, two")
    assert "a file of its own" in caught.value.hint


def test_an_app_knows_its_file(tmp_path: Path) -> None:
    path = written(tmp_path, 'import riverrun\napp = riverrun.App("meters")\n')
    assert load_app(path).file == str(path)
    made = rr.App("here")
    assert made.file == ""
    made.topic("readings")
    assert made.file == __file__


@pytest.mark.parametrize(
    ("topic", "said"),
    [
        ("", "no topic to read"),
        ("readings", 'app.sql("NAME", "SELECT * FROM readings"), or a function of readings below @app.stream'),
        ("readings-raw", 'app.sql("NAME", "SELECT * FROM TOPIC")'),
    ],
)
def test_an_app_without_streams_says_where_and_what_to_write(tmp_path: Path, topic: str, said: str) -> None:
    declared = f"app.topic({topic!r})\n" if topic else ""
    path = written(tmp_path, f'import riverrun\napp = riverrun.App("meters")\n{declared}')
    with pytest.raises(PipelineError) as caught:
        build_checked_graph(load_app(path))
    assert caught.value.what == f"1 problem in {path}"
    assert caught.value.problems[0].startswith("The app meters has no streams")
    assert said in caught.value.problems[0]
