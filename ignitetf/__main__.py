"""`python -m ignitetf`: the command line, for where no script is installed."""

from ignitetf.cli import run

if __name__ == "__main__":
    run()
