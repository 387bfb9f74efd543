"""The command line: thin Typer commands; installs as `ignitetf.cli`."""
