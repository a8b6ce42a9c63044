"""TLS: an authority that is not trusted is refused with what to do; the usual variables name the ones to trust."""

import ssl
from pathlib import Path

import pytest

from riverrun.artifacts import tls
from riverrun.artifacts.tls import tls_context
from riverrun.errors import ConfigError, RepositoryError
from support.maven import CERTIFICATE, Bench


def test_a_certificate_that_is_not_trusted(tls_bench: Bench) -> None:
    with pytest.raises(RepositoryError, match="certificate that is not trusted") as caught:
        tls_bench.fetch(only="small")
    assert "SSL_CERT_FILE" in str(caught.value)
    assert not caught.value.retryable


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"])
def test_a_certificate_the_environment_names(tls_bench: Bench, variable: str) -> None:
    tls_bench.environ[variable] = str(CERTIFICATE)
    assert tls_bench.fetch().downloaded == 3


def test_a_certificate_for_another_host(tls_bench: Bench) -> None:
    tls_bench.environ["SSL_CERT_FILE"] = str(CERTIFICATE)
    with pytest.raises(RepositoryError, match="not trusted"):
        tls_bench.fetch(only="small", maven_url=f"https://localhost:{tls_bench.server.port}/maven2")


def test_no_tls_behind_https(bench: Bench) -> None:
    with pytest.raises(RepositoryError, match="TLS failure"):
        bench.fetch(only="small", maven_url=bench.server.url.replace("http:", "https:"))


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"])
def test_a_variable_that_names_nothing(tmp_path: Path, variable: str) -> None:
    with pytest.raises(ConfigError, match=f"environment {variable}: {tmp_path}/none is not there"):
        tls_context({variable: str(tmp_path / "none")})


def test_a_file_without_certificates(tmp_path: Path) -> None:
    (tmp_path / "a.pem").write_text("nothing", encoding="utf-8")
    with pytest.raises(ConfigError, match="holds no certificates in PEM form"):
        tls_context({"SSL_CERT_FILE": str(tmp_path / "a.pem")})


def test_a_folder_of_certificates_goes_with_a_file(tmp_path: Path) -> None:
    context = tls_context({"SSL_CERT_DIR": f"{tmp_path}/none:{tmp_path}", "SSL_CERT_FILE": str(CERTIFICATE)})
    assert context.cert_store_stats()["x509"] == 1


def test_every_context_verifies(monkeypatch: pytest.MonkeyPatch) -> None:
    for environ in ({}, {"SSL_CERT_FILE": str(CERTIFICATE)}):
        context = tls_context(environ)
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.check_hostname


def test_the_systems_bundle_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a system that has just this one authority."""
    monkeypatch.setattr(tls, "SYSTEM_BUNDLES", ("/not/there.pem", str(CERTIFICATE)))
    assert tls_context({}).cert_store_stats()["x509"] == 1


def paths(cafile: str | None) -> ssl.DefaultVerifyPaths:
    return ssl.DefaultVerifyPaths(cafile, None, "", "", "", "")  # type: ignore[arg-type]


def test_pythons_own_list_is_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "SYSTEM_BUNDLES", ())
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: paths("/somewhere.pem"))
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda self: self.load_verify_locations(CERTIFICATE))
    assert tls_context({}).cert_store_stats()["x509"] == 1


def test_certifi_is_the_last_resort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "SYSTEM_BUNDLES", ())
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: paths(None))
    assert tls_context({}).cert_store_stats()["x509"] > 50
