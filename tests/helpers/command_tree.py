"""Walk the tree of command-line commands, for tests that cover all of them."""

import typer


def leaves(command, path=()):
    """Yield each command that runs something, with the words that lead to it."""
    context = typer.Context(command)
    if not hasattr(command, "list_commands"):
        yield path, command
        return
    for name in command.list_commands(context):
        yield from leaves(command.get_command(context, name), (*path, name))
