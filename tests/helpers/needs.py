"""What tests do when something they need is missing."""

import os
import sys

import pytest

IN_CI = os.environ.get("CI", "").lower() in ("1", "true")


def missing(reason):
    """Skip with the reason; in CI fail instead, so that no test goes missing unnoticed."""
    if IN_CI:
        pytest.fail(reason)
    pytest.skip(reason)


def without_native(reason):
    """Skip a test of a native part, in CI too, unless a compiler could have built it."""
    from ignitetf.native import NotBuilt, compiler

    try:
        compiler()
    except NotBuilt:
        pytest.skip(reason)
    if sys.platform == "linux":
        missing(reason)
    pytest.skip(reason)


def needs_native_io():
    """Skip a test that needs `igfs://` inside TensorFlow if that is unavailable."""
    from ignitetf.fs.oserrors import NativeIOUnavailable
    from ignitetf.fs.shim import shim_path

    pytest.importorskip("tensorflow")
    try:
        shim_path()
    except NativeIOUnavailable as error:
        without_native(str(error))
