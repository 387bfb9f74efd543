"""What a test does where something that it needs is not there."""

import os
import sys

import pytest

IN_CI = os.environ.get("CI", "").lower() in ("1", "true")


def missing(reason):
    """Skip with the reason; in CI a test that cannot run has failed."""
    if IN_CI:
        pytest.fail(reason)
    pytest.skip(reason)


def without_native(reason):
    """Skip a test whose subject is a native part, in CI as well, but where it could be built."""
    from ignitetf.native import NotBuilt, compiler

    try:
        compiler()
    except NotBuilt:
        pytest.skip(reason)
    if sys.platform == "linux":
        missing(reason)
    pytest.skip(reason)


def needs_native_io():
    """Skip a test whose programs have `igfs://` inside TensorFlow where that cannot be had."""
    from ignitetf.fs.oserrors import NativeIOUnavailable
    from ignitetf.fs.shim import shim_path

    pytest.importorskip("tensorflow")
    try:
        shim_path()
    except NativeIOUnavailable as error:
        without_native(str(error))
