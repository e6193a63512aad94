"""The page itself: what the header says, the tables, the pictures, through the templates beside this module.

It asks for nothing from elsewhere, holds no script, and forbids both to itself by a content security policy. The
templates escape whatever they are given. The page is well-formed XML, too, so that a test can read it.
"""

from __future__ import annotations

import math

from jinja2 import Environment, PackageLoader, StrictUndefined
from prefleet_runtime.sim.replay import Replay

from prefleet_operator.replay.report.figures import make_figures, tell_seconds, w_normal_s
from prefleet_operator.replay.tables import Comparison, grids, name_of

Fact = tuple[str, str]


def render_page(comparison: Comparison, command: str) -> str:
    """The report as HTML. `command`: what was typed to get it."""
    environment = Environment(
        loader=PackageLoader("prefleet_operator.replay.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["px"] = "{:.1f}".format
    page = environment.get_template("page.html")
    return page.render(
        trace=comparison.trace,
        command=command,
        facts=facts(comparison),
        findings=findings(comparison),
        grids=grids(comparison),
        figures=make_figures(comparison),
    )


def facts(comparison: Comparison) -> list[Fact]:
    """What was replayed, on what, and with which settings."""
    study, scheduling, targets = comparison.study, comparison.scheduling, comparison.targets
    normal_s, limit_s = w_normal_s(comparison), scheduling.long_max_wait_s
    promise = f"first token of a short request within {tell_seconds(targets.short_ttft_s)}"
    return [
        ("trace", f"{comparison.trace}, {comparison.format}"),
        (
            "requests",
            f"{study.requests:,} over {study.span_s:,.0f} s as recorded,"
            f" {study.prompt_tokens / study.requests:,.0f} prompt and"
            f" {study.output_tokens / study.requests:,.0f} output tokens each on average",
        ),
        ("fleet", _fleet(comparison)),
        ("load", _load(comparison)),
        ("threshold", f"{scheduling.threshold:,} tokens"),
        (
            "wait limit",
            f"{tell_seconds(limit_s) if limit_s else 'none'} (W_normal {tell_seconds(normal_s)},"
            f" W_slo {tell_seconds(targets.long_wait_s)}), share of promoted longs {scheduling.aged_share:.0%}",
        ),
        ("promised", f"{promise}, turn of a long one within {tell_seconds(targets.long_wait_s)}"),
    ]


def _load(comparison: Comparison) -> str:
    """Requests that all arrive at once are no part of a rate."""
    if math.isinf(comparison.load):
        return "all requests arrive at once"
    return f"{comparison.load:.0%} of the {comparison.capacity:.3g} requests a second that this fleet serves"


def _fleet(comparison: Comparison) -> str:
    shape = comparison.shape
    kinds = ((shape.prefill, "prefill"), (shape.decode, "decode")) if shape.decode else ((shape.prefill, "mixed"),)
    pods = " and ".join(f"{count} {kind} pod{'s' if count > 1 else ''}" for count, kind in kinds)
    cache = "with" if shape.limits.prefix_block_tokens else "without"
    router = "" if shape.prefill == 1 else f", router {shape.router.replace('_', '-')}"
    return (
        f"{pods} of {shape.profile.name}{router}, steps of {shape.limits.max_num_batched_tokens:,} tokens,"
        f" {cache} prefix cache"
    )


def findings(comparison: Comparison) -> list[str]:
    """A sentence for each policy that was compared with the first."""
    first, *others = comparison.replays
    return [
        f"{name_of(other)} against {name_of(first)}: {_change('short', first, other)}; {_change('long', first, other)}"
        for other in others
        if other.policy is not None
    ]


def _change(lane: str, first: Replay, other: Replay) -> str:
    old_s, new_s = ((replay.short if lane == "short" else replay.long).ttft.quantile(0.95) for replay in (first, other))
    if math.isnan(old_s) or math.isnan(new_s):
        return f"no {lane} requests"
    change = f" ({new_s / old_s - 1:+.0%})" if old_s > 0 else ""
    return f"{lane} TTFT P95 {tell_seconds(new_s)} instead of {tell_seconds(old_s)}{change}"
