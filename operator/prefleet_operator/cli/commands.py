"""All commands, one module each. The modules import what is heavy inside their functions, so that help is quick."""

from typing import Annotated

import typer

from prefleet_operator.cli.advise import advise
from prefleet_operator.cli.crd import crd
from prefleet_operator.cli.diff import diff
from prefleet_operator.cli.render import render
from prefleet_operator.cli.replay import replay
from prefleet_operator.cli.run import run

app = typer.Typer(
    name="prefleet",
    help="Fleets of LLM inference pods whose prefill queue is scheduled on purpose.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _tell_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"prefleet {version('prefleet')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Print the release and exit.")
    ] = False,
) -> None:
    """What stands before a command."""


app.command()(run)
app.command()(render)
app.command()(diff)
app.command()(crd)
app.command()(replay)
app.command()(advise)
