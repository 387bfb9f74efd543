"""The command line: thin Typer commands, installed as `ignitetf.cli`.

The work is done elsewhere in the package; modules here only parse options and print results.
"""
