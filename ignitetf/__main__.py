"""`python -m ignitetf`: the command line, for where no script is installed."""

from ignitetf.cli.main import main

if __name__ == "__main__":
    main()
