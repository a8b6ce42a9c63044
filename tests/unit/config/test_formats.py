"""Each setting has a format, checked when settings are read, wherever the value comes from."""

from pathlib import Path

import pytest

from riverrun.config import Project, load
from riverrun.config.spec import setting_specs
from riverrun.errors import ConfigError


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def problems(project: Project, text: str = "", **environ: str) -> list[str]:
    project.config_file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load(project, environ=environ)
    return list(caught.value.problems)


URL = "must be an address such as "


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("streams.every", '"5 parsecs"', """must be a duration such as "1 second", "500 ms" or "0 s", not '5 parsecs'"""),
        ("streams.every", '"5 mintues"', 'did you mean "5 minutes"?'),
        ("streams.every", '"forever"', "must be a duration"),
        ("streams.every", '"99999999999999999999 days"', "must be a duration"),
        ("streams.transaction_timeout", '"0 s"', "must be a duration"),
        ("ingest.idempotency_window", '"soon"', "must be a duration"),
        ("store.max_size", '"20 XB"', """must be a size such as "20 GB" or "512 MiB", not '20 XB'"""),
        ("store.max_size", '"-1 GB"', "must be a size"),
        ("store.memory_mb", "999999999999", "must be at most 1048576, not 999999999999"),
        ("store.memory_mb", "1", "must be 0 or at least 64, not 1"),
        ("spark.driver_memory_mb", "100", "must be at least 512, not 100"),
        ("alerts.sms_budget_zone", '"Mars/Olympus"', "must be a time zone such as 'UTC' or 'Europe/Dublin'"),
        ("alerts.sms_budget_zone", '"Europe/Dubln"', "did you mean Europe/Dublin?"),
        ("alerts.sms_budget_zone", '"../../etc/passwd"', "must be a time zone"),
        ("alerts.sms_region", '"Ireland"', "must be a country's two letters"),
        ("spark.master", '"flink://x"', "must be a Spark master such as"),
        ("spark.master", '"spark://host"', "must be a Spark master such as"),
        ("spark.master", '"spark://host:99999"', "must be a Spark master such as"),
        ("spark.master", '"local[0]"', "must be a Spark master such as"),
        ("spark.master", '"Yarn"', "did you mean yarn?"),
        ("streams.port", "99999999", "must be at most 65535, not 99999999"),
        ("kafka.port", "-1", "must be at least 0, not -1"),
        ("kafka.bootstrap_servers", '"broker"', "must be host:port, comma separated"),
        ("kafka.bootstrap_servers", '"a:9092,b:99999"', "'b:99999'"),
        ("kafka.bootstrap_servers", '"PLAINTEXT://a:9092"', "must be host:port, comma separated"),
        ("druid.kafka_servers", '"a:x"', "must be host:port, comma separated"),
        ("druid.url", '"htp://x"', URL + "https://druid.example:9088, not 'htp://x'"),
        ("druid.url", '"https://"', URL),
        ("connect.url", '"http://a:port"', URL),
        ("connect.url", '"http://user:hunter2@a:80"', "without a login"),
        ("registry.url", '"http://a b"', URL),
        ("registry.url", '"http://[::1"', URL),
        ("mqtt.url", '"http://a"', URL + "mqtts://mqtt.example:8883"),
        ("mqtt.url", '"mqtt://a:1883/path"', URL),
        ("postgres.url", '"postgresql://cdc@db:99999/shop"', URL + "postgresql://cdc@127.0.0.1:5432/shop"),
        ("serve.oidc_issuer", '"login.example.org"', URL + "https://login.example.org"),
        ("alerts.sms_url", '"infobip.com"', URL + "https://xyz.api.infobip.com"),
        ("alerts.sms_callback_url", '"ftp://x/y"', URL),
        ("kafka.oauth_token_url", '"x"', URL),
        ("artifacts.maven_url", '"maven.example"', URL),
        ("serve.host", '"http://0.0.0.0"', "must be a host name or IP address such as"),
        ("serve.host", '"0.0.0.0:80"', "must be a host name or IP address such as"),
        ("ingest.host", '"256.1.1.1"', "must be a host name or IP address such as"),
        ("serve.names", '"dash.example.org, https://x"', "must be host names, comma separated"),
        ("streams.checkpoints", '"hdfs//namenode:99999999/x"', ""),
        ("streams.checkpoints", '"s3a:///riverrun"', "must be a folder, or an address such as"),
        ("streams.checkpoints", '"hdfs://"', "must be a folder, or an address such as"),
        ("streams.checkpoints", '"hdfs://namenode:99999999/x"', "must be a folder, or an address such as"),
        ("kafka.heap_mb", "99999999999", "must be at most 1048576"),
        ("kafka.request_timeout_seconds", "99999999999", "must be at most 86400"),
        ("kafka.sasl_username", '"a\\u0000b"', "must not hold control characters"),
    ],
)  # fmt: skip
def test_a_value_of_another_format_is_refused_with_its_line(project: Project, key: str, value: str, said: str) -> None:
    section, name = key.split(".")
    text = f"# a comment\n[{section}]\n{name} = {value}\n"
    if not said:
        project.config_file.write_text(text, encoding="utf-8")
        load(project, environ={})
        return
    found = problems(project, text)
    assert found[0].startswith(f"riverrun.toml:3: {key} ")
    assert said in found[0]
    assert "hunter2" not in "".join(found)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("streams.every", "0 seconds"),
        ("streams.every", "0"),
        ("streams.every", "500 ms"),
        ("store.max_size", "1.5 TiB"),
        ("alerts.sms_budget_zone", "America/Argentina/Buenos_Aires"),
        ("alerts.sms_region", "IE"),
        ("spark.master", "local"),
        ("spark.master", "local[*]"),
        ("spark.master", "local[4, 2]"),
        ("spark.master", "local-cluster[2,1,1024]"),
        ("spark.master", "spark://a.example:7077,b.example:7077"),
        ("spark.master", "yarn"),
        ("spark.master", "k8s://https://k8s.example:6443"),
        ("spark.master", "k8s://k8s.example:443"),
        ("kafka.bootstrap_servers", "a:9092, [::1]:9093,10.0.0.1:1"),
        ("druid.url", "http://127.0.0.1:8888"),
        ("druid.url", "https://druid.example/behind/a/proxy"),
        ("artifacts.maven_url", "file:///srv/maven"),
        ("artifacts.maven_url", "https://ann:pw@repo.example/m"),
        ("mqtt.url", "mqtts://mqtt.example"),
        ("postgres.url", "postgresql://cdc@127.0.0.1:5432/shop?sslmode=require"),
        ("streams.checkpoints", "../elsewhere/checkpoints"),
        ("streams.checkpoints", "hdfs://namenode:8020/riverrun"),
        ("streams.checkpoints", "hdfs:///riverrun"),
        ("streams.checkpoints", "s3a://bucket/riverrun"),
        ("streams.checkpoints", "file:///srv/riverrun"),
        ("serve.names", "dash.example.org, 192.0.2.7, [::1], bücher.example"),
    ],
)
def test_a_value_of_the_format_is_taken(project: Project, key: str, value: str) -> None:
    load(project, environ={f"RIVERRUN_{key.replace('.', '_').upper()}": value})


def test_a_certificate_is_a_value_of_many_lines(project: Project) -> None:
    pem = "-----BEGIN PRIVATE KEY-----\nMII\tB\r\n-----END PRIVATE KEY-----\n"
    project.config_file.write_text(f'[kafka.client]\n"ssl.key.pem" = """{pem}"""\n', encoding="utf-8", newline="")
    assert load(project, environ={}).settings.kafka.client["ssl.key.pem"].splitlines() == pem.splitlines()
    for refused in ('"ssl.key.pem" = "a\\u0000b"', '"ssl.key\\npem" = "a"'):
        assert "must not hold control characters" in problems(project, f"[kafka.client]\n{refused}\n")[0]


def test_environment_and_flags_are_checked_alike_and_named(project: Project) -> None:
    with pytest.raises(ConfigError) as caught:
        load(
            project,
            environ={"RIVERRUN_STREAMS_EVERY": "5 parsecs", "RIVERRUN_SERVE_PORT": "70000"},
            flags={"kafka.bootstrap_servers": "nowhere", "artifacts.maven_url": "x"},
        )
    assert [problem.partition(" must be")[0] for problem in caught.value.problems] == [
        "environment RIVERRUN_STREAMS_EVERY: streams.every",
        "environment RIVERRUN_SERVE_PORT: serve.port",
        "flag --bootstrap-servers: kafka.bootstrap_servers",
        "flag --maven-url: artifacts.maven_url",
    ]


def test_the_session_of_spark_is_named_in_one_place(project: Project) -> None:
    found = problems(project, '[spark.config]\n"spark.master" = "spark://a:7077"\n')
    assert found == [
        "riverrun.toml:1: spark.config sets spark.master, which is a setting of its own: write [spark] master = "
        "'spark://a:7077'"
    ]


def test_every_number_has_bounds_and_every_address_a_format() -> None:
    unbounded = [
        spec.key for spec in setting_specs() if spec.kind is int and (spec.minimum is None or spec.maximum is None)
    ]
    assert unbounded == []
    words = ("url", "port", "host", "servers", "zone", "issuer", "every", "timeout", "max_size", "window", "master")
    named = [spec for spec in setting_specs() if spec.kind is str and any(word in spec.name for word in words)]
    assert [spec.key for spec in named if spec.format is None] == []


def test_every_example_and_default_has_its_own_format(project: Project) -> None:
    for spec in setting_specs():
        if spec.format is not None:
            for value in filter(None, (spec.default, spec.example)):
                spec.format.check(value)
