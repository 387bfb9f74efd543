"""Pages as programs: what they show is run, and what is printed is compared with them.

A block with a `title` is a file. In a `console` block, lines with `$` are commands, and the others
what they print: standard output, or of a command that fails standard error. A `python` block is
run with the names of those before it; if a `text` block follows at once, it has the error that
the block raises.
"""

import csv
import io
import math
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, field

MEASURED = {"seconds", "rows_per_s", "mb_per_s"}
_BLOCK = re.compile(r'^```(\w*)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
_DECIMAL = re.compile(r"\d+\.\d+")
_IGNITETF = [sys.executable, "-c", "from ignitetf.cli.main import main; main()"]


def blocks(text):
    """(language, title or None, content) of the blocks of a page."""
    return [(b[1], b[2], b[3]) for b in _BLOCK.finditer(text)]


def steps(content):
    """(command, expected output) pairs of a console block."""
    found = []
    for line in content.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return [(command, "\n".join(lines)) for command, lines in found]


def without_rates(text):
    """The rows of a CSV text as dicts, without what is measured."""
    rows = list(csv.DictReader(io.StringIO(text)))
    return [{k: v for k, v in row.items() if k not in MEASURED} for row in rows]


def same(command, printed, expected):
    """Whether a command printed what the page says, but for rates and the ends of decimals."""
    if "--output csv" in command:
        return without_rates(printed) == without_rates(expected)
    near = [
        math.isclose(float(a), float(b), rel_tol=0.15)
        for a, b in zip(_DECIMAL.findall(printed), _DECIMAL.findall(expected), strict=False)
    ]
    return _DECIMAL.sub("#", printed) == _DECIMAL.sub("#", expected) and all(near)


def run(command, address, folder, *, fails=False):
    """What a command prints; `ignitetf` and `python` are those of this environment."""
    words = shlex.split(command)
    programs = {"ignitetf": _IGNITETF, "python": [sys.executable]}
    env = {**os.environ, "IGNITETF_ADDRESS": address}
    done = subprocess.run(
        programs[words[0]] + words[1:],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == int(fails), (command, done.stderr)
    return (done.stderr if fails else done.stdout).strip()


@dataclass
class Page:
    """A page that runs in a folder, against a node."""

    text: str
    address: str
    folder: object
    names: dict = field(default_factory=dict)

    def run(self):
        """Run its blocks in turn."""
        following = [*blocks(self.text)[1:], ("", None, "")]
        for (language, title, content), after in zip(blocks(self.text), following, strict=True):
            if title:
                (self.folder / title).write_text(content, encoding="utf-8")
            elif language == "console":
                self._console(content)
            elif language == "python":
                self._python(content, after[2] if after[0] == "text" else None)
            else:
                assert language in ("sh", "text"), f"a block of {language!r}"

    def _console(self, content):
        for command, expected in steps(content):
            fails = expected.startswith("error: ")
            printed = run(command, self.address, self.folder, fails=fails)
            assert same(command, printed, expected), (command, printed)

    def _python(self, content, expected):
        raised = None
        try:
            exec(compile(content, "page", "exec"), self.names)
        except Exception as error:
            if expected is None:
                raise
            hint = getattr(error, "hint", None)
            raised = f"{type(error).__name__}: {error}" + (f"\nhint: {hint}" if hint else "")
        if expected is not None:
            assert raised == expected.rstrip(), raised
