"""`prefleet replay`: what each policy would have done with a trace, on a laptop, in seconds.

The fleet is simulated by the runtime's own queueing and step-budget code under a virtual clock; nothing is sent
anywhere. The first policy named is the one that the others are to be compared with.
"""

from __future__ import annotations

import shlex
import sys
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
    write_told,
)

if TYPE_CHECKING:
    from prefleet_operator.replay.comparison import Request

AUTO = "auto"


def replay(
    trace: TraceArgument,
    policy: Annotated[str, typer.Option(help="Policies, with commas.")] = "fcfs,srf,hrrn,promote_shortest",
    threshold: Annotated[str, typer.Option(help='Longest short request in tokens, or "auto".')] = AUTO,
    long_max_wait: Annotated[str, typer.Option(help="After this a long request is promoted; 0s: never.")] = "5s",
    aged_share: AgedShare = 0.25,
    load: Load = None,
    pods: Pods = 1,
    decode_pods: DecodePods = 0,
    prefill_only: PrefillOnly = False,
    router: RouterOption = Router.ROUND_ROBIN,
    engine: Engine = PRESET,
    step_tokens: StepTokens = 2048,
    prefix_cache: PrefixCache = True,
    split: Annotated[int | None, typer.Option(min=1, help="Tokens that divide the lanes; else the threshold.")] = None,
    slo_short_ttft: ShortTTFT = "500ms",
    slo_long_wait: LongWait = "8s",
    bound: Annotated[bool, typer.Option(help="The clairvoyant bound beside the policies.")] = True,
    json_file: JsonFile = None,
    html_file: Annotated[Path | None, typer.Option("--html", help="Write a report here: one page, to be read.")] = None,
) -> None:
    """Replay a trace under several policies and compare what users would have met."""
    _check_places(json_file, html_file)
    with interruptible():
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
            router=router.kind,
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


def _check_places(json_file: Path | None, html_file: Path | None) -> None:
    """End the command now if what was asked for could not be written at the end of it."""
    from prefleet_operator.cli.documents import check_place, fail

    check_json(json_file)
    if str(html_file) == "-":
        fail("--html: a page is no text for a terminal: give the path of a file")
    check_place("--html", html_file)
    if html_file is not None and json_file is not None and html_file.resolve() == json_file.resolve():
        fail(f"--html: {html_file} is where --json writes: give another path")


def _answer(request: Request, json_file: Path | None, html_file: Path | None) -> None:
    """Compare, and tell: on the terminal, or with `json_file` "-" only the figures, and in files."""
    from rich.console import Console

    from prefleet_operator.replay.comparison import compare
    from prefleet_operator.replay.tables import document, print_comparison

    only_figures = is_only_figures(json_file)
    console = Console(stderr=only_figures)
    with faults_told():
        comparison = compare(replace(request, engine=settled_engine(request.engine, console)), console)
    if not only_figures:
        print_comparison(console, comparison)
    page = None
    if html_file is not None:
        from prefleet_operator.replay.report import render_page

        page = render_page(comparison, shlex.join(["prefleet", *sys.argv[1:]]))
    put_figures(json_file, as_text(document(comparison)), console)
    if html_file is not None and page is not None:
        write_told(html_file, page, console)
