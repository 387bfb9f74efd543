"""The command line in a process that heeds Ctrl-C."""

import sys

# A test run in the background of a shell ignores Ctrl-C, and its children would inherit that. Before
# our code begins, Python would print a traceback; the signal's default ends it as quietly as ours.
_PROGRAM = (
    "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); {then}"
    "from ignitetf.cli import run;"
    "signal.signal(signal.SIGINT, signal.default_int_handler); run()"
)
COMMAND = (sys.executable, "-c", _PROGRAM.format(then=""))


def command_that_tells(begun):
    """As COMMAND, but a file is made once no signal meets Python itself, which would complain."""
    return (sys.executable, "-c", _PROGRAM.format(then=f"open({str(begun)!r}, 'w').close();"))
