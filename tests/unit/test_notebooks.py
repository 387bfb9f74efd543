"""The notebooks of the tutorials are made from their pages, whose steps another test runs."""

import json
import runpy

import pytest
from helpers.paths import ROOT

TOOL = runpy.run_path(str(ROOT / "tools" / "notebooks.py"))
PAGES = sorted((ROOT / "docs" / "tutorials").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_notebook_is_that_of_its_page(page):
    assert page.with_suffix(".ipynb").read_text(encoding="utf-8") == TOOL["text_of"](page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_notebook_has_each_file_and_command_of_its_page(page):
    made = json.loads(TOOL["text_of"](page))
    code = ["".join(cell["source"]) for cell in made["cells"] if cell["cell_type"] == "code"]
    text = page.read_text(encoding="utf-8")
    commands = [line[2:] for line in text.splitlines() if line.startswith("$ ")]
    lines = [line[1:] for cell in code for line in cell.splitlines() if line.startswith("!")]
    assert [line for line in lines if line in commands] == commands
    assert sum(cell.startswith("%%writefile ") for cell in code) == text.count(' title="')
