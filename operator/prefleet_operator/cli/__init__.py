"""The command `prefleet`."""


def main() -> None:
    """Run the command line. Imports wait until here and, for each command's own needs, until it runs."""
    from prefleet_operator.cli.commands import app

    app()
