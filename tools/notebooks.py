"""Makes the notebooks of docs/tutorials from their pages: `python tools/notebooks.py`.

A file becomes a cell that writes it, a command a line with `!`. The installation stays text, since
it comes before the notebook. Outputs are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).resolve().parents[1] / "docs" / "tutorials"
_BLOCK: Final = re.compile(
    r'^```(?P<language>\w*)(?: title="(?P<title>[^"]+)")?\n(?P<content>.*?)^```\n', re.M | re.S
)


def notebook(page: str) -> dict[str, Any]:
    """Return the notebook of a page, in version 4.5 of the format."""
    cells = [
        {
            "cell_type": kind,
            "id": f"cell-{number}",
            "metadata": {},
            "source": text.splitlines(keepends=True),
        }
        | ({"execution_count": None, "outputs": []} if kind == "code" else {})
        for number, (kind, text) in enumerate(_cells(page))
    ]
    python = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {
        "cells": cells,
        "metadata": {"kernelspec": python, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def _cells(page: str) -> Iterator[tuple[str, str]]:
    """Yield the kind and the text of each cell."""
    prose, begin = "", 0
    for block in _BLOCK.finditer(page):
        prose += page[begin : block.start()]
        begin = block.end()
        code = _code(block["language"], block["title"], block["content"])
        if code is None:
            prose += block[0]
            continue
        if prose.strip():
            yield "markdown", prose.strip()
        yield "code", code
        prose = ""
    prose += page[begin:]
    if prose.strip():
        yield "markdown", prose.strip()


def _code(language: str, title: str | None, content: str) -> str | None:
    """Return the code of a block; None if it stays text."""
    if title:
        return f"%%writefile {title}\n{content}".rstrip()
    if language == "console":
        commands = [line[2:] for line in content.splitlines() if line.startswith("$ ")]
    elif language == "sh" and "pip install" not in content:
        commands = content.splitlines()
    else:
        return content.rstrip() if language == "python" else None
    return "\n".join(f"%{c}" if c.startswith("cd ") else f"!{c}" for c in commands)


def text_of(page: Path) -> str:
    """Return the notebook of a page as the text of its file."""
    made = notebook(page.read_text(encoding="utf-8"))
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Write the notebook of every page."""
    for page in sorted(FOLDER.glob("*.md")):
        page.with_suffix(".ipynb").write_text(text_of(page), encoding="utf-8")


if __name__ == "__main__":
    main()
