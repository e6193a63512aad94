"""Advice as sentences and a table for people, and as a document for machines. Seconds; lengths in tokens."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from prefleet_operator.core.tuning import Finding
from prefleet_operator.replay.advice import FCFS, Advice, Setting, name_of
from prefleet_operator.replay.tables import (
    finite,
    lane_figures,
    new_table,
    print_table,
    seconds,
    share,
    slo_figures,
    trace_figures,
)


def print_advice(console: Console, advice: Advice) -> None:
    """The sentences, and what each setting that was tried gave; the one advised is marked."""
    for sentence in advice.sentences:
        console.print(sentence, soft_wrap=True, highlight=False)
    short, long = advice.targets.short_ttft_s, advice.targets.long_wait_s
    headings = ["short\nmean", "TTFT\nP50", "\nP95", f"\n<= {short:g}s", "long\nP50", "wait\nP95", f"\n<= {long:g}s"]
    title = f"threshold, longMaxWait, agedShare (short: at most {advice.split_tokens:,} tokens)"
    table = new_table(title, headings, first="setting")
    for setting, replay in sorted(advice.replays.items()):
        mark = "> " if setting == advice.chosen else "  "
        ttft, wait = replay.short.ttft, replay.long.wait
        cells = [seconds(value) for value in (ttft.mean, ttft.quantile(0.5), ttft.quantile(0.95))]
        cells += [share(replay.short.attainment), seconds(wait.quantile(0.5)), seconds(wait.quantile(0.95))]
        table.add_row(mark + name_of(setting), *cells, share(replay.long.attainment))
    print_table(console, table)


def document(advice: Advice) -> dict[str, Any]:
    """The same, JSON-ready: what could not be measured is null."""
    workload, decision = advice.workload, advice.decision
    figures: dict[str, Any] = finite(
        {
            "trace": trace_figures(workload.trace.name, workload.trace.format, workload.study),
            "window_requests": advice.window,
            "split_tokens": advice.split_tokens,
            "load": workload.load,
            "capacity_requests_per_s": workload.capacity,
            "slo": slo_figures(advice.targets),
            "advice": {
                "policy": decision.policy.value,
                **_setting(advice.chosen),
                "capacity_limited": decision.capacity_limited,
                "threshold_reason": _finding(decision.threshold_finding),
                "long_max_wait_reason": _finding(decision.wait_finding),
                "sentences": advice.sentences,
            },
            "alternatives": [
                {
                    **_setting(setting),
                    "chosen": setting == advice.chosen,
                    "promotions": replay.promotions,
                    "short": lane_figures(replay.short),
                    "long": lane_figures(replay.long),
                }
                for setting, replay in sorted(advice.replays.items())
            ],
            **advice.scheduling,
        }
    )
    return figures


def _setting(setting: Setting) -> dict[str, Any]:
    """FCFS has neither; without promotion the wait is 0."""
    if setting == FCFS:
        return {"threshold": None, "long_max_wait_s": None, "aged_share": None}
    return {
        "threshold": setting.threshold,
        "long_max_wait_s": setting.long_max_wait_s,
        "aged_share": setting.aged_share,
    }


def _finding(finding: Finding) -> dict[str, str]:
    return {"reason": finding.reason, "message": finding.message}
