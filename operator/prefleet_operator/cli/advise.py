"""`prefleet advise`: what the tuner would set for a trace and why, by the operator's own code, on a laptop.

Its last lines are YAML to put into a PrefillPolicy. With `--json -` there is only JSON.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Annotated

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
    from prefleet_runtime.sim.calibrate import CalibrationError
    from prefleet_runtime.sim.traces import TraceError, open_trace
    from rich.console import Console

    from prefleet_operator.cli.documents import fail, to_yaml
    from prefleet_operator.cli.engine_cost import engine_of
    from prefleet_operator.replay.advice import AdviceRequest
    from prefleet_operator.replay.advice import advise as find
    from prefleet_operator.replay.advice_tables import document, print_advice
    from prefleet_operator.replay.setting import SettingError

    only_json = str(json_file) == "-"
    console = Console(stderr=only_json)
    try:
        asked = AdviceRequest(
            trace=trace,
            aged_share=aged_share,
            load=load,
            pods=pods,
            decode_pods=decode_pods,
            prefill_only=prefill_only,
            router=router.kind,
            engine=engine_of(engine, partial(console.print, soft_wrap=True, highlight=False, markup=False)),
            step_tokens=step_tokens,
            prefix_cache=prefix_cache,
            short_ttft=slo_short_ttft,
            long_wait=slo_long_wait,
            bias=bias,
            split_tokens=split,
        )
        advice = find(asked, open_trace(trace), console)
    except CalibrationError as error:
        fail(f"--engine: {error}")
    except (TraceError, SettingError, OSError) as error:
        fail(str(error))
    figures = json.dumps(document(advice), indent=1)
    if only_json:
        typer.echo(figures)
        return
    print_advice(console, advice)
    typer.echo(to_yaml([advice.scheduling]), nl=False)
    if json_file is not None:
        json_file.write_text(figures + "\n")
        console.print(f"written to {json_file}", soft_wrap=True, highlight=False)
