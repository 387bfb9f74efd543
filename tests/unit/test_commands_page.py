"""docs/commands.md is what the program says of its commands."""

import subprocess
import sys

from helpers.paths import ROOT


def test_the_page_of_commands_is_that_of_the_program():
    words = [sys.executable, "tools/commands_page.py"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert page == done.stdout, "python tools/commands_page.py > docs/commands.md"
