"""Nodes that tests start for themselves."""

import contextlib

import pytest


@contextlib.contextmanager
def without_recording():
    """For the start of a node that ends late: it does not write the start-up cache of its home.

    A shorter one does that sooner, and writing it twice takes seconds.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IGNITETF_AOT", "off")
        yield
