"""Secrets become references; what a user writes is looked up, all problems at once."""

import stat
from pathlib import Path

import pytest

from riverrun.config import Secret
from riverrun.connectors.kafka_connect import Vault
from riverrun.connectors.kafka_connect.vault import resolve_secrets
from riverrun.errors import ConfigError


def kept(reference: str) -> Path:
    provider, folder, name = reference.removeprefix("${").removesuffix("}").split(":")
    assert provider == "secrets"
    return Path(folder) / name


def test_a_secret_is_a_private_file_and_a_reference_to_it(tmp_path: Path) -> None:
    vault = Vault(tmp_path / "secrets")
    found = vault.hide("shop.orders", {"user": "cdc", "database.password": Secret("hidden")})
    assert found["user"] == "cdc"
    file = kept(found["database.password"])
    assert file.read_text() == "hidden"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_the_same_secret_has_the_same_reference_and_another_has_another(tmp_path: Path) -> None:
    vault = Vault(tmp_path)
    first = vault.hide("shop", {"password": Secret("one")})
    assert vault.hide("shop", {"password": Secret("one")}) == first
    assert Vault(tmp_path).hide("other", {"password": Secret("one")}) != first
    second = vault.hide("shop", {"password": Secret("two")})
    assert second != first, "the connector must hear of it"
    vault.forget("shop", second)
    assert not kept(first["password"]).exists()
    assert kept(second["password"]).read_text() == "two"


def test_a_connector_that_is_gone_leaves_none_and_others_keep_theirs(tmp_path: Path) -> None:
    vault = Vault(tmp_path)
    vault.hide("shop", {"password": Secret("one")})
    vault.hide("shop.eu", {"password": Secret("one")})
    vault.forget("shop")
    assert [each.name.split("@")[0] for each in tmp_path.iterdir()] == ["shop.eu"]


def test_a_name_with_anything_in_it_stays_in_the_folder(tmp_path: Path) -> None:
    vault = Vault(tmp_path / "secrets")
    found = vault.hide("../a/b:c}@d", {"p:q}/r": Secret("one")})
    assert kept(found["p:q}/r"]).parent == tmp_path / "secrets"


def test_an_attached_connect_has_its_own(tmp_path: Path) -> None:
    del tmp_path
    vault = Vault(None, {"shop.password": "${file:/etc/db:password}"})
    assert vault.hide("shop", {"password": Secret("one")}) == {"password": "${file:/etc/db:password}"}
    with pytest.raises(ConfigError) as caught:
        vault.hide("shop", {"password": Secret("one"), "token": Secret("two"), "key": Secret("three")})
    assert len(caught.value.problems) == 2
    assert "connect.references" in caught.value.problems[0]
    assert "two" not in str(caught.value)


def test_what_a_user_writes_is_looked_up(tmp_path: Path) -> None:
    (tmp_path / "password.txt").write_text("from a file\n")
    found = resolve_secrets(
        {
            "a": "env:NAME",
            "b": "file:password.txt",
            "c": "plain",
            "database.password": "typed",
            "d.password": "${file:/x:y}",
            "e": "file:///tmp/x",
            "f": "env: not one",
        },
        tmp_path,
        {"NAME": "from the environment"},
    )
    assert {key: value.reveal() for key, value in found.items() if isinstance(value, Secret)} == {
        "a": "from the environment",
        "b": "from a file",
        "database.password": "typed",
    }
    assert (found["c"], found["d.password"], found["e"], found["f"]) == (
        "plain", "${file:/x:y}", "file:///tmp/x", "env: not one",
    )  # fmt: skip


def test_all_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_secrets({"a": "env:NOWHERE", "b": "file:nowhere.txt"}, tmp_path, {})
    assert len(caught.value.problems) == 2


def test_it_knows_whose_connectors_have_secrets_and_what_they_are(tmp_path: Path) -> None:
    vault = Vault(tmp_path)
    assert vault.connectors("shop") == set()
    found = vault.hide("shop.postgres", {"database.password": Secret("one")})
    vault.hide("shop.eu.postgres", {"database.password": Secret("two")})
    assert vault.connectors("shop") == {"shop.postgres"}
    assert vault.reveal(found["database.password"]) == Secret("one")
    assert vault.reveal("${file:/etc/passwd:root}") is None
    assert Vault(None).reveal(found["database.password"]) is None
    vault.forget("shop.postgres")
    assert vault.connectors("shop") == set()
