"""All commands, one module each. The modules import what is heavy inside their functions, so that help is quick."""

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
app.command()(run)
app.command()(render)
app.command()(diff)
app.command()(crd)
app.command()(replay)
app.command()(advise)
