"""`python -m ignitetf`: the command line, for use without an installed script."""

from ignitetf.cli import run

if __name__ == "__main__":
    run()
