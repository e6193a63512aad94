"""What the benchmark demands of the policies, and whether the rows keep it.

The limits are relative to stock FCFS in the same run. Those of the virtual half apply to the median over seeds, and
where a limit for the worst seed is given also to that. A wall-clock row agrees if it is conclusive and meets its limit
give or take its noise. Rows that a reduced run lacks are not judged.

Below capacity (60 and 90%) the candidate's answers may cost at most `MOST_PRICE` more; above it there is no such bar.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from tests.benchmarks.bars import Bar
from tests.benchmarks.policies.cases import CANDIDATE, FCFS, LOADS, MAX_STALL_MS, STALL_BUDGET
from tests.benchmarks.policies.rows import VIRTUAL, WALL, Row

LEAST_THROUGHPUT = 0.98
MOST_PRICE = 1.10
MOST_BEHIND = 1.05
STALLS_OVER = 5
BELOW_CAPACITY = ("sustained_60", "sustained_90")
BURSTS = ("burst", "interleaved")
PLAIN_POLICIES = ("promote_shortest", "hrrn")
DOCS = "or the docs state the price"


@dataclass(frozen=True)
class Limits:
    """Ratios to FCFS: of the short and the long TTFT P95, in the median and (None: free) in the worst seed."""

    short: float
    long: float
    short_worst: float | None = None
    long_worst: float | None = None


LIMITS: Mapping[str, Mapping[str, Limits]] = {
    "prefill": {
        "burst": Limits(0.10, 1.05),
        "interleaved": Limits(0.10, 1.05),
        "sustained_60": Limits(0.55, 1.10),
        "sustained_90": Limits(0.25, 1.05, short_worst=0.35, long_worst=1.10),
        "sustained_110": Limits(0.15, 1.10),
    },
    "mixed": {
        "burst": Limits(0.10, 1.13),
        "interleaved": Limits(0.10, 1.13),
        "sustained_60": Limits(0.70, 1.10),
        "sustained_90": Limits(0.40, 1.05, short_worst=0.50, long_worst=1.12),
        "sustained_110": Limits(0.30, 1.10),
    },
}


class Table:
    """Rows by what they are about."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows = {(r.half, r.node, r.costs, r.load, r.policy, r.metric): r for r in rows}
        self.places = list(dict.fromkeys(key[:3] for key in self._rows))
        """(half, node, costs)."""

    def find(self, place: tuple[str, str, str], load: str, policy: str, metric: str) -> Row | None:
        return self._rows.get((*place, load, policy, metric))


def bars(rows: Iterable[Row]) -> list[Bar]:
    """All that the rows allow to judge."""
    table = Table(rows)
    virtual = [place for place in table.places if place[0] == VIRTUAL]
    found: list[Bar] = []
    for place in virtual:
        found += _candidate(table, place)
        found += _prices(table, place)
        found += _stalls(table, place)
        found += _plain_policies(table, place)
    return found + list(_wall(table))


def change(ratio: float) -> str:
    """A ratio as a signed change."""
    return f"{ratio - 1:+.1%}"


def _about(place: tuple[str, str, str], load: str = "") -> str:
    _, node, costs = place
    return f"{node}, {costs}" + (f", {load}" if load else "")


def _candidate(table: Table, place: tuple[str, str, str]) -> Iterator[Bar]:
    for load in LOADS:
        limits, about = LIMITS[place[1]][load], _about(place, load)
        if short := table.find(place, load, CANDIDATE, "short_ttft_p95"):
            yield _at_most(f"{about}: short TTFT P95", short, limits.short, limits.short_worst)
        if long := table.find(place, load, CANDIDATE, "long_ttft_p95"):
            yield _at_most(f"{about}: long TTFT P95", long, limits.long, limits.long_worst)
        if rate := table.find(place, load, CANDIDATE, "output_tokens_per_s"):
            claim = f"{about}: throughput at most {1 - LEAST_THROUGHPUT:.0%} lower"
            yield Bar(claim, rate.ratio >= LEAST_THROUGHPUT, change(rate.ratio))


def _at_most(what: str, row: Row, limit: float, worst: float | None) -> Bar:
    side = f"at least {1 - limit:.0%} lower" if limit < 1 else f"at most {limit - 1:.0%} higher"
    claim = f"{what} {side}"
    if worst is not None:
        claim += f", in no seed {'under' if worst < 1 else 'over'} {abs(1 - worst):.0%}"
    met = row.ratio <= limit and (worst is None or row.worst <= worst)
    return Bar(claim, met, f"{change(row.ratio)}, worst {change(row.worst)}")


def _prices(table: Table, place: tuple[str, str, str]) -> Iterator[Bar]:
    answers = {"short_e2e_p95": "short", "long_e2e_p95": "long", "e2e_p95": "all"}
    for load in BELOW_CAPACITY:
        about = _about(place, load)
        lanes = {name: table.find(place, load, CANDIDATE, metric) for metric, name in answers.items()}
        if ratios := {name: row.ratio for name, row in lanes.items() if row}:
            claim = f"{about}: full-response P95 at most {MOST_PRICE - 1:.0%} higher in each lane, {DOCS}"
            figure = ", ".join(f"{name} {change(ratio)}" for name, ratio in ratios.items())
            yield Bar(claim, max(ratios.values()) <= MOST_PRICE, figure)
        if tpot := table.find(place, load, CANDIDATE, "short_tpot_p50"):
            claim = f"{about}: short time per output token P50 at most {MOST_PRICE - 1:.0%} higher, {DOCS}"
            yield Bar(claim, tpot.ratio <= MOST_PRICE, change(tpot.ratio))


def _stalls(table: Table, place: tuple[str, str, str]) -> Iterator[Bar]:
    """One step is what a decode takes in the middle of the same run: the time per output token of its shorts."""
    judged: list[Bar] = []
    longest_ms, most_ms = 0.0, MAX_STALL_MS[place[2]]
    for load in LOADS:
        stock = table.find(place, load, FCFS, "gap_p99")
        gap = table.find(place, load, STALL_BUDGET, "gap_p99")
        step = table.find(place, load, STALL_BUDGET, "short_tpot_p50")
        if stock is None or gap is None or step is None:
            continue
        longest_ms = max(longest_ms, 1000 * stock.value)
        if 1000 * stock.value < STALLS_OVER * most_ms:
            continue
        limit_ms = most_ms + 1000 * step.value
        claim = f"{_about(place, load)}: gap P99 under stall_budget at most {most_ms:g} ms and a step"
        figure = f"{1000 * gap.value:.1f} ms (limit {limit_ms:.1f} ms, stock {1000 * stock.value:.0f} ms)"
        if long := table.find(place, load, STALL_BUDGET, "long_ttft_p95"):
            figure += f"; long TTFT P95 pays {change(long.ratio)}"
        judged.append(Bar(claim, 1000 * gap.value <= limit_ms, figure))
    if longest_ms and not judged:
        claim = f"{_about(place)}: stock exceeds max_stall_ms {STALLS_OVER} times over in some load"
        judged.append(Bar(claim, False, f"at most {longest_ms:.0f} ms, {longest_ms / most_ms:.1f} times"))
    yield from judged


def _plain_policies(table: Table, place: tuple[str, str, str]) -> Iterator[Bar]:
    for policy in PLAIN_POLICIES:
        found = {load: table.find(place, load, policy, "short_ttft_p95") for load in LOADS}
        ratios = {load: row.ratio for load, row in found.items() if row}
        if not ratios:
            continue
        worst = max(ratios, key=lambda load: ratios[load])
        claim = (
            f"{_about(place)}: short TTFT P95 of {policy} at most {MOST_BEHIND - 1:.0%} above FCFS, or the docs say why"
        )
        yield Bar(claim, ratios[worst] <= MOST_BEHIND, f"at most {change(ratios[worst])} ({worst})")


def _wall(table: Table) -> Iterator[Bar]:
    verdicts = {
        f"{_about(place, load)} {metric}": _agrees(row, limit)
        for place in table.places
        if place[0] == WALL
        for load in BURSTS
        for metric, limit in _wall_limits(place[1], load)
        if (row := table.find(place, load, CANDIDATE, metric))
    }
    if not verdicts:
        return
    agreeing = sum(reason is None for reason in verdicts.values())
    others = "; ".join(f"{name} {reason}" for name, reason in verdicts.items() if reason)
    claim = "wall clock: at least half of the burst and interleaved rows are conclusive and agree within their noise"
    figure = f"{agreeing} of {len(verdicts)}" + (f" (not: {others})" if others else "")
    yield Bar(claim, 2 * agreeing >= len(verdicts), figure)


def _wall_limits(node: str, load: str) -> Iterable[tuple[str, float]]:
    limits = LIMITS[node][load]
    return (
        ("short_ttft_p95", limits.short),
        ("long_ttft_p95", limits.long),
        ("output_tokens_per_s", LEAST_THROUGHPUT),
    )


def _agrees(row: Row, limit: float) -> str | None:
    """Why a row does not, or None."""
    if not row.conclusive:
        return "inconclusive"
    least = row.metric == "output_tokens_per_s"
    agrees = row.ratio + row.noise >= limit if least else row.ratio - row.noise <= limit
    return None if agrees else f"{change(row.ratio)} +-{row.noise:.1%}"
