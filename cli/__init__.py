"""The command line: thin Typer commands, installed as `ignitetf.cli`."""

__all__ = ["run"]


def run() -> None:
    """Run the command line; never returns.

    Ctrl-C while the commands are still being imported ends as it does later, without a traceback.
    """
    try:
        from ignitetf.cli.main import main
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    main()
