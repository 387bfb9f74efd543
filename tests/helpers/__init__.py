"""What tests of several folders share. Fixtures are in `conftest.py`."""
