"""Settings come from the highest place that names them, say so, and are checked all at once."""

import json
import os
from pathlib import Path

import pytest

from riverrun.config import Project, find_project, load
from riverrun.config.run_state import RunState, is_locked, last_state, lock_path, running_state, state_path
from riverrun.config.spec import setting_specs
from riverrun.errors import ConfigError, UsageError


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def write(project: Project, text: str) -> None:
    project.config_file.write_text(text, encoding="utf-8")


def problems(project: Project, **environ: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(project, environ=environ)
    return list(caught.value.problems)


def test_defaults(project: Project) -> None:
    loaded = load(project, environ={})
    assert loaded.settings.kafka.brokers == 1
    assert set(loaded.origins.values()) == {"default"}


def test_the_highest_place_wins_and_is_named(project: Project) -> None:
    write(project, "[kafka]\nport = 1\nbrokers = 2\nheap_mb = 300\n[profile.prod.kafka]\nbrokers = 3\nheap_mb = 400\n")
    loaded = load(
        project,
        flags={"kafka.heap_mb": 600, "kafka.port": None},
        profile="prod",
        environ={"RIVERRUN_KAFKA_HEAP_MB": "500"},
    )
    kafka = loaded.settings.kafka
    assert (kafka.port, kafka.brokers, kafka.heap_mb) == (1, 3, 600)
    assert loaded.origins["kafka.port"] == "riverrun.toml:2"
    assert loaded.origins["kafka.brokers"] == "riverrun.toml:6"
    assert loaded.origins["kafka.heap_mb"] == "flag --heap-mb"


def test_environment_beats_the_file(project: Project) -> None:
    write(project, "[artifacts]\noffline = false")
    loaded = load(project, environ={"RIVERRUN_ARTIFACTS_OFFLINE": "yes"})
    assert loaded.settings.artifacts.offline is True
    assert loaded.origins["artifacts.offline"] == "environment RIVERRUN_ARTIFACTS_OFFLINE"


def test_all_problems_at_once_with_line_and_suggestion(project: Project) -> None:
    write(project, '[kafka]\nprot = 1\nbrokers = "three"\n\n[kafak]\nx = 1\n[java]\nhome = 3\n')
    assert problems(project, RIVERRUN_KAFKA_BROKER_COUNT="1") == [
        "riverrun.toml:2: unknown setting kafka.prot; did you mean port?",
        "riverrun.toml:3: kafka.brokers must be a whole number, not 'three'",
        "riverrun.toml:5: unknown section [kafak]; did you mean kafka?",
        "riverrun.toml:8: java.home must be text, not 3",
        "environment RIVERRUN_KAFKA_BROKER_COUNT: no such setting; did you mean RIVERRUN_KAFKA_BROKERS?",
    ]


def test_a_broken_file_says_where(project: Project) -> None:
    write(project, "[kafka]\nport = \n")
    assert problems(project) == ["riverrun.toml:2: this is not TOML: the value of port is missing or not understood"]


def test_a_file_that_is_not_text(project: Project) -> None:
    project.config_file.write_bytes(b"\xff")
    assert "not UTF-8" in problems(project)[0]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[kafka]\nbrokers = 0", "riverrun.toml:2: kafka.brokers must be at least 1, not 0"),
        ("[kafka]\nport = 70000", "riverrun.toml:2: kafka.port must be at most 65535, not 70000"),
        ("[kafka]\nbrokers = true", "riverrun.toml:2: kafka.brokers must be a whole number, not True"),
        ("kafka = 1", "riverrun.toml:1: [kafka] must be a table"),
        ("[kafka]\nclient = 1", "riverrun.toml:2: kafka.client must be a table of text, numbers or true/false"),
        (
            '[kafka]\nsecurity_protocol = "SASL_SLS"\nsasl_mechanism = ""',
            "riverrun.toml:2: kafka.security_protocol must be one of 'PLAINTEXT', 'SSL', 'SASL_PLAINTEXT', 'SASL_SSL', "
            "not 'SASL_SLS'; did you mean SASL_SSL?",
        ),
        (
            "[kafka]\nreplication = 3",
            "riverrun.toml:2: kafka.replication is 3, and there are only kafka.brokers = 1 to hold the copies",
        ),
        (
            "[kafka]\nbrokers = 3\nreplication = 2\nmin_insync = 3",
            "riverrun.toml:4: kafka.min_insync is 3, more than kafka.replication = 2: nothing could ever be written",
        ),
        (
            '[kafka]\nsasl_mechanism = "PLAIN"\nsasl_username = "u"\nsasl_password = { env = "PW" }',
            "riverrun.toml:2: kafka.sasl_mechanism is PLAIN, and kafka.security_protocol is PLAINTEXT, which does not log "
            "in: set it to SASL_SSL",
        ),
    ],
)
def test_a_wrong_value(project: Project, text: str, problem: str) -> None:
    write(project, text)
    assert problems(project, PW="x") == [problem]


def test_login_needs_its_parts(project: Project) -> None:
    write(project, '[kafka]\nsecurity_protocol = "SASL_SSL"\nsasl_mechanism = "OAUTHBEARER"')
    assert problems(project) == [
        "riverrun.toml:3: kafka.sasl_mechanism is OAUTHBEARER and needs kafka.oauth_token_url, kafka.oauth_client_id, "
        "kafka.oauth_client_secret"
    ]


def test_an_unknown_profile_names_the_known(project: Project) -> None:
    write(project, "[profile.prod.kafka]\nport = 1")
    with pytest.raises(ConfigError) as caught:
        load(project, profile="staging", environ={})
    assert caught.value.problems == ("flag --profile: there is no profile 'staging' in riverrun.toml; it has: prod",)


class TestSecrets:
    BASE = '[kafka]\nsecurity_protocol = "SASL_SSL"\nsasl_mechanism = "PLAIN"\nsasl_username = "u"\n'

    def test_a_secret_in_the_file_is_refused_and_not_repeated(self, project: Project) -> None:
        write(project, self.BASE + 'sasl_password = "hunter2"')
        found = "\n".join(problems(project))
        assert "riverrun.toml:5: kafka.sasl_password is a secret and does not belong here" in found
        assert "hunter2" not in found

    def test_from_a_named_variable(self, project: Project) -> None:
        write(project, self.BASE + 'sasl_password = { env = "PW" }')
        loaded = load(project, environ={"PW": "hunter2"})
        assert loaded.settings.kafka.sasl_password.reveal() == "hunter2"
        assert loaded.origins["kafka.sasl_password"] == "riverrun.toml:5 → variable PW"

    def test_from_a_file_of_the_project(self, project: Project) -> None:
        write(project, self.BASE + 'sasl_password = { file = "pw.txt" }')
        (project.root / "pw.txt").write_text("hunter2\n")
        assert load(project, environ={}).settings.kafka.sasl_password.reveal() == "hunter2"

    def test_from_the_environment_and_its_file(self, project: Project, tmp_path: Path) -> None:
        write(project, self.BASE)
        (tmp_path / "pw").write_text("hunter3")
        for environ, expected in (
            ({"RIVERRUN_KAFKA_SASL_PASSWORD": "hunter2"}, "hunter2"),
            ({"RIVERRUN_KAFKA_SASL_PASSWORD_FILE": str(tmp_path / "pw")}, "hunter3"),
        ):
            assert load(project, environ=environ).settings.kafka.sasl_password.reveal() == expected

    def test_missing_sources_are_problems(self, project: Project) -> None:
        write(project, self.BASE + 'sasl_password = { env = "PW" }')
        assert "riverrun.toml:5: kafka.sasl_password asks for the variable PW, which is not set" in problems(project)

    def test_who_needs_no_secret_does_not_have_to_have_it(self, project: Project) -> None:
        write(project, self.BASE + 'sasl_password = { env = "PW" }')
        found = load(project, environ={}, secrets=False).settings.kafka.sasl_password
        assert str(found) == "******"
        with pytest.raises(ConfigError, match=r"kafka\.sasl_password asks for the variable PW, which is not set"):
            found.reveal()

    def test_nothing_prints_it(self, project: Project) -> None:
        write(project, self.BASE + '[kafka.client]\n"ssl.keystore.password" = "hunter4"')
        loaded = load(project, environ={"RIVERRUN_KAFKA_SASL_PASSWORD": "hunter2"})
        shown = json.dumps(loaded.rows()) + repr(loaded) + str(loaded.settings.kafka.sasl_password)
        assert "hunter2" not in shown
        assert "hunter4" not in json.dumps(loaded.rows())


def test_a_login_in_an_address_is_not_shown(project: Project) -> None:
    loaded = load(project, environ={"RIVERRUN_ARTIFACTS_MAVEN_URL": "https://ann:hunter2@repo.example/m"})
    assert loaded.settings.artifacts.maven_url == "https://ann:hunter2@repo.example/m"
    shown = {row["setting"]: row["value"] for row in loaded.rows()}
    assert shown["artifacts.maven_url"] == "https://******@repo.example/m"


def test_the_running_cluster_is_found_only_while_its_runner_lives(project: Project) -> None:
    import fcntl

    project.run.mkdir(parents=True)
    RunState(pid=os.getpid(), state="ready", version="1", bootstrap_servers="127.0.0.1:9092").write(state_path(project))
    assert load(project, environ={}).settings.kafka.bootstrap_servers == ""
    with lock_path(project).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert is_locked(lock_path(project))
        loaded = load(project, environ={})
        assert loaded.settings.kafka.bootstrap_servers == "127.0.0.1:9092"
        assert loaded.origins["kafka.bootstrap_servers"] == f"running cluster (pid {os.getpid()})"
    assert running_state(project) is None
    assert last_state(project) is not None


def test_the_running_druid_is_found_with_the_cluster(project: Project) -> None:
    import fcntl

    project.run.mkdir(parents=True)
    state = RunState(os.getpid(), "ready", "1", "127.0.0.1:9092", druid_url="http://127.0.0.1:8888")
    state.write(state_path(project))
    with lock_path(project).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        loaded = load(project, environ={})
        assert loaded.settings.druid.url == "http://127.0.0.1:8888"
        assert not loaded.druid_attached
        named = load(project, environ={"RIVERRUN_DRUID_URL": "https://druid.example:9088"})
        assert named.settings.druid.url == "https://druid.example:9088"
        assert named.druid_attached
        assert named.settings.kafka.bootstrap_servers == "127.0.0.1:9092"


def test_the_running_connect_is_found_with_its_login(project: Project) -> None:
    import fcntl

    project.run.mkdir(parents=True)
    (project.data / "connect").mkdir(parents=True)
    (project.data / "connect" / "password").write_text("made-at-first-start\n")
    state = RunState(os.getpid(), "ready", "1", "127.0.0.1:9092", connect_url="http://127.0.0.1:8083")
    state.write(state_path(project))
    with lock_path(project).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        loaded = load(project, environ={})
        connect = loaded.settings.connect
        assert (connect.url, connect.username) == ("http://127.0.0.1:8083", "riverrun")
        assert connect.password.reveal() == "made-at-first-start"
        assert not loaded.connect_attached
        assert "made-at-first-start" not in str(loaded.rows())
        named = load(project, environ={"RIVERRUN_CONNECT_URL": "https://connect.example:8083"})
        assert named.connect_attached
        assert (named.settings.connect.username, bool(named.settings.connect.password)) == ("", False)


def test_a_half_written_state_is_no_state(project: Project) -> None:
    project.run.mkdir(parents=True)
    state_path(project).write_text('{"pid": 1, "sta')
    assert last_state(project) is None


def test_a_project_is_found_from_below(tmp_path: Path) -> None:
    (tmp_path / "riverrun.toml").touch()
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert find_project(below, environ={}).root == tmp_path
    assert find_project(environ={"RIVERRUN_PROJECT": str(tmp_path)}).root == tmp_path
    with pytest.raises(UsageError):
        find_project(environ={"RIVERRUN_PROJECT": str(tmp_path / "none")})


def test_every_setting_is_described() -> None:
    found = list(setting_specs())
    assert len({spec.environment for spec in found}) == len(found)
    assert [spec.key for spec in found if not spec.help.endswith(".")] == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('host = ""', "riverrun.toml:2: serve.host is empty"),
        ('host = "192.0.2.7"', "a login does not go through a network in clear"),
        ('host = "0.0.0.0"\ninsecure = true', "say in serve.names by which names"),
        ('host = "::"\ninsecure = true\nnames = " , "', "say in serve.names by which names"),
        ('ssl_key_file = "key.pem"', "riverrun.toml:2: serve.ssl_key_file needs serve.ssl_certificate_file"),
        ('host = "192.0.2.7"\nssl_certificate_file = "c.pem"', "serve.ssl_certificate_file needs serve.ssl_key_file"),
        ('trusted_proxies = "127.0.0.1"', "serve.trusted_proxies needs serve.names"),
        ('trusted_proxies = "10.0.0.1/8"\nnames = "a"', "names what is no proxy: '10.0.0.1/8' is not an address"),
        ('oidc_issuer = "https://x.test"\noidc_emails = "a@x.test"', "serve.oidc_issuer needs serve.oidc_client_id"),
        ('oidc_issuer = "https://x.test"\noidc_client_id = "us"', "lets in everybody who has an account there"),
        ('oidc_client_secret = "plain"', "is a secret and does not belong here"),
    ],
)
def test_serving_others_is_all_there_or_refused(project: Project, text: str, said: str) -> None:
    write(project, f"[serve]\n{text}\n")
    assert said in "\n".join(problems(project))


def test_an_address_of_alerts_is_a_reference_and_is_not_shown(project: Project) -> None:
    write(project, '[alerts.channels]\nops = "json://user:hunter2@example.org/"\nmail = "env:MAIL"\n')
    [problem] = problems(project)
    assert 'alerts.channels.ops may hold a secret, which does not belong here: write "env:NAME"' in problem
    assert "hunter2" not in problem


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('host = "0.0.0.0"', "a key does not go through a network in clear: set ingest.ssl_certificate_file"),
        ('host = ""', "ingest.host is empty"),
        ('ssl_key_file = "key.pem"', "ingest.ssl_key_file needs ingest.ssl_certificate_file"),
        ('keys = { shop = "hunter2-hunter2-hunter2" }', "ingest.keys.shop may hold a secret"),
        ('key_topics = { shop = "readings" }', "names the key shop, which is not in ingest.keys"),
    ],
)
def test_taking_records_of_others_is_all_there_or_refused(project: Project, text: str, said: str) -> None:
    write(project, f"[ingest]\n{text}\n")
    found = "\n".join(problems(project))
    assert said in found
    assert "hunter2" not in found


def test_taking_records_behind_a_proxy_is_said(project: Project) -> None:
    write(project, '[ingest]\nhost = "0.0.0.0"\ninsecure = true\n')
    assert load(project, environ={}).settings.ingest.beyond


@pytest.mark.parametrize(
    ("host", "beyond"),
    [("127.0.0.1", False), ("127.0.0.2", False), ("::1", False), ("localhost", False), ("0.0.0.0", True),  # noqa: S104
     ("192.0.2.7", True), ("::", True), ("localhost.evil.test", True), ("dash.test", True)],
)  # fmt: skip
def test_what_is_beyond_this_machine(project: Project, host: str, beyond: bool) -> None:
    write(project, f'[serve]\nhost = "{host}"\nnames = "dash.test"\ninsecure = true\n')
    assert load(project, environ={}).settings.serve.beyond is beyond
