"""The commands of the command line, for the tests that go through them all."""

import typer


def leaves(command, path=()):
    """Each command that runs something, with the words that lead to it."""
    context = typer.Context(command)
    if not hasattr(command, "list_commands"):
        yield path, command
        return
    for name in command.list_commands(context):
        yield from leaves(command.get_command(context, name), (*path, name))
