"""riverrun.toml as it may also be: too large, too deep, no file at all, half of it broken."""

import errno
import os
from pathlib import Path

import pytest

from riverrun.cli.main import run
from riverrun.config import Project, find_project, load
from riverrun.errors import ConfigError


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def problems(project: Project, content: str | bytes = "", **environ: str) -> list[str]:
    if content:
        project.config_file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError) as caught:
        load(project, environ=environ)
    return list(caught.value.problems)


def test_deep_nesting_is_a_problem_and_no_crash(project: Project) -> None:
    [problem] = problems(project, "[kafka]\nclient = " + "[" * 500 + "]" * 500)
    assert problem == "riverrun.toml: its values are nested too deeply to be read"
    # tomllib takes time by the square of these.
    assert problems(project, ".".join("a" * 500_000) + " = 1\n") == [problem]
    [problem] = problems(project, "[kafka.client." + ".".join("a" * 20) + "]\nx = 1\n")
    assert problem == "riverrun.toml:1: kafka.client must be a table of text, numbers or true/false"


def test_a_large_file_is_not_read(project: Project) -> None:
    [problem] = problems(project, f'[java]\nhome = "{"x" * 10_000_000}"\n')
    assert problem.startswith("riverrun.toml: it has 9.5 MiB, and settings have at most 1 MiB")


def test_a_large_value_is_clipped_in_every_message(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    large = "x" * 900_000
    for line in (f'home = "{large}"', f'{large} = "1"', f"home = [{'1,' * 100_000}]"):
        [problem] = problems(project, f"[java]\n{line}\n")
        assert problem.startswith("riverrun.toml:2: ")
        assert len(problem) < 500
    [problem] = problems(project, f"[{large}]\nx = 1\n")
    assert len(problem) < 500
    project.config_file.write_text(f"[kafka]\nbootstrap_servers = '{'a.example:9092,' * 600}b:1'\n")
    assert run(["--project", str(project.root), "config"]) == 0
    assert len(capsys.readouterr().out) < 100_000


def test_thousands_of_problems_are_counted_not_listed(project: Project) -> None:
    found = problems(project, "[kafka]\n" + "".join(f"prot{number} = 1\n" for number in range(20_000)))
    assert len(found) == 51
    assert found[-1] == "and 19950 more"


@pytest.mark.timeout(20)
def test_what_is_no_file_is_said(project: Project) -> None:
    os.mkfifo(project.config_file)
    assert problems(project) == ["riverrun.toml: this is a pipe, not a file"]
    assert find_project(project.root, environ={}).root == project.root
    project.config_file.unlink()
    project.config_file.mkdir()
    assert problems(project) == ["riverrun.toml: this is a folder, not a file"]
    project.config_file.rmdir()
    project.config_file.symlink_to("gone.toml")
    assert problems(project) == ["riverrun.toml: cannot be read: it is a link to gone.toml, which is not there"]
    project.config_file.unlink()
    project.config_file.symlink_to("riverrun.toml")
    assert "cannot be read: Too many levels of symbolic links" in problems(project)[0]


def test_a_file_of_another_user_is_said(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.config_file.write_text("[kafka]\n")

    def refused(*_: object) -> int:
        # Root, whom the tests may run as, reads everything.
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", refused)
    assert problems(project) == ["riverrun.toml: cannot be read: Permission denied"]


@pytest.mark.timeout(20)
def test_a_secret_is_in_a_file_and_not_too_large(project: Project) -> None:
    os.mkfifo(project.root / "pipe")
    (project.root / "large").write_bytes(b"x" * 100_000)
    asked = '[kafka]\nsasl_password = {{ file = "{}" }}\n'
    assert problems(project, asked.format("pipe")) == [
        f"riverrun.toml:2: kafka.sasl_password asks for the file {project.root / 'pipe'}, which cannot be read: "
        "this is a pipe, not a file"
    ]
    assert "a secret has at most 64 KiB" in problems(project, asked.format("large"))[0]
    assert "this is a device, not a file" in problems(project, asked.format("/dev/zero"))[0]


def test_a_byte_order_mark_does_no_harm(project: Project) -> None:
    project.config_file.write_bytes("\ufeff[kafka]\nport = 1\n".encode())
    loaded = load(project, environ={})
    assert (loaded.settings.kafka.port, loaded.origins["kafka.port"]) == (1, "riverrun.toml:2")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[kafka]\n".encode("utf-16"), "riverrun.toml: this is UTF-16 text: save it as UTF-8"),
        (b"[kafka]\nport = 1 # \xe9t\xe9\n", "riverrun.toml:2: this is not UTF-8 text: byte 0xe9"),
        (b"[kafka]\nport = 1\n\0\0\0\n", "riverrun.toml:3: "),
    ],
)
def test_bytes_that_are_no_text_are_named(project: Project, content: bytes, said: str) -> None:
    assert problems(project, content)[0].startswith(said)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("port = ", "riverrun.toml:2: this is not TOML: the value of port is missing or not understood"),
        ("url = http://x", 'text needs quotes: url = "…"'),
        ("port: 9092", "write port = …, with an equals sign"),
        ("offline = True", "write offline = true, in lower case"),
        ('home = "x', "riverrun.toml:2: this is not TOML"),
        ("port = 1\nport = 2", "riverrun.toml:3: this is not TOML"),
    ],
)
def test_a_syntax_error_says_where_and_what_to_write(project: Project, line: str, said: str) -> None:
    assert said in problems(project, f"[kafka]\n{line}\n")[0]


def test_a_syntax_error_hides_no_other_problem(project: Project) -> None:
    found = problems(
        project,
        "[kafka]\nport = \nbrokrs = 3\nreplication = 3\n\n[java\nhome = 3\n\n[streams]\nevery = '5 parsecs'\nspeed: batch\n",
        RIVERRUN_SERVE_PORT="x",
    )
    assert [problem.split(" ")[0] for problem in found] == [
        "riverrun.toml:2:", "riverrun.toml:6:", "riverrun.toml:11:", "riverrun.toml:3:", "riverrun.toml:10:", "environment",
    ]  # fmt: skip


def test_an_end_that_is_missing_is_one_problem(project: Project) -> None:
    [problem] = problems(project, '[kafka]\nsasl_username = """\nu\n[java]\nhome = 3\n')
    assert problem.startswith("riverrun.toml: this is not TOML: ")
    assert "Unterminated string" in problem


def test_uppercase_is_understood_in_suggestions(project: Project) -> None:
    assert problems(project, "[KAFKA]\nport = 1\n[kafka]\nPORT = 1\nsecurity_protocol = 'ssl'\n") == [
        "riverrun.toml:1: unknown section [KAFKA]; did you mean kafka?",
        "riverrun.toml:4: unknown setting kafka.PORT; did you mean port?",
        "riverrun.toml:5: kafka.security_protocol must be one of 'PLAINTEXT', 'SSL', 'SASL_PLAINTEXT', 'SASL_SSL', "
        "not 'ssl'; did you mean SSL?",
    ]
    assert problems(project, "[java]\nhome = ''\n", RIVERRUN_kafka_port="1") == [
        "environment RIVERRUN_kafka_port: no such setting; did you mean RIVERRUN_KAFKA_PORT?"
    ]


def test_profiles_that_are_not_selected_are_checked_too(project: Project) -> None:
    text = """
[profile.prod.kafka]
port = 99999999
sasl_password = { env = "NOT_SET_HERE" }
[profile.prod.streams]
every = "5 parsecs"
[profile.test]
kafak = { port = 1 }
[profile.other.kafka]
sasl_password = "hunter2"
[profile]
wrong = 1
"""
    found = problems(project, text)
    assert [problem.partition(" must")[0] for problem in found] == [
        "riverrun.toml:3: profile.prod.kafka.port",
        "riverrun.toml:6: profile.prod.streams.every",
        "riverrun.toml:8: unknown section [profile.test.kafak]; did you mean kafka?",
        "riverrun.toml:10: profile.other.kafka.sasl_password is a secret and does not belong here: write { env = \"NAME\" } "
        'or { file = "PATH" } instead of its value',
        "riverrun.toml:12: profile.wrong",
    ]  # fmt: skip


def test_values_of_profiles_that_are_not_selected_are_not_used(project: Project) -> None:
    project.config_file.write_text('[profile.prod.kafka]\nport = 5\nsasl_password = { env = "X" }\n')
    loaded = load(project, environ={"X": "hunter2"})
    assert loaded.settings.kafka.port == 0
    assert not loaded.settings.kafka.sasl_password
    assert load(project, profile="prod", environ={"X": "hunter2"}).settings.kafka.port == 5


def test_a_profile_that_is_not_there_is_said_with_its_origin(project: Project) -> None:
    project.config_file.write_text("[profile.prod.kafka]\nport = 5\n")
    [problem] = problems(project, RIVERRUN_PROFILE="PROD")
    assert problem == "environment RIVERRUN_PROFILE: there is no profile 'PROD' in riverrun.toml; did you mean prod?"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("kafka = { brokers = 1, port = 99999 }", 1),
        ("kafka.port = 99999", 1),
        ("[java]\nhome = '''\n[kafka]\nport = 1\n'''\n[kafka]\nport = 99999", 7),
        ("[kafka]\nbroker = { a = \"port = [1\", b = 'x' }\nport = 99999", 3),
        ('["kafka"]\n"port" = 99999', 2),
        ("[ kafka ] # the cluster = [x]\nport=99999", 2),
    ],
)
def test_the_line_is_right_however_it_is_written(project: Project, text: str, line: int) -> None:
    assert problems(project, text)[-1:] == [f"riverrun.toml:{line}: kafka.port must be at most 65535, not 99999"]
