"""How nodes are started in tests."""

import contextlib
import os

import pytest

# The second compiler of a JVM takes half of what a node uses that lives for some seconds.
QUICK = "-XX:TieredStopAtLevel=1"


@contextlib.contextmanager
def compiled_twice():
    """Start nodes in this block with both compilers: they live for the whole run."""
    with pytest.MonkeyPatch.context() as patch:
        if os.environ.get("IGNITETF_JVM_OPTIONS") == QUICK:
            patch.delenv("IGNITETF_JVM_OPTIONS")
        yield


@contextlib.contextmanager
def without_recording():
    """Stop nodes started in this block from writing the start-up cache of their home.

    For nodes that end late: a shorter test writes it sooner, and writing it twice takes seconds.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IGNITETF_AOT", "off")
        yield
