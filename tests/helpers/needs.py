"""What tests do when something they need is missing."""

import importlib
import os
import sys

import pytest

from helpers.paths import ROOT

IN_CI = os.environ.get("CI", "").lower() in ("1", "true")


def missing(reason):
    """Skip with the reason; in CI fail instead, so that no test goes missing unnoticed."""
    if IN_CI:
        pytest.fail(reason)
    pytest.skip(reason)


def compiling():
    """Return the module that compiles the core, which no package has."""
    sys.path.insert(0, str(ROOT / "_build"))
    try:
        return importlib.import_module("compiling")
    finally:
        sys.path.pop(0)


def needs_compiler():
    """Skip a test that compiles C, in CI too, where there is no compiler."""
    if compiling().compiler() is None:
        pytest.skip("there is no C compiler")


def needs_native_io():
    """Skip a test that needs `igfs://` inside TensorFlow if that is unavailable."""
    pytest.importorskip("tensorflow")
    if sys.platform != "linux":
        pytest.skip("igfs:// inside TensorFlow is for Linux")
