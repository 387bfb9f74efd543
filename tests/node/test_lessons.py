"""The lessons of examples/ run on small data, and both ways of each give the same."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")
pytestmark = [pytest.mark.node, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[2]
LESSONS = ROOT / "examples" / "lessons"
MADE = [
    "LESSON_TRAIN",
    "LESSON_TEST",
    "LESSON_HOUSES",
    "LESSON_HOUSES_BULK",
    "LESSON_VISITS",
    "LESSON_CELLS",
    "LESSON_CELLS_ANNOTATIONS",
]


@pytest.fixture(scope="module", autouse=True)
def leftovers(client):
    from ignitetf.tables.catalog import drop_manifest

    yield
    for name in MADE:
        client.sql(f"DROP TABLE IF EXISTS {name}")
        drop_manifest(client, name)


def lesson(script, address, folder, *options):
    """What a lesson prints, and the ratio in it."""
    done = subprocess.run(
        [sys.executable, str(LESSONS / script), *options],
        cwd=folder,
        env={**os.environ, "IGNITETF_ADDRESS": address, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"takes \d+\.\d+ times as long", done.stdout)
    return done.stdout


def test_feed_dict_and_iterator_train_alike(address, tmp_path):
    printed = lesson("feed_dict.py", address, tmp_path, "--epochs", "12", "--rounds", "1")
    found = [float(x) for x in re.findall(r"accuracy (\S+)", printed)]
    assert len(found) == 2
    assert min(found) > 0.7


def test_batches_on_the_device_train_alike(address, tmp_path, mnist_parts):
    options = ("--cache", mnist_parts[0], "--rows", "1000", "--epochs", "2")
    assert "same weights: True" in lesson("on_device.py", address, tmp_path, *options)


def test_batches_on_the_device_train_alike_in_jax(address, tmp_path, mnist_parts):
    pytest.importorskip("jax", reason="needs jax: pip install 'ignitetf[jax]'")
    options = ("--cache", mnist_parts[0], "--rows", "1000", "--epochs", "2")
    assert "same weights: True" in lesson("on_device_jax.py", address, tmp_path, *options)


def test_a_table_is_a_data_set(address, tmp_path):
    printed = lesson("sql_table.py", address, tmp_path, "--rows", "2000", "--rounds", "1")
    assert "in the table after 1980: [80.0, 120.0]" in printed
    assert "same sum: True" in printed


def test_nested_rows_are_flat_features(address, tmp_path):
    printed = lesson("nested.py", address, tmp_path, "--rows", "500", "--rounds", "1")
    assert "'ADDRESS': {'CITY': TensorSpec" in printed
    assert "same sums: True" in printed


def test_images_are_made_ready_beside_the_training(address, tmp_path, voc_dir):
    options = (str(voc_dir), "--images", "32", "--epochs", "1", "--plot", "overlap.svg")
    printed = lesson("detection.py", address, tmp_path, *options)
    assert len(re.findall(r"epoch \d: loss \d", printed)) == 2
    assert (tmp_path / "overlap.svg").read_text(encoding="utf-8").count("<path") > 10
    assert (tmp_path / "checkpoints" / "checkpoint").is_file()


def test_every_lesson_has_a_page_and_a_test():
    here = Path(__file__).read_text(encoding="utf-8")
    pages = [page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "lessons").glob("*.md")]
    for script in LESSONS.glob("*.py"):
        command = f"python examples/lessons/{script.name}"
        assert any(command in page for page in pages), script
        assert f'lesson("{script.name}"' in here, script
