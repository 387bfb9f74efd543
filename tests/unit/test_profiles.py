"""Profiles and named nodes as sources of settings."""

from __future__ import annotations

import json
import os
import stat
from typing import Any

import pytest
from typer.testing import CliRunner

from ignitetf.cli.main import app
from ignitetf.errors import ConfigError
from ignitetf.launch.environment import launcher_environment, machine_environment
from ignitetf.local.process import identify
from ignitetf.local.state import Member, NodeOptions, NodeState, node_directory, write_state
from ignitetf.profiles import profile_path, write_profile
from ignitetf.settings import VARIABLES, Settings


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Any:
    for name in list(os.environ):
        if name.startswith("IGNITETF_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("IGNITETF_HOME", str(tmp_path))
    return tmp_path


def run(*args: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, list(args), prog_name="ignitetf")
    assert result.exit_code == code, result.output
    return result


def running_node(name: str, port: int, *, secure: bool = False) -> None:
    """Record a node whose process is this one."""
    process = identify(os.getpid())
    assert process is not None
    member = Member("m1", str(node_directory(name)), process, port, port + 1, port + 2)
    options = NodeOptions(port, 1, 1 << 20, persist=False, template_partitions=(), secure=secure)
    state = NodeState(name, "2.17.0", "running", "now", "java", options, (member,), (port,))
    node_directory(name).mkdir(parents=True)
    write_state(state)


def test_a_profile_from_add_to_rm(home, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("hidden-word\n")
    add = ("profile", "add", "lab", "--address", "a:1,b:2", "--username", "u")
    run(*add, "--password-file", str(secret))
    assert stat.S_IMODE(profile_path("lab").stat().st_mode) == 0o600
    settings = Settings.resolve(profile="lab")
    assert settings.addresses == ("a:1", "b:2")
    assert (settings.username, settings.password) == ("u", "hidden-word")
    again = run(*add, "--password-file", str(secret), code=1)
    assert "--force" in again.stderr
    listed = run("profile", "ls", "--output", "json")
    assert "hidden-word" not in listed.output
    (row,) = json.loads(listed.stdout)
    assert (row["profile"], row["connects_to"], row["password"]) == ("lab", "a:1,b:2", "file")
    assert "did you mean lab?" in run("config", "--profile", "lap", code=1).stderr
    assert json.loads(run("profile", "rm", "lab", "-o", "json").stdout)["profile"] == "lab"
    run("profile", "rm", "lab", code=1)


@pytest.mark.parametrize("text", ["{", "[]", "null"])
def test_a_damaged_profile_is_told_and_can_be_removed(home, text):
    profile_path("lab").parent.mkdir(parents=True)
    profile_path("lab").write_text(text)
    assert "ignitetf profile rm lab" in run("config", "--profile", "lab", code=1).stderr
    assert json.loads(run("profile", "ls", "-o", "json").stdout)[0]["profile"] == "lab"
    run("profile", "rm", "lab")
    assert not profile_path("lab").exists()


@pytest.mark.parametrize(
    "args", [(), ("--profile", "x"), ("--address", "h:0"), ("--ca", "no-file")]
)
def test_a_profile_of_nothing_usable_is_refused(args):
    result = CliRunner().invoke(app, ["profile", "add", "p", *args])
    assert result.exit_code in (1, 2)
    assert result.stderr.startswith("error: ")
    assert not profile_path("p").exists()


def test_a_named_node_is_where_to_connect(monkeypatch):
    running_node("one", 4001)
    running_node("two", 4002, secure=True)
    profile_path("two").parent.mkdir(exist_ok=True)
    profile_path("two").write_text(json.dumps({"addresses": ["127.0.0.1:4002"], "username": "u",
                                               "password": "p", "tls": True}))  # fmt: skip
    profile_path("default").write_text(json.dumps({"address": "elsewhere:1", "tls": True}))
    one = Settings.resolve(node="one")
    # The profile of another cluster has no say.
    assert (one.addresses, one.tls, one.origin["addresses"]) == (
        ("127.0.0.1:4001",), False, "node one",
    )  # fmt: skip
    two = Settings.resolve(node="two")
    assert (two.addresses, two.username, two.tls) == (("127.0.0.1:4002",), "u", True)
    monkeypatch.setenv("IGNITETF_NODE", "one")
    assert Settings.resolve().addresses == ("127.0.0.1:4001",)
    assert Settings.resolve(address="h:1").addresses == ("h:1",)
    with pytest.raises(ConfigError, match="one of them"):
        Settings.resolve(address="h:1", node="one")
    with pytest.raises(ConfigError, match="does not run") as caught:
        Settings.resolve(node="tow")
    assert caught.value.hint == "did you mean two?"
    run("profile", "add", "mine", "--node", "one")
    monkeypatch.delenv("IGNITETF_NODE")
    assert Settings.resolve(profile="mine").addresses == ("127.0.0.1:4001",)


def test_errors_name_the_nodes_that_run():
    running_node("other", 4003)
    for command in (("cache", "ls"), ("node", "config")):
        assert "other" in run(*command, code=1).stderr.splitlines()[1]
    assert "did you mean --name other" in run("node", "stop", "--name", "othr").stderr


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("IGNITETF_AHEAD_BYTES", "much"),
        ("IGNITETF_AHEAD_BYTES", "-1"),
        ("IGNITETF_CONNECT_TIMEOUT", "soon"),
        ("IGNITETF_REQUEST_TIMEOUT", "0"),
        ("IGNITETF_TLS", "maybe"),
        ("IGNITETF_CA", "missing.pem"),
        ("IGNITETF_PASSWORD_FILE", "missing.txt"),
    ],
)
def test_a_bad_value_of_the_environment_is_told_with_its_variable(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError) as caught:
        Settings.resolve(address="127.0.0.1:1")
    assert caught.value.hint == f"the environment sets it: {variable}"


def test_a_bad_value_of_a_profile_is_told_with_the_profile_and_an_argument_without() -> None:
    path = profile_path("lab")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"tls": "maybe"}), encoding="utf-8")
    with pytest.raises(ConfigError, match="maybe") as caught:
        Settings.resolve(profile="lab")
    assert caught.value.hint == "profile lab sets it"
    with pytest.raises(ConfigError, match="maybe") as caught:
        Settings.resolve(tls="maybe")
    assert caught.value.hint is None


AROUND = {
    "nothing": {},
    "a node": {"IGNITETF_NODE": "one"},
    "a node and a profile": {"IGNITETF_NODE": "one", "IGNITETF_PROFILE": "lab"},
    "a profile": {"IGNITETF_PROFILE": "lab"},
    "an address and its login": {
        "IGNITETF_ADDRESS": "a:1,b:2",
        "IGNITETF_USERNAME": "u",
        "IGNITETF_PASSWORD_FILE": "{home}/secret",
    },
    "limits": {
        "IGNITETF_AHEAD_BYTES": "1000",
        "IGNITETF_IDLE_TIMEOUT": "7.5",
        "IGNITETF_DATA_CENTER": "east",
        "IGNITETF_TLS_INSECURE": "true",
    },
}


@pytest.mark.parametrize("here", AROUND)
@pytest.mark.parametrize("given", [{}, {"node": "one"}, {"address": "h:1"}, {"profile": "lab"}])
def test_a_process_that_is_started_for_a_command_has_its_settings_and_no_others(
    home: Any, monkeypatch: pytest.MonkeyPatch, here: str, given: dict[str, Any]
) -> None:
    (home / "secret").write_text("hidden-word\n")
    running_node("one", 4001)
    login = ("--username", "other", "--password-file", str(home / "secret"))
    run("profile", "add", "default", "--address", "other:1", "--idle-timeout", "9", *login)
    run("profile", "add", "lab", "--address", "lab:1", "--no-tls")
    for name, value in AROUND[here].items():
        monkeypatch.setenv(name, value.format(home=home))
    wanted = Settings.resolve(**given).replace(profile=None)

    for there in AROUND.values():
        with monkeypatch.context() as machine:
            for name in VARIABLES.values():
                machine.delenv(name, raising=False)
            for name, value in {"PATH": "x", **there}.items():
                machine.setenv(name, value.format(home=home))
            for made in (launcher_environment(wanted), machine_environment(wanted.environment())):
                assert made["PATH"] == "x"
                with monkeypatch.context() as started:
                    for name in VARIABLES.values():
                        started.delenv(name, raising=False)
                    for name, value in made.items():
                        started.setenv(name, value)
                    found = Settings.resolve()
                assert found.replace(data_center=None) == wanted.replace(data_center=None)


def test_a_node_of_the_environment_leaves_the_default_profile_aside(
    home: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    running_node("one", 4001)
    (home / "secret").write_text("hidden-word\n")
    login = ("--username", "other", "--password-file", str(home / "secret"))
    run("profile", "add", "default", "--address", "other:1", *login)
    monkeypatch.setenv("IGNITETF_NODE", "one")
    for settings in (Settings.resolve(), Settings.resolve(node="one")):
        assert (settings.addresses, settings.username) == (("127.0.0.1:4001",), None)
    assert Settings.resolve(address="h:1").username == "other"
    monkeypatch.setenv("IGNITETF_ADDRESS", "h:2")
    assert Settings.resolve(address="h:1").addresses == ("h:1",)
    with pytest.raises(ConfigError, match="one of them") as caught:
        Settings.resolve()
    assert caught.value.hint == "unset IGNITETF_NODE or IGNITETF_ADDRESS"


def test_no_profile_is_read_where_a_dash_names_it(home: Any) -> None:
    run("profile", "add", "default", "--address", "other:1")
    assert Settings.resolve(profile="-").addresses == ("127.0.0.1:10800",)
    assert Settings.resolve(profile="-").profile is None
    run("profile", "add", "--address", "h:1", "--", "-", code=1)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "a\0b", "a\nb", "-x", "\udc80"])
def test_a_name_that_is_not_plain_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.setenv("IGNITETF_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="not a plain name"):
        write_profile(name, {})
