"""What the demo ends with: a table, a picture and the same figures as JSON.

The lane split is fixed for both phases (`split_tokens`), so that a request is short or long whatever policy
it met. TTFT is what the clients saw; queue waits are what the runtime's own histograms say (only a policy with a
threshold has the lanes short and long). The phases are `fcfs` and `tuned` in the JSON whatever the second one runs;
`titles` says how people call them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.support.demo.client import Figures, Outcome
from tests.support.demo.workload import quantile

COLOURS = {"fcfs": "#b3541e", "tuned": "#1f6f8b"}


@dataclass(frozen=True, slots=True)
class Summary:
    """All that the demo measured. Times in seconds unless named otherwise; lengths in tokens."""

    engine: str
    workload: str
    band: dict[str, float]
    threshold: int | None
    threshold_reason: str
    valley: int | None
    max_wait_ms: int | None
    max_wait_reason: str
    policy: str
    generation: int
    policy_active: bool
    propagation_s: float
    split_tokens: int
    fcfs: Figures
    tuned: Figures
    waits_p95_s: dict[str, dict[str, float | None]]
    moves: list[dict[str, Any]]

    @property
    def short_ttft_p95_change(self) -> float:
        """Relative change of the short TTFT P95 against FCFS, -0.9 for a fall by 90%."""
        return _change(self.tuned.short_ttft_p95_s, self.fcfs.short_ttft_p95_s)

    @property
    def throughput_change(self) -> float:
        """Relative change of output tokens per second against FCFS."""
        return _change(self.tuned.output_tokens_per_s, self.fcfs.output_tokens_per_s)

    def to_json(self) -> str:
        """The summary as a JSON document; a figure that could not be measured is null."""
        changes = {
            "short_ttft_p95_change": self.short_ttft_p95_change,
            "output_tokens_per_s_change": self.throughput_change,
        }
        return json.dumps(_finite({**asdict(self), **changes}), indent=2) + "\n"


def _change(new: float, old: float) -> float:
    return new / old - 1 if old > 0 else math.nan


def _finite(value: Any) -> Any:
    """NaN is no JSON."""
    if isinstance(value, float):
        return round(value, 4) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value


def band_of(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """P70 and P85 of the prompt lengths that were really sent."""
    lengths = [outcome.request.prompt_tokens for outcome in outcomes]
    return {"p70": quantile(lengths, 0.70), "p85": quantile(lengths, 0.85)}


def print_tables(console: Console, summary: Summary, titles: Mapping[str, str]) -> None:
    """The comparison, what was set and why."""
    console.print(_comparison(summary, titles))
    console.print(_settings(summary))
    for move in summary.moves:
        console.print(f"[bold]{move['at']}[/]  generation {move['generation']}  {move['reason']}: {move['message']}")


def _comparison(summary: Summary, titles: Mapping[str, str]) -> Table:
    table = Table(title=f"{' against '.join(titles.values())}, {summary.engine}, {summary.workload}")
    table.add_column("")
    for title in (*titles.values(), "change"):
        table.add_column(title, justify="right")
    before, after = asdict(summary.fcfs), asdict(summary.tuned)
    rows = {
        f"short TTFT P50 (<= {summary.split_tokens} tokens)": "short_ttft_p50_s",
        "short TTFT P95": "short_ttft_p95_s",
        "long TTFT P50": "long_ttft_p50_s",
        "long TTFT P95": "long_ttft_p95_s",
    }
    for title, key in rows.items():
        table.add_row(title, _seconds(before[key]), _seconds(after[key]), _percent(_change(after[key], before[key])))
    for lane, title in (("all", "all requests"), ("short", "short lane"), ("long", "long lane")):
        waits = [summary.waits_p95_s.get(phase, {}).get(lane) for phase in titles]
        table.add_row(f"queue wait P95, {title}", *(_seconds(wait) for wait in waits), "")
    rates = (summary.fcfs.output_tokens_per_s, summary.tuned.output_tokens_per_s)
    table.add_row("output tokens/s", *(f"{rate:.0f}" for rate in rates), _percent(summary.throughput_change))
    table.add_row("requests", str(summary.fcfs.requests), str(summary.tuned.requests), "")
    table.add_row("failed", str(summary.fcfs.failed_requests), str(summary.tuned.failed_requests), "")
    return table


def _settings(summary: Summary) -> Table:
    table = Table(title="What was set, and why")
    for title in ("", "value", "why"):
        table.add_column(title, overflow="fold")
    band = f"{summary.band['p70']:.0f} - {summary.band['p85']:.0f} tokens"
    table.add_row("P70 - P85 of what was replayed", band, "")
    table.add_row("policy", summary.policy, "")
    threshold = "none" if summary.threshold is None else f"{summary.threshold} tokens"
    table.add_row("threshold", threshold, summary.threshold_reason)
    wait = "none" if not summary.max_wait_ms else f"{summary.max_wait_ms / 1000:g} s"
    table.add_row("wait limit of long requests", wait, summary.max_wait_reason)
    active = f"generation {summary.generation}" if summary.policy_active else "NOT on every pod"
    table.add_row("policy active on every pod", active, f"an edit takes {summary.propagation_s:.1f} s to every pod")
    return table


def _seconds(value: float | None) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:.2f} s"


def _percent(value: float) -> str:
    return "-" if not math.isfinite(value) else f"{value:+.0%}"


def draw(summary: Summary, titles: Mapping[str, str], outcomes: Mapping[str, Sequence[Outcome]], path: Path) -> None:
    """One picture: prompt lengths with the threshold, TTFT distributions, and TTFT over time by phase."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (lengths, ttft, timeline) = plt.subplots(3, 1, figsize=(9, 11), layout="constrained")
    _draw_lengths(lengths, summary, outcomes)
    _draw_ttft(ttft, summary, titles, outcomes)
    _draw_timeline(timeline, summary, titles, outcomes)
    figure.suptitle(f"Prefleet demo: {summary.engine}, {summary.workload}")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _draw_lengths(axes: Any, summary: Summary, outcomes: Mapping[str, Sequence[Outcome]]) -> None:
    values = [outcome.request.prompt_tokens for phase in outcomes.values() for outcome in phase]
    bounds = [2 ** (step / 4) for step in range(math.floor(4 * math.log2(max(1, min(values)))), 4 * 18)]
    axes.hist(values, bins=[bound for bound in bounds if bound <= 1.2 * max(values)], color="#8a8f98")
    axes.axvspan(summary.band["p70"], summary.band["p85"], color="#1f6f8b", alpha=0.12, label="P70 to P85")
    if summary.threshold:
        axes.axvline(summary.threshold, color="#1f6f8b", label=f"threshold {summary.threshold}")
    axes.set(xscale="log", xlabel="prompt length (tokens)", ylabel="requests", title="What was replayed")
    axes.legend(frameon=False)


def _draw_ttft(
    axes: Any, summary: Summary, titles: Mapping[str, str], outcomes: Mapping[str, Sequence[Outcome]]
) -> None:
    for phase, done in outcomes.items():
        good = [outcome for outcome in done if outcome.error is None]
        for kind, style in (("short", "-"), ("long", "--")):
            values = sorted(
                outcome.ttft_s
                for outcome in good
                if (outcome.request.prompt_tokens <= summary.split_tokens) == (kind == "short")
            )
            ranks = [(index + 1) / len(values) for index in range(len(values))]
            axes.step(values, ranks, style, where="post", color=COLOURS[phase], label=f"{kind}, {titles[phase]}")
    axes.set(xscale="log", xlabel="time to first token (s)", ylabel="share of requests", title="Who waits how long")
    axes.axhline(0.95, color="#8a8f98", linewidth=0.6)
    axes.legend(frameon=False)


def _draw_timeline(
    axes: Any, summary: Summary, titles: Mapping[str, str], outcomes: Mapping[str, Sequence[Outcome]]
) -> None:
    for phase, done in outcomes.items():
        short = [o for o in done if o.error is None and o.request.prompt_tokens <= summary.split_tokens]
        axes.plot(
            [outcome.request.at_s for outcome in short],
            [outcome.ttft_s for outcome in short],
            ".",
            markersize=3,
            color=COLOURS[phase],
            label=f"short, {titles[phase]}",
        )
    axes.set(xlabel="arrival (s after the phase began)", ylabel="TTFT (s)", title="Short requests, burst by burst")
    axes.legend(frameon=False)
