"""Pushing, pulling, listing, pruning and watching checkpoints; the fs and checkpoint commands."""

import errno
import functools
import hashlib
import json
import os
import threading
import time
from pathlib import Path

import pytest
from helpers.checkpoint_files import save
from helpers.stores import new_store
from typer.testing import CliRunner

from ignitetf.cli.main import app
from ignitetf.fs import checkpoints
from ignitetf.fs.folders import state_names
from ignitetf.fs.pull import pull
from ignitetf.fs.push import push, watch
from ignitetf.fs.store import Store
from ignitetf.fs.sync import read_file, write_file

pytestmark = pytest.mark.node


@pytest.fixture
def store(client):
    with new_store(client) as made:
        yield made


@pytest.fixture
def run(address, store):
    """Run a command on the file system of this test; gives the result."""

    def run(*words, code=0, input=None):
        options = ["--address", address, "--fs-name", store.name]
        result = CliRunner().invoke(app, [*words, *options], input=input)
        assert result.exit_code == code, (result.output, result.stderr)
        return result

    return run


def tree(folder):
    return {
        p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()
    }


def test_only_what_changed_is_copied(store, tmp_path):
    save(tmp_path / "a", 1, 2)
    (tmp_path / "a" / "logs").mkdir()
    (tmp_path / "a" / "logs" / "events").write_bytes(b"e" * 1000)
    first = push(store, tmp_path / "a", "/run")
    assert len(first.copied) == 6
    assert push(store, tmp_path / "a", "/run").copied == []
    save(tmp_path / "a", 3)
    assert sorted(push(store, tmp_path / "a", "/run").copied) == [
        "checkpoint",
        "ckpt-3.data-00000-of-00001",
        "ckpt-3.index",
    ]
    assert len(pull(store, "/run", tmp_path / "b").copied) == 8
    assert tree(tmp_path / "a") == tree(tmp_path / "b")
    # Same size, other content.
    data = (tmp_path / "a" / "ckpt-1.index").read_bytes()
    (tmp_path / "b" / "ckpt-1.index").write_bytes(b"x" * len(data))
    assert pull(store, "/run", tmp_path / "b").copied == ["ckpt-1.index"]
    assert tree(tmp_path / "a") == tree(tmp_path / "b")
    entry = store.stat("/run/ckpt-1.index")
    assert entry.attributes["sha256"] == hashlib.sha256(data).hexdigest()


def test_a_reader_never_sees_an_incomplete_checkpoint(store, tmp_path):
    """A thread pulls without end while checkpoints are pushed and pruned."""
    stop, seen, wrong = threading.Event(), set(), []

    def look():
        number = 0
        while not stop.is_set():
            number += 1
            target = tmp_path / f"copy{number}"
            try:
                pull(store, "/run", target)
            except FileNotFoundError:
                continue
            if not (target / "checkpoint").exists():
                continue
            state = (target / "checkpoint").read_text()
            latest = state.splitlines()[0].split('"')[1]
            seen.add(latest)
            for kind in ("index", "data-00000-of-00001"):
                path = target / f"{latest}.{kind}"
                source = tmp_path / "run" / f"{latest}.{kind}"
                if not path.exists() or path.read_bytes() != source.read_bytes():
                    wrong.append(path)

    thread = threading.Thread(target=look)
    thread.start()
    for step in range(1, 9):
        save(tmp_path / "run", step, size=300_000)
        push(store, tmp_path / "run", "/run")
        checkpoints.prune(store, "/run", 2)
    time.sleep(0.5)
    stop.set()
    thread.join()
    assert wrong == []
    assert "ckpt-8" in seen


class At:
    """A client that does something before one of its requests, and something before all later ones.

    Requests inside a transaction do not count: they hold locks.
    """

    def __init__(self, client, number=0, once=lambda: None, then=lambda: None):
        self._client, self._number, self._once, self._then = client, number, once, then
        self.count = 0

    def __getattr__(self, name):
        return getattr(self._client, name)

    def call(self, *words, **options):
        self.count += 1
        if self.count == self._number:
            self._once()
        elif self._number and self.count > self._number:
            self._then()
        return self._client.call(*words, **options)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("first", "second"),
    [("push", "prune"), ("push", "delete"), ("prune", "push"), ("delete", "push")],
)
def test_a_state_names_only_what_is_there_at_every_step(store, client, tmp_path, first, second):
    """Whoever runs, and at whichever request another one runs from begin to end."""
    folder = tmp_path / "run"
    save(folder, 1, 2, size=100)
    save(tmp_path / "all", 1, 2, size=100, content=b"other")
    save(tmp_path / "less", 2, size=100)
    works = {
        "push": lambda by, remote: push(by, tmp_path / "all", remote),
        "prune": lambda by, remote: checkpoints.prune(by, remote, 1),
        "delete": lambda by, remote: push(by, tmp_path / "less", remote, delete=True),
    }

    def check(remote):
        entries = dict(store.list(remote))
        text = read_file(store, f"{remote}/checkpoint").decode()
        gone = [n for n in state_names(text)[1] if f"{n}.index" not in entries]
        assert gone == [], (remote, text)

    def attempt(remote, number=0):
        push(store, folder, remote)
        between = At(client, number, lambda: works[second](store, remote), lambda: check(remote))
        by = Store(between, store.name)
        begin = between.count
        works[first](by, remote)
        by.close()
        check(remote)
        assert all(one.complete for one in checkpoints.checkpoints(store, remote))
        return begin, between.count

    begin, end = attempt("/dry")
    for number in range(begin + 1, end + 1):
        attempt(f"/{number}", number)


def test_prune_keeps_the_newest(store, tmp_path):
    save(tmp_path / "run", 1, 2, 3, 10)
    push(store, tmp_path / "run", "/run")
    write_file(store, "/run/ckpt-11.index", b"incomplete")
    assert [one.name for one in checkpoints.prune(store, "/run", 2)] == ["ckpt-1", "ckpt-2"]
    left = {one.name: (one.complete, one.latest) for one in checkpoints.checkpoints(store, "/run")}
    assert left == {
        "ckpt-3": (True, False),
        "ckpt-10": (True, True),
        "ckpt-11": (False, False),
    }
    state = read_file(store, "/run/checkpoint").decode()
    assert 'ckpt-1"' not in state
    assert state.count("all_model_checkpoint_paths") == 2
    assert state.count("all_model_checkpoint_timestamps") == 2


def test_paths_in_the_state_become_relative(store, tmp_path):
    folder = tmp_path / "run"
    save(folder, 1)
    text = (folder / "checkpoint").read_text().replace('"ckpt-1"', f'"{folder}/ckpt-1"')
    (folder / "checkpoint").write_text(text)
    push(store, folder, "/run")
    assert 'model_checkpoint_path: "ckpt-1"' in read_file(store, "/run/checkpoint").decode()


def test_watch_pushes_what_appears(store, tmp_path):
    stop, reports = threading.Event(), []
    options = {"interval_s": 0.1, "keep": 2, "stopped": stop.is_set, "on_push": reports.append}
    thread = threading.Thread(target=watch, args=(store, tmp_path / "run", "/run"), kwargs=options)
    thread.start()
    for step in (1, 2, 3):
        save(tmp_path / "run", step)
        time.sleep(0.4)
    save(tmp_path / "run", 4)
    stop.set()
    thread.join(20)
    assert [one.name for one in checkpoints.checkpoints(store, "/run")] == ["ckpt-3", "ckpt-4"]
    assert reports


def test_checkpoint_commands(run, tmp_path):
    save(tmp_path / "run", 1, 2, 3)
    pushed = run("checkpoint", "push", str(tmp_path / "run"), "igfs:///run", "-o", "json")
    assert json.loads(pushed.stdout)["copied"] == 7
    listed = json.loads(run("checkpoint", "ls", "/run", "-o", "json").stdout)
    assert [(row["name"], row["latest"]) for row in listed][-1] == ("ckpt-3", True)
    run("checkpoint", "prune", "/run", "--keep", "1", "-y")
    pulled = run("checkpoint", "pull", "/run", str(tmp_path / "copy"), "-o", "json")
    assert json.loads(pulled.stdout)["copied"] == 3
    assert run("checkpoint", "pull", "/none", str(tmp_path / "x"), code=1).stderr.startswith(
        "error: /none"
    )


def test_fs_commands(run, tmp_path):
    run("fs", "mkdir", "-p", "igfs:///a/b")
    run("fs", "put", "-", "/a/b/one.txt", input="hello\n")
    assert run("fs", "cat", "/a/b/*.txt").stdout == "hello\n"
    assert run("fs", "ls", "/a").stdout == "/a/b/\n"
    run("fs", "cp", "/a/b/one.txt", "/a/b/two.txt")
    run("fs", "mv", "/a/b/two.txt", "/a/")
    assert run("fs", "ls", "-r", "/a").stdout.splitlines() == [
        "/a/b/",
        "/a/b/one.txt",
        "/a/two.txt",
    ]
    run("fs", "cp", "-r", "/a", "/c")
    used = json.loads(run("fs", "du", "/c", "-o", "json").stdout)
    assert used[-1] == {"bytes": 12, "files": 2, "name": "/c"}
    run("fs", "get", "-r", "/c", f"{tmp_path}/")
    assert (tmp_path / "c" / "b" / "one.txt").read_text() == "hello\n"
    assert run("fs", "get", "/c/two.txt", "-").stdout == "hello\n"
    (tmp_path / "c" / "empty").mkdir()
    run("fs", "put", "-r", str(tmp_path / "c"), "/d")
    assert "/d/empty/" in run("fs", "ls", "/d").stdout
    facts = json.loads(run("fs", "stat", "/d/two.txt", "-o", "json").stdout)
    assert (facts["type"], facts["size"], facts["chunks"]) == ("file", 6, 1)
    assert "use -r" in run("fs", "rm", "/d", code=1).stderr
    run("fs", "rm", "-r", "/d", "/c", "-y")
    assert "cannot be removed" in run("fs", "rm", "-r", "/", code=1).stderr
    assert "No such file" in run("fs", "cat", "/d/x", code=1).stderr
    assert "nothing matches" in run("fs", "ls", "/z*", code=1).stderr
    run("fs", "mv", code=2)
    report = json.loads(run("fs", "check", "--repair", "--read", "-o", "json").stdout)
    assert report["ok"]
    assert report["files"] == 2
    assert report["chunks"] == 2
    assert not Path("igfs:").exists()


def test_what_is_missing_is_told_with_what_is_like_it(run, store, tmp_path):
    run("fs", "put", "-", "/notes/hello.txt", input="hello")
    for missing, like in {
        "/notes/helo.txt": "/notes/hello.txt",
        "/nots/hello.txt": "/notes/hello.txt",
        "igfs:///note": "/notes",
        "/nots/other.txt": "/notes",
    }.items():
        hint = f"hint: did you mean {like}?\n"
        for command in (("cat",), ("stat",), ("du",), ("rm",), ("get",)):
            target = [str(tmp_path / "x")] if command == ("get",) else []
            assert hint in run("fs", *command, missing, *target, code=1).stderr, command
    assert "did you mean /notes?" in run("checkpoint", "ls", "/note", code=1).stderr
    assert "hint" not in run("fs", "cat", "/zzz", code=1).stderr
    # A file of this machine, whose path is like one there.
    assert "hint" not in run("fs", "put", "/notes/helo.txt", "/notes/", code=1).stderr
    told = run("fs", "ls", "igfs://notes.invalid/hello.txt", code=1).stderr
    assert "igfs:///folder/file" in told


def test_commands_take_a_name_that_could_be_a_pattern_for_itself(run, store, tmp_path):
    for name in ("a[1].txt", "a1.txt", "*", "b"):
        run("fs", "put", "-", f"/w/{name}", input=name)
    run("fs", "rm", "/w/a[1].txt")
    run("fs", "mv", "/w/*", "/w/star")
    run("fs", "cp", "/w/star", "/w/?")
    run("fs", "cp", "/w/?", "/w/copy")
    assert run("fs", "ls", "/w").stdout.splitlines() == [
        "/w/?",
        "/w/a1.txt",
        "/w/b",
        "/w/copy",
        "/w/star",
    ]
    assert run("fs", "cat", "/w/copy").stdout == "*"
    run("fs", "get", "/w/b", str(tmp_path / "b"))
    assert tree(tmp_path) == {"b": b"b"}


@pytest.fixture
def unlisted(monkeypatch):
    """Let the listing of a local folder fail, as without permission."""

    def forbid(folder):
        def checked(real, path=".", *more):
            if path in (folder, str(folder)):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return real(path, *more)

        for name in ("scandir", "listdir"):
            monkeypatch.setattr(os, name, functools.partial(checked, getattr(os, name)))

    return forbid


@pytest.mark.parametrize("how", ["unlisted", "link"])
def test_what_push_cannot_look_into_is_not_removed_there(store, tmp_path, unlisted, how):
    folder = tmp_path / "run"
    (folder / "old").mkdir(parents=True)
    (folder / "old" / "notes").write_text("kept")
    (folder / "gone").write_text("removed")
    push(store, folder, "/run")
    (folder / "gone").unlink()
    if how == "unlisted":
        unlisted(folder / "old")
    else:
        (folder / "old").rename(tmp_path / "elsewhere")
        (folder / "old").symlink_to(tmp_path / "elsewhere")
    report = push(store, folder, "/run", delete=True)
    assert [name for name, _ in store.list("/run")] == ["old"]
    assert read_file(store, "/run/old/notes") == b"kept"
    assert [one.partition(":")[0] for one in report.left_out] == ["old"]


def test_put_copies_all_of_a_folder_or_says_what_not(run, store, tmp_path, unlisted):
    folder = tmp_path / "d"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x").write_text("x")
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path / "other")
    run("fs", "put", "-r", str(folder), "/d")
    assert read_file(store, "/d/link/x") == b"x"
    (folder / "link" / "up").symlink_to(folder)
    assert "a link to a parent folder" in run("fs", "put", "-r", f"{folder}", "/d", code=1).stderr
    (folder / "link" / "up").unlink()
    os.mkfifo(folder / "pipe")
    assert "neither a file nor a folder" in run("fs", "put", "-r", f"{folder}", "/d", code=1).stderr
    (folder / "pipe").unlink()
    unlisted(folder / "link")
    assert "Permission denied" in run("fs", "put", "-r", f"{folder}", "/d", code=1).stderr
