"""The examples of distributed training, launched as a user does."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ignitetf import open_rows
from ignitetf.load.loader import load_dataset
from ignitetf.load.sources import open_source

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(240)]
tf = pytest.importorskip("tensorflow")

EXAMPLES = Path(__file__).parents[2] / "examples" / "distributed"


def launch(address, script, *options):
    """Run an example to its end; return what its workers printed, and the job's record."""
    words = [sys.executable, "-m", "ignitetf", "launch", "--address", address, "-o", "json"]
    done = subprocess.run(
        [*words, *options, str(EXAMPLES / script)],
        capture_output=True,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr, json.loads(done.stdout)


def test_the_gradient_over_all_rows_is_that_of_one_process(address, mnist_parts):
    name, _ = mnist_parts
    columns = open_rows(name, address, order="keys")[:]["val"]
    features = columns["IMAGE"].reshape(-1, 784).astype(np.float64) / 255
    weights = tf.random.stateless_normal((784, 10), seed=(1, 2)).numpy().astype(np.float64) / 100
    logits = features @ weights
    shares = np.exp(logits - logits.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    shares[np.arange(len(shares)), columns["LABEL"]] -= 1
    expected = features.T @ shares

    told, _ = launch(address, "gradient.py", "-n", "2", "--data", name)
    rows = [int(n) for n in re.findall(rf"(\d+) rows of {len(features)}\n", told)]
    assert len(rows) == 2 and sum(rows) == len(features) and min(rows) > 0
    found = re.findall(r"gradient (\S+) (\S+)\n", told)
    assert len(found) == 2 and found[0] == found[1]
    norm, entry = map(float, found[0])
    assert norm == pytest.approx(np.linalg.norm(expected), rel=1e-5)
    assert entry == pytest.approx(expected[400, 3], rel=1e-4)


def test_images_on_two_workers(address, client, cache_name, voc_dir):
    load_dataset(open_source("voc", str(voc_dir)), cache_name, client=client, partitions=8)
    told, _ = launch(address, "voc.py", "-n", "2", "--data", cache_name)
    steps = -(-client.cache_size(cache_name) // 16)
    found = re.findall(r"worker \d: (\d+) steps, weights (\S+)\n", told)
    assert len(found) == 2 and found[0] == found[1] and int(found[0][0]) == steps


def test_parameter_servers(address, mnist_parts):
    name, _ = mnist_parts
    told, _ = launch(address, "parameter_servers.py", "-n", "1", "--ps", "1", "--data", name)
    first, last = map(float, re.search(r"loss (\S+) at first, (\S+) at last", told).groups())
    assert last < first / 1.5
