"""The command line in a process that heeds Ctrl-C."""

import sys

# A test run in the background of a shell ignores Ctrl-C, and its children would inherit that.
PROGRAM = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
    "from ignitetf.cli.main import main; main()"
)
COMMAND = (sys.executable, "-c", PROGRAM)
