"""One table for each half, node and step costs: what each policy made of each load, and the change against FCFS."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from tests.benchmarks.policies.cases import FCFS
from tests.benchmarks.policies.rows import VIRTUAL, Row

WIDTH = 140
SHORTENED = {
    "short_request_first": "srf",
    "stall_budget": "stall",
    "vllm_long_prefill_token_threshold": "vllm_long_chunk",
}
NAMES = (
    "srf: short_request_first, wait limit 5 s; vllm_long_chunk: its long_prefill_token_threshold; stall: stall_budget"
)
CAPTION = f"{NAMES}.\nEach cell: the value, its change against FCFS."
WALL_CAPTION = f"{CAPTION} ~: noise of the change, in points. ?: inconclusive, the drift probe moved."


@dataclass(frozen=True)
class Column:
    """`unit`: what a second is multiplied by to be shown."""

    metric: str
    title: str
    unit: float = 1.0
    form: str = "#.3g"


COLUMNS = (
    Column("short_ttft_p50", "short TTFT\nP50, s"),
    Column("short_ttft_p95", "short TTFT\nP95, s"),
    Column("long_ttft_p95", "long TTFT\nP95, s"),
    Column("short_e2e_p95", "short answer\nP95, s"),
    Column("long_e2e_p95", "long answer\nP95, s"),
    Column("short_tpot_p50", "short TPOT\nP50, ms", 1000),
    Column("gap_p99", "gap\nP99, ms", 1000),
    Column("output_tokens_per_s", "output\ntokens/s", 1, "#.4g"),
)
"""The full-response P95 over both lanes is in the JSON alone."""


def short_name(policy: str) -> str:
    """A policy's name for narrow places."""
    for name, shortened in SHORTENED.items():
        policy = policy.replace(name, shortened)
    return policy


def percent(ratio: float) -> str:
    """A ratio as a whole signed change."""
    points = round(100 * (ratio - 1))
    return f"{points:+d}%" if points else "0%"


def print_tables(console: Console, rows: Sequence[Row]) -> None:
    places = dict.fromkeys((row.half, row.node, row.costs) for row in rows)
    for place in places:
        console.print(_table([row for row in rows if (row.half, row.node, row.costs) == place]))


def _table(rows: Sequence[Row]) -> Table:
    first = rows[0]
    virtual = first.half == VIRTUAL
    about = f"{'virtual clock' if virtual else 'wall clock'}, {first.node} node, {first.costs} step costs"
    counted = f"up to {max(row.pairs for row in rows)} {'seeds' if virtual else 'pairs'}"
    table = Table(
        title=f"{about}, {counted}",
        caption=CAPTION if virtual else WALL_CAPTION,
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    metrics = {row.metric for row in rows}
    columns = [column for column in COLUMNS if column.metric in metrics]
    table.add_column("load, policy", no_wrap=True)
    for column in columns:
        table.add_column(column.title, justify="right", no_wrap=True)
    for load in dict.fromkeys(row.load for row in rows):
        table.add_row(f"[bold]{load}[/]")
        for policy in dict.fromkeys(row.policy for row in rows if row.load == load):
            found = {row.metric: row for row in rows if (row.load, row.policy) == (load, policy)}
            mark = "" if all(row.conclusive for row in found.values()) else " ?"
            table.add_row(f" {short_name(policy)}{mark}", *_cells(columns, found))
        table.add_section()
    return table


def _cells(columns: Iterable[Column], rows: dict[str, Row]) -> list[str]:
    return [_cell(column, rows[column.metric]) if column.metric in rows else "-" for column in columns]


def _cell(column: Column, row: Row) -> str:
    value = f"{row.value * column.unit:{column.form}}".rstrip(".")
    noise = "" if row.half == VIRTUAL else f"~{100 * row.noise:.0f}"
    change = "" if row.policy == FCFS else percent(row.ratio) + noise
    return f"{value} {change:>{5 if row.half == VIRTUAL else 7}}"
