"""`tf.io.gfile` on `igfs://` beside `tf.io.gfile` on a local directory: the same answers.

Random programs run on both; what they give, and the class of each error, must be equal. What
differs on purpose is said in `docs/igfs.md`, and left out or evened out here.
"""

import inspect
import itertools
import os
import random
from pathlib import Path

import pytest
from helpers.needs import needs_native_io

from ignitetf.settings import Settings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
tf = pytest.importorskip("tensorflow")
pytestmark = [pytest.mark.node, pytest.mark.timeout(300)]

_numbers = itertools.count()
PROGRAMS = 8
STEPS = 60


@pytest.fixture(scope="module")
def plugin(address):
    needs_native_io()
    from ignitetf.fs import gfile

    gfile.configure(Settings.resolve(address=address), "LIKELOCAL")
    return gfile


@pytest.fixture
def base(plugin):
    path = f"igfs:///l{os.getpid()}-{next(_numbers)}"
    tf.io.gfile.mkdir(path)
    yield path
    tf.io.gfile.rmtree(path)


def outcome(function, *arguments, **options):
    """What a call gives, or the class of its error."""
    try:
        return function(*arguments, **options)
    except tf.errors.OpError as error:
        return type(error).__name__
    except (OSError, ValueError) as error:
        return f"python: {type(error).__name__}"


def facts(path):
    found = tf.io.gfile.stat(path)
    return found.is_directory, None if found.is_directory else found.length


def tree(path):
    return sorted((where, sorted(d), sorted(f)) for where, d, f in tf.io.gfile.walk(path))


def use_file(path, mode, actions):
    """Open a file and do things with it; gives what each gave."""
    got = []
    with tf.io.gfile.GFile(path, mode) as file:
        for name, *arguments in actions:
            found = outcome(getattr(file, name), *arguments)
            got.append(found)
            if isinstance(found, str) and found.endswith("Error"):
                break
    return got


class Program:
    """A random program, that can be run below any directory."""

    def __init__(self, seed):
        self.rng = rng = random.Random(seed)
        names = ["a", "b", "ż c"]
        self.paths = [
            *names,
            *(f"{x}/{y}" for x in names for y in names),
            *(f"{x}/{y}/z" for x in names for y in names),
            "a//b/../b/./a",
        ]
        self.steps = [rng.choice(self.KINDS)(self) for _ in range(STEPS)]

    def one(self, name):
        path = self.rng.choice(self.paths)
        return name, [path], {}

    def look(self):
        return self.one(self.rng.choice(["exists", "isdir", "listdir", "facts", "tree"]))

    def make(self):
        return self.one(self.rng.choice(["mkdir", "makedirs"]))

    def take(self):
        return self.one(self.rng.choice(["remove", "remove", "rmtree"]))

    def two(self):
        name = self.rng.choice(["copy", "rename"])
        paths = [self.rng.choice(self.paths), self.rng.choice(self.paths)]
        return name, paths, {"overwrite": self.rng.random() < 0.6}

    def find(self):
        pattern = self.rng.choice(["*", "*/*", "a/?", "[ab]/*", "[^a]", "a*/*/z", "ż*", "none*"])
        return "glob", [pattern], {}

    def write(self):
        mode = self.rng.choice(["w", "wb", "a", "ab"])
        text = self.rng.choice(["", "one\ntwo\n", "żółć", "x" * 5000])
        data = text.encode() if "b" in mode else text
        actions = [("write", data)] * self.rng.randrange(1, 3) + [("tell",), ("flush",), ("size",)]
        if self.rng.random() < 0.2:
            actions.append(("read", 3))
        return "use_file", [self.rng.choice(self.paths)], {"mode": mode, "actions": actions}

    def read(self):
        choices = [
            ("read",), ("read", 3), ("readline",), ("seek", 2), ("seek", -1), ("seek", 0, 2),
            ("seek", -2, 2), ("tell",), ("size",), ("readlines",), ("seek", 10**6), ("read", 0),
        ]  # fmt: skip
        actions = [self.rng.choice(choices) for _ in range(self.rng.randrange(1, 6))]
        mode = self.rng.choice(["rb", "rb", "r"])
        return "use_file", [self.rng.choice(self.paths)], {"mode": mode, "actions": actions}

    KINDS = (look, look, make, take, two, two, find, write, write, write, read, read)


OWN = {"facts": facts, "tree": tree, "use_file": use_file}


def run(step, base):
    name, paths, options = step
    function = OWN.get(name) or getattr(tf.io.gfile, name)
    found = outcome(function, *(f"{base}/{path}" for path in paths), **options)
    if name == "glob":
        found = sorted(path.removeprefix(base) for path in found)
    if name == "tree":
        found = [(where.removeprefix(base), d, f) for where, d, f in found]
    if name == "listdir" and isinstance(found, list):
        found = sorted(entry.rstrip("/") for entry in found)
    return found


def differs_on_purpose(step, local):
    """What a program does not do, since a local directory answers otherwise."""
    name, paths, options = step
    first = Path(os.path.normpath(f"{local}/{paths[0]}"))
    if name == "use_file" and options["mode"][0] in "wa":
        return not first.parent.exists()  # here made on the way
    if name in ("use_file", "copy"):
        return first.is_dir()  # local ones open, and fail then, if at all
    return False


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_random_programs_give_the_same(base, tmp_path, seed):
    local = str(tmp_path)
    done = []
    for step in Program(seed).steps:
        if differs_on_purpose(step, local):
            continue
        done.append(step)
        expected = run(step, local)
        assert run(step, base) == expected, (done, expected)
    assert run(("tree", [""], {}), base) == run(("tree", [""], {}), local)


def test_paths_that_nothing_can_be_at_are_not_there(base, tmp_path):
    for root in (base, str(tmp_path)):
        with tf.io.gfile.GFile(f"{root}/file", "w") as file:
            file.write("x")
        for path in (f"{root}/file/x", f"{root}/file/x/y", f"{root}/{'n' * 1000}"):
            assert not tf.io.gfile.exists(path)
            assert not tf.io.gfile.isdir(path)
            assert tf.io.gfile.glob(path) == []
    from ignitetf.fs.filesystem import IgniteFileSystem
    from ignitetf.fs.gfile import _handles

    store, _ = _handles._at(base)
    fs = IgniteFileSystem(settings=store.client.settings, name=store.name)
    for name in ("file/x", "n" * 1000, "a\0b", "\udcff"):
        path = f"{base.removeprefix('igfs://')}/{name}"
        assert not fs.exists(path)
        assert not fs.isfile(path)
        assert not fs.isdir(path)


def test_directories_without_end(base, tmp_path):
    deep = "/".join("d" * 300)
    for root in (base, str(tmp_path)):
        tf.io.gfile.makedirs(f"{root}/{deep}")
        tf.io.gfile.makedirs(f"{root}/{deep}")
        assert tf.io.gfile.isdir(f"{root}/{deep}")
        tf.io.gfile.rmtree(f"{root}/d")
        assert tf.io.gfile.listdir(root) == []


def test_a_directory_is_no_target_of_a_copy(base, tmp_path):
    for root in (base, str(tmp_path)):
        tf.io.gfile.mkdir(f"{root}/d")
        with tf.io.gfile.GFile(f"{root}/f", "w") as file:
            file.write("x")
        with pytest.raises(tf.errors.FailedPreconditionError):
            tf.io.gfile.copy(f"{root}/f", f"{root}/d", overwrite=True)
        assert tf.io.gfile.listdir(f"{root}/d") == []


def test_modes_that_read_and_write_are_refused_at_open(base):
    with tf.io.gfile.GFile(f"{base}/f", "w") as file:
        file.write("kept")
    for mode in ("r+", "w+", "a+", "rb+", "w+b"):
        with pytest.raises(tf.errors.UnimplementedError, match="open them once for each"):
            tf.io.gfile.GFile(f"{base}/f", mode)
    from ignitetf.fs.filesystem import IgniteFileSystem
    from ignitetf.fs.gfile import _handles

    store, path = _handles._at(f"{base}/f")
    fs = IgniteFileSystem(settings=store.client.settings, name=store.name)
    for mode in ("r+", "w+", "a+", "r+b", "w+b"):
        with pytest.raises(NotImplementedError, match="open them once for each"):
            fs.open(path, mode)
    assert fs.cat(path) == b"kept"


def test_keras_weights_in_several_files(base, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = tf.keras.Sequential(
        [tf.keras.Input((64,)), tf.keras.layers.Dense(256), tf.keras.layers.Dense(64)]
    )
    if "max_shard_size" not in str(inspect.signature(model.save_weights)):
        pytest.skip("this Keras does not write weights in several files")
    model.save_weights(f"{base}/s.weights.json", max_shard_size=0.00007)
    names = tf.io.gfile.listdir(base)
    assert len(names) > 2
    again = tf.keras.models.clone_model(model)
    again.load_weights(f"{base}/s.weights.json")
    for old, new in zip(model.get_weights(), again.get_weights(), strict=True):
        assert (old == new).all()
    assert list(tmp_path.iterdir()) == []
