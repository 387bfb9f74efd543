"""`python -m ignitetf`: the command line, for use without an installed script."""

from ignitetf.cli.main import main

if __name__ == "__main__":
    main()
