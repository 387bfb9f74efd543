"""Jars against a repository on the loopback interface: the real code, small files."""

import functools
import hashlib
import http.server
import sys
import threading
import types

import pytest

from ignitetf.errors import ConfigError, MissingExtra, NodeError
from ignitetf.node import jars
from ignitetf.node.jars import IGNITE_VERSION, Artifact, ensure_jars, read_lock, repository_url


class Server(http.server.ThreadingHTTPServer):
    def __init__(self, folder):
        self.requests = []
        self.failures = {}
        super().__init__(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))


class Handler(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        self.server.requests.append(self.path)
        failures = self.server.failures.get(self.path, [])
        if failures:
            self.send_error(failures.pop())
        else:
            super().do_GET()

    def log_message(self, *args):
        pass


@pytest.fixture
def lock(monkeypatch, tmp_path):
    """Three small files in Maven's layout under tmp_path/repository, and a lock for them."""
    artifacts = []
    for index in range(3):
        path = f"g/a{index}/1/a{index}-1.jar"
        file = tmp_path / "repository" / path
        file.parent.mkdir(parents=True)
        data = bytes([index]) * (1000 + index)
        file.write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        artifacts.append(Artifact(f"g:a{index}:1", path, len(data), digest))
    monkeypatch.setattr(jars, "read_lock", lambda: artifacts)
    return artifacts


@pytest.fixture
def server(lock, monkeypatch, tmp_path):
    server = Server(tmp_path / "repository")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("IGNITETF_MAVEN_MIRROR", f"http://127.0.0.1:{server.server_port}/")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def own_home(monkeypatch, tmp_path):
    monkeypatch.delenv("IGNITETF_JARS", raising=False)
    monkeypatch.delenv("IGNITETF_MAVEN_MIRROR", raising=False)
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(tmp_path / "user"))
    return tmp_path / "user"


def kept(home):
    folder = home / "jars" / IGNITE_VERSION
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_lock_names_eleven_jars_of_ignite_with_hashes():
    lock = read_lock()
    assert len(lock) == 11
    assert 20e6 < sum(jar.size for jar in lock) < 22e6
    assert all(len(jar.sha256) == 64 and jar.path.endswith(jar.file_name) for jar in lock)


def test_missing_jars_are_fetched_once(server, lock, tmp_path):
    seen = []
    found = ensure_jars(tmp_path / "h", progress=lambda *args: seen.append(args))
    assert [path.read_bytes()[:1] for path in found] == [b"\0", b"\1", b"\2"]
    assert seen[-1][1:] == (3003, 3003)
    assert len(server.requests) == 3
    assert ensure_jars(tmp_path / "h") == found
    assert len(server.requests) == 3


def test_a_damaged_jar_is_fetched_again(server, lock, tmp_path):
    found = ensure_jars(tmp_path / "h")
    found[1].write_bytes(b"x" * 1001)
    ensure_jars(tmp_path / "h")
    assert kept(tmp_path / "h")["a1-1.jar"] == b"\1" * 1001


@pytest.mark.parametrize("data", [b"x" * 1001, b"short", b"x" * 5000])
def test_a_wrong_answer_is_refused_and_nothing_kept_of_it(server, lock, tmp_path, data):
    (tmp_path / "repository" / lock[1].path).write_bytes(data)
    with pytest.raises(NodeError, match=r"a1-1\.jar .*SHA-256"):
        ensure_jars(tmp_path / "h")
    assert set(kept(tmp_path / "h")) <= {"a0-1.jar", "a2-1.jar"}


def test_a_passing_server_error_is_tried_again(server, lock, tmp_path):
    server.failures[f"/{lock[0].path}"] = [503]
    assert len(ensure_jars(tmp_path / "h")) == 3


def test_a_missing_file_is_named_with_its_host(server, lock, tmp_path):
    (tmp_path / "repository" / lock[2].path).unlink()
    with pytest.raises(NodeError, match=r"a2-1\.jar .* 127\.0\.0\.1: HTTP 404") as caught:
        ensure_jars(tmp_path / "h")
    assert "--jars" in caught.value.hint


def test_mavens_own_folder_saves_the_download(server, lock, tmp_path, own_home):
    good, bad = lock[0], lock[1]
    for jar, data in ((good, b"\0" * 1000), (bad, b"y" * 1001)):
        place = own_home / ".m2" / "repository" / jar.path
        place.parent.mkdir(parents=True)
        place.write_bytes(data)
    ensure_jars(tmp_path / "h")
    assert sorted(server.requests) == sorted(f"/{jar.path}" for jar in lock[1:])


@pytest.mark.parametrize("layout", ["flat", "maven"])
def test_a_given_folder_needs_no_network(lock, tmp_path, layout, monkeypatch):
    folder = tmp_path / "repository"
    if layout == "flat":
        folder = tmp_path / "flat"
        folder.mkdir()
        for jar in lock:
            (folder / jar.file_name).write_bytes((tmp_path / "repository" / jar.path).read_bytes())
    monkeypatch.setenv("IGNITETF_MAVEN_MIRROR", "http://127.0.0.1:9/")
    monkeypatch.setenv("IGNITETF_JARS", str(folder))
    assert len(ensure_jars(tmp_path / "h")) == 3
    monkeypatch.delenv("IGNITETF_JARS")
    assert len(ensure_jars(tmp_path / "h")) == 3


def test_a_given_folder_that_lacks_jars_names_all_of_them(lock, tmp_path):
    (tmp_path / "repository" / lock[0].path).unlink()
    flat = tmp_path / "flat"
    flat.mkdir()
    (flat / lock[1].file_name).write_bytes(b"other")
    with pytest.raises(NodeError, match=r"a0-1\.jar \(missing\), a1-1\.jar \(another hash\)"):
        ensure_jars(tmp_path / "h", flat)
    with pytest.raises(NodeError, match="no folder"):
        ensure_jars(tmp_path / "h", tmp_path / "none")


SETTINGS = """<settings><mirrors>
<mirror><id>b</id><mirrorOf>external:*</mirrorOf><url>http://0.0.0.0/</url><blocked>true</blocked>
</mirror><mirror><id>n</id><mirrorOf>*,!central</mirrorOf><url>http://127.0.0.2/</url></mirror>
<mirror><id>c</id><mirrorOf>other, central</mirrorOf><url>http://127.0.0.3/m2/</url></mirror>
</mirrors></settings>"""


def test_mirror_of_mavens_settings(own_home):
    settings = own_home / ".m2" / "settings.xml"
    settings.parent.mkdir(parents=True)
    settings.write_text(SETTINGS)
    assert repository_url() == "http://127.0.0.3/m2"


def test_settings_with_entities_or_without_sense_are_refused(own_home):
    settings = own_home / ".m2" / "settings.xml"
    settings.parent.mkdir(parents=True)
    for text in ('<!DOCTYPE a [<!ENTITY x "y">]><a>&x;</a>', "<settings>"):
        settings.write_text(text)
        with pytest.raises(ConfigError, match="cannot be read"):
            repository_url()


@pytest.mark.parametrize("url", ["ftp://h/x", "file:///etc", "nonsense", "https://"])
def test_a_mirror_must_be_http(monkeypatch, url):
    monkeypatch.setenv("IGNITETF_MAVEN_MIRROR", url)
    with pytest.raises(ConfigError, match="IGNITETF_MAVEN_MIRROR"):
        repository_url()


def test_the_default_address_is_that_of_jgo(monkeypatch):
    constants = types.SimpleNamespace(MAVEN_CENTRAL_URL="https://127.0.0.1/m/")
    monkeypatch.setitem(sys.modules, "jgo", types.ModuleType("jgo"))
    monkeypatch.setitem(sys.modules, "jgo.constants", constants)
    assert repository_url() == "https://127.0.0.1/m"
    monkeypatch.setitem(sys.modules, "jgo.constants", None)
    with pytest.raises(MissingExtra, match="jgo"):
        repository_url()
