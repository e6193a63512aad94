"""`prefleet replay`: what each policy would have done with a trace, on a laptop, in seconds.

The fleet is simulated by the runtime's own queueing and step-budget code under a virtual clock; nothing is sent
anywhere. The first policy named is the one that the others are to be compared with.
"""

from __future__ import annotations

import json
import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from prefleet_operator.replay.comparison import Request

AUTO = "auto"
PRESET = "llama-3.1-8b-a100-80gb-sxm"


class Router(StrEnum):
    """How requests are spread over pods."""

    ROUND_ROBIN = "round-robin"
    LEAST_TOKENS = "least-tokens"
    PREFIX_AWARE = "prefix-aware"


def replay(
    trace: Annotated[str, typer.Argument(help="A trace file, or a mix such as bimodal:seed=7,requests=10000.")],
    policy: Annotated[str, typer.Option(help="Policies, with commas.")] = "fcfs,srf,hrrn,promote_shortest",
    threshold: Annotated[str, typer.Option(help='Longest short request in tokens, or "auto".')] = AUTO,
    long_max_wait: Annotated[str, typer.Option(help="After this a long request is promoted; 0s: never.")] = "5s",
    aged_share: Annotated[float, typer.Option(min=0.01, max=1, help="Of promoted longs, while shorts wait.")] = 0.25,
    load: Annotated[float | None, typer.Option(min=0.01, max=10, help="Part of capacity; else as recorded.")] = None,
    pods: Annotated[int, typer.Option(min=1, max=256, help="Mixed pods, or with decode pods prefill ones.")] = 1,
    decode_pods: Annotated[int, typer.Option(min=0, max=256, help="0: the pods do both.")] = 0,
    prefill_only: Annotated[bool, typer.Option("--prefill-only", help="One output token for each request.")] = False,
    router: Annotated[Router, typer.Option(help="How requests are spread over pods.")] = Router.ROUND_ROBIN,
    engine: Annotated[
        str, typer.Option(help="A preset, or a JSON object of step costs.")
    ] = "llama-3.1-8b-a100-80gb-sxm",
    step_tokens: Annotated[int, typer.Option(min=1, help="max_num_batched_tokens of a pod.")] = 2048,
    prefix_cache: Annotated[bool, typer.Option(help="Share prefixes, where the trace tells them.")] = True,
    split: Annotated[int | None, typer.Option(min=1, help="Tokens that divide the lanes; else the threshold.")] = None,
    slo_short_ttft: Annotated[str, typer.Option(help="What short requests were promised.")] = "500ms",
    slo_long_wait: Annotated[str, typer.Option(help="What long requests were promised.")] = "8s",
    bound: Annotated[bool, typer.Option(help="The clairvoyant bound beside the policies.")] = True,
    json_file: Annotated[Path | None, typer.Option("--json", help='Write the figures here; "-": only that.')] = None,
    html_file: Annotated[Path | None, typer.Option("--html", help="Write a report here: one page, to be read.")] = None,
) -> None:
    """Replay a trace under several policies and compare what users would have met."""
    from prefleet_operator.cli.documents import check_place, interrupted

    check_place("--json", json_file)
    check_place("--html", html_file)
    try:
        from prefleet_operator.replay.comparison import Request

        request = Request(
            trace=trace,
            policies=policy,
            threshold=None if threshold == AUTO else threshold,
            long_max_wait=long_max_wait,
            aged_share=aged_share,
            load=load,
            pods=pods,
            decode_pods=decode_pods,
            prefill_only=prefill_only,
            router=router.replace("-", "_"),
            engine=engine,
            step_tokens=step_tokens,
            prefix_cache=prefix_cache,
            split_tokens=split,
            short_ttft=slo_short_ttft,
            long_wait=slo_long_wait,
            bound=bound,
            report=html_file is not None,
        )
        _answer(request, json_file, html_file)
    except KeyboardInterrupt:
        interrupted()


def _answer(request: Request, json_file: Path | None, html_file: Path | None) -> None:
    """Compare, and tell: on the terminal, or with `json_file` "-" only the figures, and in files."""
    from prefleet_runtime.sim.traces import TraceError
    from rich.console import Console

    from prefleet_operator.cli.documents import fail, write
    from prefleet_operator.replay.comparison import compare
    from prefleet_operator.replay.setting import SettingError
    from prefleet_operator.replay.tables import document, print_comparison

    only_json = str(json_file) == "-"
    console = Console(stderr=only_json)
    try:
        comparison = compare(request, console)
    except (TraceError, SettingError, OSError) as error:
        fail(str(error))
    figures = json.dumps(document(comparison), indent=1)
    if only_json:
        typer.echo(figures)
    else:
        print_comparison(console, comparison)
    files = {json_file: figures + "\n"} if json_file is not None and not only_json else {}
    if html_file is not None:
        from prefleet_operator.replay.report import render_page

        files[html_file] = render_page(comparison, shlex.join(["prefleet", *sys.argv[1:]]))
    for path, text in files.items():
        write(path, text)
        console.print(f"written to {path}", soft_wrap=True, highlight=False)
