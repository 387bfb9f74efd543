"""Helpers shared by tests of several folders. Fixtures are in `conftest.py`."""
