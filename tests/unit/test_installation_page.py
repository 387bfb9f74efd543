"""The page on installation lists the extras of the project."""

import re
import tomllib

from helpers.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
PAGE = (ROOT / "docs" / "installation.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (`.*?) \| .*? \| (yes)? ?\|$", PAGE, re.MULTILINE)


def test_the_page_lists_every_extra_and_no_other():
    listed = [name for names, _ in ROWS for name in re.findall(r"`([\w-]+)`", names)]
    assert sorted([*listed, "all"]) == sorted(EXTRAS)


def test_the_page_says_what_all_includes():
    inner = next(each for each in EXTRAS["all"] if each.startswith("ignitetf["))
    included = set(inner.partition("[")[2].rstrip("]").split(","))
    assert {names.strip("`") for names, yes in ROWS if yes} == included


def test_the_clone_is_that_of_the_project():
    assert f"git clone {PROJECT['urls']['Homepage']}\n" in PAGE
