"""Arguments of `IgniteDataset` that cannot be meant are refused with what to do."""

import pytest

from ignitetf.errors import ConfigError
from ignitetf.read.arguments import settings_of, with_environment
from ignitetf.settings import split_address

GIVEN = {"username": None, "password": None, "certfile": None, "keyfile": None,
         "cert_password": None}  # fmt: skip


def test_a_host_with_a_port_is_told_how_to_give_both():
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1:10801") as caught:
        settings_of({"host": "127.0.0.1:10801", "port": 10800, **GIVEN}, None, None, None)
    assert "port=" in caught.value.hint
    assert "addresses=['127.0.0.1:10801']" in caught.value.hint


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "ignite.example"])
def test_a_host_without_a_port_is_taken(host):
    settings = settings_of({"host": host, "port": 10801, **GIVEN}, None, None, None)
    assert split_address(settings.addresses[0]) == (host, 10801)


@pytest.mark.parametrize(
    ("text", "local"), [("1", True), ("Yes", True), ("off", False), ("", False)]
)
def test_a_word_for_true_or_false(monkeypatch, text, local):
    monkeypatch.setenv("IGNITE_DATASET_LOCAL", text)
    assert with_environment(local=not local) == {"local": local}


@pytest.mark.parametrize(("name", "text"), [("local", "maybe"), ("port", "x"), ("part", "1.5")])
def test_a_variable_that_cannot_be_meant_is_named(monkeypatch, name, text):
    monkeypatch.setenv(f"IGNITE_DATASET_{name.upper()}", text)
    with pytest.raises(ConfigError, match=f"IGNITE_DATASET_{name.upper()}='{text}'") as caught:
        with_environment(**{name: None})
    assert caught.value.hint
