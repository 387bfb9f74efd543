"""The command line: thin Typer commands, installed as `ignitetf.cli`."""

import os

__all__ = ["run"]


def run() -> None:
    """Run the command line; never returns.

    A shell that completes a name of the cluster is answered without the commands, which take longer
    to import. Ctrl-C during that import also ends without a traceback.
    """
    try:
        if "_IGNITETF_COMPLETE" in os.environ:
            from ignitetf.cli.complete import answer

            if answer(os.environ):
                return
        from ignitetf.cli.main import main
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    main()
