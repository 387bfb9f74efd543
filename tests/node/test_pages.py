"""The tutorials and the pages after them run, and print what they say they print."""

import json
from pathlib import Path

import pytest
from helpers.needs import needs_native_io
from helpers.pages import Page, blocks, run

pytest.importorskip("tensorflow")
pytestmark = pytest.mark.node
ROOT = Path(__file__).resolve().parents[2]
# In this order: the later ones use the photos of the first.
PAGES = (
    *("tutorials/photos", "tutorials/table", "tutorials/mnist"),
    *("migration", "faq", "packing"),
    *("sources", "training", "watching"),
)
MADE = (
    *("HOUSES", "MNIST_TRAIN", "MNIST_TEST", "PHOTOS", "MOVED", "NULLS", "TOKENIZED"),
    *("PETS", "STREETS", "STREETS_ANNOTATIONS", "ARRAYS", "PEOPLE", "MEASURES", "EXAMPLES"),
    *("SAMPLES", "LETTERS", "TALL", "FRAME", "WATCHED", "POINTS", "NUMBERS"),
)


def text_of(name):
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def folder(client, tmp_path_factory):
    from ignitetf.tables.catalog import drop_manifest

    def drop():
        for name in MADE:
            client.sql(f"DROP TABLE IF EXISTS {name}")
            drop_manifest(client, name)

    drop()
    yield tmp_path_factory.mktemp("pages")
    drop()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_prints_what_it_says(name, folder, address, monkeypatch, request):
    monkeypatch.setenv("IGNITETF_ADDRESS", address)
    monkeypatch.chdir(folder)
    text = text_of(name)
    if "ignitetf load mnist" in text:  # the files that are here, instead of a download
        source = request.getfixturevalue("mnist_dir")
        text = text.replace("$ ignitetf load mnist ", f"$ ignitetf load mnist --source {source} ")
    Page(text, address, folder).run()


def test_the_cells_of_a_notebook_run(client, address, tmp_path):
    """One of them in full; a unit test compares all with the pages, which run above."""
    client.sql("DROP TABLE IF EXISTS HOUSES")
    text = (ROOT / "docs" / "tutorials" / "table.ipynb").read_text(encoding="utf-8")
    cells = [c for c in json.loads(text)["cells"] if c["cell_type"] == "code"]
    printed = ""
    for source in ("".join(cell["source"]) for cell in cells):
        first, _, rest = source.partition("\n")
        if first.startswith("%%writefile "):
            (tmp_path / first.split()[1]).write_text(rest, encoding="utf-8")
            continue
        for line in source.splitlines():
            if line.startswith("!") and not line.startswith(("!mkdir ", "!ignitetf node ")):
                printed = run(line[1:], address, tmp_path)
    assert printed.count("\n") == 4  # the guesses of three houses


@pytest.mark.parametrize("name", ["mnist", "photos", "table"])
def test_a_tutorial_installs_as_the_readme_does(name):
    first = next(block for block in blocks(text_of(f"tutorials/{name}")) if block[0] == "sh")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert first[2].split(" && ")[0] in readme
    assert "pip install '.[all]'" in first[2]


def test_the_way_around_csvlogger_keeps_every_row(address, monkeypatch):
    needs_native_io()
    import keras
    import numpy as np
    import tensorflow as tf

    from ignitetf.fs import gfile

    gfile.configure()  # as in a new process
    monkeypatch.setenv("IGNITETF_ADDRESS", address)
    names = {}
    exec(next(c for _, _, c in blocks(text_of("faq")) if "CSVLogger" in c), names)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    path = f"igfs://{address}/tutorial/log.csv"
    for append in (False, True):
        log = names["Log"](path, append=append)
        model.fit(np.ones((8, 3)), np.ones(8), epochs=2, verbose=0, callbacks=[log])
    with tf.io.gfile.GFile(path) as file:
        lines = file.read().splitlines()
    assert [line.partition(",")[0] for line in lines] == ["epoch", "0", "1", "0", "1"]
