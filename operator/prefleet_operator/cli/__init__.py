"""The command `prefleet`."""

import sys


def main() -> None:
    """Run the command line. Imports wait until here and, for each command's own needs, until it runs.

    However early Ctrl-C comes, and wherever the output goes (a full disk), it ends without a traceback.
    """
    try:
        from prefleet_operator.cli.commands import app

        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        sys.stderr.write(f"error: {error.filename or 'the output'}: {error.strerror or error}\n")
        sys.exit(2)
