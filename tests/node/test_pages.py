"""The tutorial and the pages after it run, and print what they say they print."""

from pathlib import Path

import pytest
from helpers.pages import Page, blocks

pytest.importorskip("tensorflow")
pytestmark = pytest.mark.node
ROOT = Path(__file__).resolve().parents[2]
# In this order: the later ones use the photos of the first.
PAGES = ("tutorial", "operations", "migration", "faq")
MADE = ("PHOTOS", "MOVED", "NULLS")


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
def test_a_page_prints_what_it_says(name, folder, address, monkeypatch):
    monkeypatch.setenv("IGNITETF_ADDRESS", address)
    monkeypatch.chdir(folder)
    Page(text_of(name), address, folder).run()


def test_the_tutorial_installs_as_the_readme_does():
    first = next(block for block in blocks(text_of("tutorial")) if block[0] == "sh")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert first[2].splitlines()[0] in readme
