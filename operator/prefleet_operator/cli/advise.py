"""`prefleet advise`: what the tuner would set for a trace and why, by the operator's own code, on a laptop.

Its last lines are YAML to put into a PrefillPolicy. With `--json -` there is only JSON.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prefleet_operator.cli.replay_options import (
    PRESET,
    AgedShare,
    DecodePods,
    Engine,
    JsonFile,
    Load,
    LongWait,
    Pods,
    PrefillOnly,
    PrefixCache,
    Router,
    RouterOption,
    ShortTTFT,
    StepTokens,
    TraceArgument,
)
from prefleet_operator.cli.replaying import (
    as_text,
    check_json,
    faults_told,
    interruptible,
    is_only_figures,
    put_figures,
    settled_engine,
)

if TYPE_CHECKING:
    from prefleet_operator.replay.advice import AdviceRequest


def advise(
    trace: TraceArgument,
    slo_long_wait: LongWait = "8s",
    slo_short_ttft: ShortTTFT = "500ms",
    bias: Annotated[float, typer.Option(min=0, max=1, help="0 favours long requests, 1 short ones.")] = 0.5,
    split: Annotated[int | None, typer.Option(min=1, help="Prompt tokens of a short request; else the P80.")] = None,
    aged_share: AgedShare = 0.25,
    load: Load = None,
    pods: Pods = 1,
    decode_pods: DecodePods = 0,
    prefill_only: PrefillOnly = False,
    router: RouterOption = Router.ROUND_ROBIN,
    engine: Engine = PRESET,
    step_tokens: StepTokens = 2048,
    prefix_cache: PrefixCache = True,
    json_file: JsonFile = None,
) -> None:
    """Tell which threshold and longMaxWait the tuner would set for a trace, why, and what else it could have been."""
    check_json(json_file)
    with interruptible():
        from prefleet_operator.replay.advice import AdviceRequest

        asked = AdviceRequest(
            trace=trace,
            aged_share=aged_share,
            load=load,
            pods=pods,
            decode_pods=decode_pods,
            prefill_only=prefill_only,
            router=router.kind,
            engine=engine,
            step_tokens=step_tokens,
            prefix_cache=prefix_cache,
            short_ttft=slo_short_ttft,
            long_wait=slo_long_wait,
            bias=bias,
            split_tokens=split,
        )
        _answer(asked, json_file)


def _answer(asked: AdviceRequest, json_file: Path | None) -> None:
    """Advise, and tell: on the terminal, or with `json_file` "-" only the figures, and in a file."""
    from prefleet_runtime.sim.traces import open_trace
    from rich.console import Console

    from prefleet_operator.cli.documents import to_yaml
    from prefleet_operator.replay.advice import advise as find
    from prefleet_operator.replay.advice_tables import document, print_advice

    only_figures = is_only_figures(json_file)
    console = Console(stderr=only_figures)
    with faults_told():
        settled = replace(asked, engine=settled_engine(asked.engine, console))
        advice = find(settled, open_trace(asked.trace), console)
    if not only_figures:
        print_advice(console, advice)
        typer.echo(to_yaml([advice.scheduling]), nl=False)
    put_figures(json_file, as_text(document(advice)), console)
