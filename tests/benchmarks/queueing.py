"""What each queue policy costs, beside vLLM's own queues, SGLang's own ordering and the naive forms.

`make bench-queueing` runs it in the vLLM environment, all subjects in one process on one core. It prints the median
and the 99th percentile of each operation at four depths, how the median grows, and whether the bars are met; the
same figures go to build/bench/queueing.json. See `measure.py` for what exactly is timed, `subjects.py` for whom.

SGLang is timed where it can be imported. Its package needs no installation for that: `uv pip install --no-deps
--target FOLDER sglang==0.5.23 orjson ipython traitlets torchvision gguf` for the Python of the vLLM environment, then
`make bench-queueing SGLANG=FOLDER`.

Rounds are interleaved, and each figure is the median over the rounds: a neighbour on the machine spoils a round,
not a subject.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from prefleet_runtime.contract import PolicyName

from tests.benchmarks.bars import Bar, bars
from tests.benchmarks.console import show_bars, tell, write
from tests.benchmarks.lengths import realistic_lengths
from tests.benchmarks.measure import STEP_TOKENS, empty_call_ns, measure
from tests.benchmarks.rare import Rare, rare_costs
from tests.benchmarks.subjects import Entrant, Work, entrants

DEPTHS = (10, 1_000, 10_000, 100_000)
OPERATIONS = ("add", "step", "commit", "remove")
ROUNDS = 3
SPARE = 1_000
SEED = 7
OUTPUT = Path(__file__).resolve().parents[2] / "build" / "bench" / "queueing.json"

Figures = dict[tuple[str, str, int], tuple[float, float]]
"""Median and 99th percentile in nanoseconds, by policy, operation and depth."""


@dataclass(frozen=True)
class Row:
    policy: str
    operation: str
    waiting: int
    median_ns: float
    p99_ns: float


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    core = sorted(os.sched_getaffinity(0))[-1]
    os.sched_setaffinity(0, {core})
    lengths, source = realistic_lengths(DEPTHS[-1] + SPARE, SEED)
    threshold = sorted(lengths)[len(lengths) * 7 // 10]
    competitors = list(entrants(threshold))
    print(f"lengths: {source}; {len(set(lengths)):,} different, the threshold is their P70, {threshold:,} tokens")
    print(f"each step processes {STEP_TOKENS:,} prefill tokens; {options.rounds} rounds on core {core}")
    works = [Work(number, tokens) for number, tokens in enumerate(lengths)]
    figures = run(competitors, works, options.rounds)
    rare = [rare_costs(name, works[: DEPTHS[-1]], threshold) for name in PolicyName]
    verdicts = bars(figures)
    show(competitors, figures)
    show_rare(rare)
    show_bars(verdicts)
    write_figures(options.output, figures, rare, verdicts, source)
    print(f"\nwritten to {options.output}")


def run(competitors: list[Entrant], works: list[Work], rounds: int) -> Figures:
    """Every subject at every depth, in interleaved rounds."""
    gc.collect()
    gc.freeze()
    gc.disable()
    empty = empty_call_ns()
    found: dict[tuple[str, str, int], list[tuple[float, float]]] = defaultdict(list)
    for turn in range(rounds):
        for waiting in DEPTHS:
            for entrant in competitors:
                tell(f"round {turn + 1} of {rounds}: {waiting:,} in {entrant.name}")
                samples = measure(entrant, works[: waiting + SPARE], waiting, SEED + turn)
                for operation, times in samples.items():
                    found[entrant.name, operation, waiting].append(summary(times, empty))
                del samples
                gc.collect()
    tell("")
    return {key: (median(m for m, _ in each), median(p for _, p in each)) for key, each in found.items()}


def summary(times: list[int], empty: int) -> tuple[float, float]:
    """Median and 99th percentile, less what an empty call takes; at least 1."""
    ranked = sorted(times)
    return max(1.0, median(ranked) - empty), max(1.0, ranked[(len(ranked) * 99 - 1) // 100] - empty)


def show(competitors: list[Entrant], figures: Figures) -> None:
    """One table for each operation: median and 99th percentile at each depth, and the growth."""
    for operation in OPERATIONS:
        about = {"step": "step (begin_step, peek, pop)", "commit": "commit (no peer has one)"}.get(operation, operation)
        print(f"\n{about}: median / P99")
        print(f"{'waiting':24}" + "".join(f"{waiting:>19,}" for waiting in DEPTHS) + "   growth from 1,000")
        for entrant in competitors:
            name = entrant.name
            if operation == "commit" and name not in set(PolicyName):
                continue
            cells = [figures[name, operation, waiting] for waiting in DEPTHS]
            line = "".join(f"{time_text(m):>10} /{time_text(p):>7}" for m, p in cells)
            print(f"{name:24}{line}{cells[-1][0] / cells[1][0]:>12.1f}x")


def time_text(nanoseconds: float) -> str:
    """Three digits and a unit."""
    unit, size = next((u, s) for u, s in (("ns", 1), ("us", 1e3), ("ms", 1e6)) if nanoseconds < 1000 * s or u == "ms")
    return f"{nanoseconds / size:#.3g}".rstrip(".") + f" {unit}"


def show_rare(rare: list[Rare]) -> None:
    print(f"\nseldom, with {DEPTHS[-1]:,} waiting")
    for each in rare:
        print(
            f"{each.policy:24}switch from fcfs {each.switch_ms:.0f} ms, the first step after it"
            f" {each.first_step_ms:.2f} ms; longest removal in a mass abort {each.longest_remove_ms:.1f} ms;"
            f" {each.bytes_a_request} bytes a request"
        )


def write_figures(path: Path, figures: Figures, rare: list[Rare], verdicts: list[Bar], source: str) -> None:
    rows = [asdict(Row(*key, *map(round, times))) for key, times in sorted(figures.items())]
    document = {
        "command": "make bench-queueing",
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "lengths": source,
        "step_tokens": STEP_TOKENS,
        "rows": rows,
        "rare": [asdict(each) for each in rare],
        "bars": [asdict(bar) for bar in verdicts],
    }
    write(path, document)


if __name__ == "__main__":
    main()
