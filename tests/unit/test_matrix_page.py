"""The page of supported versions names what the matrix of servers runs."""

import re
import sys

from helpers.paths import ROOT

sys.path.insert(0, str(ROOT / "tests" / "matrix"))
from servers import CHECKS, MATRIX, PAGE, table, write


def rows(text):
    """The table of the page, {check: cells}, and its versions."""
    lines = text[text.index("<!-- matrix -->") : text.index("<!-- end of the matrix -->")]
    cells = [line.strip("| ").split(" | ") for line in lines.splitlines() if line[:1] == "|"]
    return {name: found for name, *found in cells[2:]}, cells[0][1:]


def test_the_page_has_each_check_on_each_version():
    found, versions = rows(PAGE.read_text("utf-8"))
    assert versions == list(MATRIX)
    assert list(found) == [*CHECKS, "**hold**"]
    assert all(len(cells) == len(MATRIX) for cells in found.values())


def test_results_are_written_with_their_notes(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- matrix -->\nstale line\n<!-- end of the matrix -->\nafter\n")
    first, second, *rest = CHECKS
    results = {"1": {first: "yes", second: "no: E: damaged"}, "2": dict.fromkeys(CHECKS, "yes")}
    write(results, page)
    text = page.read_text()
    assert re.match(r"before\n.*\nafter\n$", text, re.DOTALL) and "stale line" not in text
    found, versions = rows(text)
    assert versions == ["1", "2"]
    assert (found[first], found[second]) == (["yes", "yes"], ["no (1)", "yes"])
    assert found[rest[0]] == ["not run", "yes"]
    assert found["**hold**"] == [f"1 of {len(CHECKS)}", f"{len(CHECKS)} of {len(CHECKS)}"]
    assert "1. E: damaged" in table(results)
