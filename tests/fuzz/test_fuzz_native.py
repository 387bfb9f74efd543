"""The texts for TensorFlow under ASan and UBSan: no bounds read or write outside their memory.

IGNITETF_FUZZ_INPUTS=10000000 is the nightly run. `test_fuzz_core.py` does the same for pages.
"""

import os
import subprocess
from pathlib import Path

import pytest
from fuzzing import SEED, count
from helpers.needs import compiling, needs_compiler

HERE = Path(__file__).with_name("native")
CORE = Path(__file__).resolve().parents[2] / "ignitetf" / "_core"
FLAGS = ("-std=gnu11", "-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
CHECKED = {"ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:handle_abort=1"}


def built(folder, name, *sources):
    """Compile a program with the sanitizers, or skip where the compiler has none."""
    needs_compiler()
    command = [*compiling().compiler(), *FLAGS, "-I", str(CORE)]
    empty = folder / "empty.c"
    empty.write_text("int main(void) { return 0; }\n")
    probe = subprocess.run(
        [*command, "-o", str(folder / "empty"), str(empty)], capture_output=True, check=False
    )
    if probe.returncode or subprocess.run([str(folder / "empty")], check=False).returncode:
        pytest.skip("this compiler has no sanitizers")
    target = folder / name
    subprocess.run([*command, "-o", str(target), *map(str, sources)], check=True, timeout=300)
    return target


def run(program, *words):
    done = subprocess.run(
        [str(program), *map(str, words)],
        env={**os.environ, **CHECKED}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-6000:]}"
    print(f"\n{program.name}: {done.stdout.strip()}")


def test_texts_of_any_bounds_stay_inside_their_page(tmp_path):
    run(built(tmp_path, "texts", HERE / "texts.c"), SEED, count(30_000))
