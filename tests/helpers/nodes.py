"""Nodes that tests start themselves."""

import contextlib

import pytest


@contextlib.contextmanager
def without_recording():
    """Stop nodes started in this block from writing the start-up cache of their home.

    For nodes that end late: a shorter test writes it sooner, and writing it twice takes seconds.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IGNITETF_AOT", "off")
        yield
