"""The command `prefleet`."""

import sys


def main() -> None:
    """Run the command line. Imports wait until here and, for each command's own needs, until it runs.

    However early Ctrl-C comes, wherever the output goes (a full disk), and where only the runtime is installed, it ends
    without a traceback.
    """
    try:
        from prefleet_operator.cli.commands import app

        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except ModuleNotFoundError as error:
        sys.stderr.write(f"error: {error.name} is not installed: install Prefleet as prefleet[operator,replay]\n")
        sys.exit(2)
    except OSError as error:
        sys.stderr.write(f"error: {error.filename or 'the output'}: {error.strerror or error}\n")
        sys.exit(2)
