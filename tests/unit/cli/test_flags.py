"""What the commands refuse before they talk to any cluster: exit code 2, one message."""

from pathlib import Path

import pytest

from riverrun.cli.main import run


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder without a cluster: whoever asks for one fails with NOT_RUNNING and exit code 1."""
    for name in ("RIVERRUN_KAFKA_BOOTSTRAP_SERVERS", "RIVERRUN_PROJECT", "RIVERRUN_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("produce t --csv --text", "--csv and --text cannot be had at once"),
        ("produce t --key a --key-separator :", "--key and --key-separator cannot be had at once"),
        ("produce t --text --key a", "Use --key-separator"),
        ("produce t --csv --key-separator :", "Use --key COLUMN"),
        ("produce t --rate 0", "0"),
        ("produce t --app nowhere.py", "There is no pipeline file"),
        ("consume t --json --table", "--json and --table cannot be had at once"),
        ("consume t --follow --to 5", "--follow has no end"),
        ("consume t --from whenever", "--from cannot be understood"),
        ("consume t --to sometime", "--to cannot be understood"),
        ("consume t --where n", "A condition cannot be understood"),
        ("consume t --group g --to 5", "Leave --to or --group out"),
        ("offsets move g", "exactly one of"),
        ("offsets move g --to-time soon", "--to-time cannot be understood"),
        ("dlq show t --raw", "Name it with --offset"),
        ("dlq show t --where n", "A condition cannot be understood"),
        ("dlq redrive t --fix nowhere.py", "--fix names no Python file"),
        ("dlq redrive t --limit 0", "0"),
        ("alerts", "No pipeline file is named"),
        ("alerts list --since whenever", "--since cannot be understood"),
        ("alerts show overload", "No pipeline file is named"),
        ("alerts silence --for soon", "--for cannot be understood"),
        ("alerts silence --for forever", "1 minute to 30 days"),
        ("alerts silence", "Missing option '--for'"),
        ("alerts test", "Missing argument 'ALERT'"),
        ("alerts dry-run --since 1h --until 2h", "--until is not after --since"),
        ("alerts dry-run --until whenever", "--until cannot be understood"),
        ("run app.py --every parsecs", "--every cannot be understood. Expected a duration such as"),
        ("plan app.py --every forever", "--every cannot be for ever"),
        ("connect offsets log --reset --set x", "--reset and --set cannot be had at once"),
        ("connect create", "Missing argument 'NAME'"),
        ("topics apply", "There is no app to apply"),
        ("topics apply --app nowhere.py", "There is no pipeline file"),
        ("topics create t --config x", "--config cannot be understood"),
        ("topics create t --retention soon", "cannot be understood"),
        ("topics create a/b", "cannot be the name of a topic"),
    ],
)
def test_a_wrong_request_is_refused(arguments: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments.split()) == 2
    assert told in capsys.readouterr().err


def test_druid_beside_an_attached_kafka_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RIVERRUN_KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    assert run(["up", "--druid"]) == 2
    assert "druid.url" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    ["topics", "groups", "offsets show g", "consume t", "produce t", "topics describe t", "dlq list", "dlq redrive t"],
)
def test_without_a_cluster_the_way_to_one_is_said(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments.split()) == 1
    told = capsys.readouterr().err
    assert told.startswith("NOT_RUNNING")
    assert "riverrun up --detach" in told
