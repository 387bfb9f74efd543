"""The core under ASan and UBSan: damaged pages neither read nor write outside their memory.

IGNITETF_FUZZ_INPUTS=10000000 is the nightly run.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fuzzing import SEED, count
from helpers.needs import compiling, needs_compiler
from helpers.paths import ROOT

FOLDER = Path(__file__).parent
FLAGS = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
# The node that answers, and the lane's buffer from there.
FEED = (
    "-I", ROOT / "ignitetf" / "_core", "-Wl,--wrap=malloc,--wrap=realloc,--wrap=free",
    FOLDER / "native" / "feed.c",
)  # fmt: skip
# Loads the core that was compiled for this, and then the program.
PROGRAM = """
import importlib, importlib.util, sys
spec = importlib.util.spec_from_file_location("ignitetf._core._native", sys.argv.pop(1))
sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
import ignitetf._core
ignitetf._core._native = module
importlib.import_module(sys.argv.pop(1)).main(*map(int, sys.argv[1:]))
"""


def libraries(command):
    """The sanitizers, which are to be loaded before Python, whose program lacks them."""
    found = []
    for name in ("libasan.so", "libubsan.so"):
        words = [*command, f"-print-file-name={name}"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        path = Path(done.stdout.strip())
        if done.returncode or not path.is_absolute() or not path.exists():
            pytest.skip("this compiler has no sanitizers that can be loaded first")
        found.append(str(path))
    return found


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory):
    """The core with sanitizers, and the environment to use it in."""
    needs_compiler()
    target = tmp_path_factory.mktemp("core") / "_native.so"
    files = [ROOT / source for source in compiling().sources()]
    words = compiling().command(*FLAGS, "-o", target, *files, *FEED)
    subprocess.run(words, check=True, timeout=300)
    path = os.pathsep.join(map(str, (FOLDER, FOLDER.parent, ROOT)))
    return target, {
        **os.environ,
        "LD_PRELOAD": " ".join(libraries(compiling().compiler())),
        # Freed memory that is kept, and stacks that are stored: little of both is quick.
        "ASAN_OPTIONS": "detect_leaks=0:quarantine_size_mb=8:malloc_context_size=2",
        "PYTHONPATH": path,
    }


def run(sanitized, name, *numbers):
    core, environment = sanitized
    words = [sys.executable, "-c", PROGRAM, str(core), name, *map(str, numbers)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-6000:]}"
    print(f"\n{done.stdout.strip()}")


def test_lanes_of_damaged_pages_stay_inside_their_memory(sanitized):
    run(sanitized, "core_lane", SEED, 0, count(20_000))


def test_runs_of_any_bounds_stay_inside_their_page(sanitized):
    run(sanitized, "core_runs", SEED, count(3000))
