"""What a launcher says of an exception that ended a worker."""

import pytest

from ignitetf.launch.worker import _one_line


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError(), "ValueError"),
        (ValueError("one\ntwo"), "ValueError: one"),
        (
            ValueError('in user code:\n\n    File "train.py", line 3\n\n    TypeError: not that\n'),
            "ValueError: TypeError: not that",
        ),
        (ValueError("in user code:\n\n    ValueError: so\n"), "ValueError: so"),
        (
            OSError("Graph execution error:\n\nDetected at\nno room\n\t [[{{node a}}]] [Op:b]"),
            "OSError: no room",
        ),
        (KeyError("told:\n[["), "KeyError: 'told:\\n[['"),
    ],
)
def test_the_line_that_tells_most(error, line):
    assert _one_line(error) == line
