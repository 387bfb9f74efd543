"""`tensorboard --logdir igfs:///logs` beside a training process that has its log still open."""

import contextlib
import itertools
import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest
from helpers.needs import needs_native_io

from ignitetf.settings import Settings

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tensorboard")
pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(240)]

_numbers = itertools.count()
_LIMIT_S = 60.0
_PROGRAMS = {
    "with TensorFlow": "from tensorboard.main import run_main; run_main()",
    # None in sys.modules makes every `import tensorflow` fail, as where it is not installed.
    "without TensorFlow": "import sys; sys.modules['tensorflow'] = None; "
    "from tensorboard.main import run_main; run_main()",
}


@pytest.fixture
def logs(address):
    """A log directory in the file system that TensorBoard finds without being told more."""
    needs_native_io()
    from ignitetf.fs import gfile

    gfile.configure(Settings.resolve(address=address))
    path = f"igfs:///tensorboard{os.getpid()}-{next(_numbers)}"
    yield path
    if tf.io.gfile.exists(path):
        tf.io.gfile.rmtree(path)


@contextlib.contextmanager
def tensorboard(program, logdir, address, folder):
    """A running TensorBoard; gives its URL."""
    command = [sys.executable, "-c", program, "--logdir", logdir, "--host", "127.0.0.1"]
    command += ["--port", "0", "--reload_interval", "1"]
    said = folder / "tensorboard.log"
    environment = {**os.environ, "IGNITETF_ADDRESS": address, "TF_CPP_MIN_LOG_LEVEL": "3"}
    with said.open("wb") as out:
        process = subprocess.Popen(command, env=environment, cwd=folder, stdout=out, stderr=out)
    try:

        def url():
            assert process.poll() is None, said.read_text()[-3000:]
            found = re.search(r"http://127\.0\.0\.1:\d+/", said.read_text())
            return found and found[0]

        yield until(url, lambda found: found)
        assert process.poll() is None, said.read_text()[-3000:]
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def until(look, good):
    """Look again and again until what is seen is good; gives what was seen last."""
    end = time.monotonic() + _LIMIT_S
    while not good(seen := look()):
        assert time.monotonic() < end, f"still {seen!r} after {_LIMIT_S:.0f} s"
        time.sleep(0.25)
    return seen


def data(url, what, **query):
    """What TensorBoard's data API answers, None while it does not know the run."""
    address = f"{url}data/plugin/scalars/{what}?{urllib.parse.urlencode(query)}"
    try:
        with urllib.request.urlopen(address, timeout=30) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
        return None


@pytest.mark.parametrize("program", _PROGRAMS.values(), ids=_PROGRAMS)
def test_scalars_show_while_the_writer_is_open(logs, address, tmp_path, program):
    writer = tf.summary.create_file_writer(f"{logs}/train")
    with writer.as_default():
        tf.summary.scalar("loss", 3.0, step=0)
        writer.flush()
        with tensorboard(program, logs, address, tmp_path) as url:
            tags = until(lambda: data(url, "tags"), lambda seen: seen and "train" in seen)
            assert list(tags["train"]) == ["loss"]
            for step in (1, 2):
                tf.summary.scalar("loss", 3.0 - step, step=step)
                writer.flush()
                points = until(
                    lambda: data(url, "scalars", run="train", tag="loss"),
                    lambda seen, count=step + 1: seen and len(seen) >= count,
                )
                assert [point[1:] for point in points] == [[n, 3.0 - n] for n in range(step + 1)]
    writer.close()
    # Nothing was taken for a local path.
    assert [path.name for path in tmp_path.iterdir()] == ["tensorboard.log"]
