"""Whether advice is good: it sees the first half of a public trace and is judged on the second, at three loads.

Judged are requests of at most the trace's P80 prompt tokens, which advice is told to be the short ones (`--split`). Two
bars:

- at every load their mean TTFT is within 5% of the best of a grid of settings, chosen in hindsight: 7 thresholds from
  P70 to P85 of the judged half's own lengths, 4 waits from half to 0.9 of the SLO, with the advised agedShare;
- at 110% load their P95 is at most 1.5 times that of strict short-first at the same threshold (no promotion). There
  advice may promote less than the tuner would; what the tuner alone would give is shown beside it.

Each half is brought to its load by itself, so "110%" means the half that is judged. One mixed pod of the default
preset; prefill only (one output token each) unless `--mixed`, since what is judged is the prefill queue. Everything
runs under a virtual clock: equal code, equal figures.

Run by `make bench-advice`; figures go to build/bench/advice.json.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

from prefleet_operator.core.histogram import quantile
from prefleet_operator.core.rehearsal import spread
from prefleet_operator.replay.advice import FCFS, AdviceRequest, Rehearsals, Setting, advise, short_first, to_histogram
from prefleet_operator.replay.workload import prepare
from prefleet_runtime.sim.traces import Trace, TraceRequest, open_trace
from prefleet_runtime.sim.traces.transforms import first_half, second_half
from rich.console import Console

from tests.benchmarks.console import write

TRACES = Path(__file__).parents[2].parent / "shared" / "traces"
NAMES = ("AzureLLMInferenceTrace_conv_2023.csv", "mooncake_conversation_trace.jsonl")
LOADS = (1.1, 0.9, 0.7)
SPLIT = 0.8
GRID_THRESHOLDS, GRID_WAITS = 7, 4
MOST_ABOVE_BEST, MOST_ABOVE_STRICT = 1.05, 1.5
OVERLOAD = 1.1
PROCESSES = 2
OUTPUT = Path("build/bench/advice.json")


class Part(Trace):
    """Some requests of another trace."""

    def __init__(self, whole: Trace, requests: Sequence[TraceRequest]) -> None:
        super().__init__(whole.name, whole.format, whole.block_tokens, len(requests))
        self._requests = requests

    @property
    def fraction_read(self) -> float:
        return 1.0

    def __iter__(self) -> Iterator[TraceRequest]:
        return iter(self._requests)


@dataclass(frozen=True)
class Judgement:
    """One trace at one load: what was advised, how it did beside the grid and beside strict short-first. Seconds."""

    trace: str
    load: float
    split_tokens: int
    threshold: int
    long_max_wait_s: float
    aged_share: float
    sentences: list[str]
    mean_s: float
    best_mean_s: float
    best_threshold: int
    best_wait_s: float
    worst_mean_s: float
    p95_s: float
    strict_p95_s: float
    tuned_mean_s: float
    tuned_p95_s: float
    fcfs_mean_s: float
    late_share: float
    wall_s: float

    @property
    def of_best(self) -> float:
        return self.mean_s / self.best_mean_s

    @property
    def of_strict(self) -> float:
        return self.p95_s / self.strict_p95_s

    @property
    def bars(self) -> list[tuple[str, bool]]:
        """What is promised, and whether it is kept."""
        bars = [(f"mean TTFT {self.of_best:.3f}x the grid's best", self.of_best <= MOST_ABOVE_BEST)]
        if self.load >= OVERLOAD:
            bars.append((f"P95 {self.of_strict:.3f}x strict short-first's", self.of_strict <= MOST_ABOVE_STRICT))
        return bars


def judge(trace: Trace, load: float, mixed: bool = False, told: bool = True) -> Judgement:
    """Advise on the first half, replay the second."""
    began, silent = time.perf_counter(), Console(quiet=True)
    split = p80(trace)
    asked = AdviceRequest(trace=trace.name, load=load, prefill_only=not mixed, split_tokens=split if told else None)
    advice = advise(asked, Part(trace, list(first_half(trace))), silent)
    workload = prepare(asked, Part(trace, list(second_half(trace))), silent)
    requests = list(workload.requests)
    tried = Rehearsals(requests, workload, split, asked.targets, silent)
    fcfs, chosen = tried.replay(FCFS), tried.replay(advice.chosen)
    lengths = to_histogram(fcfs.lengths)
    thresholds = [int(at) for at in spread(quantile(lengths, 0.70), quantile(lengths, 0.85), GRID_THRESHOLDS)]
    waits = [part * asked.targets.long_wait_s for part in spread(0.5, 0.9, GRID_WAITS)]
    share = advice.chosen.aged_share
    grid = {at: tried.replay(at) for at in (Setting(t, round(w, 3), share) for t in thresholds for w in waits)}
    best = min(grid, key=lambda at: grid[at].short.ttft.mean)
    strict = tried.replay(short_first(advice.chosen.threshold, 0.0, share))
    tuned = tried.replay(short_first(advice.chosen.threshold, advice.decision.long_max_wait_s, asked.aged_share))
    return Judgement(
        trace=trace.name,
        load=load,
        split_tokens=split,
        threshold=advice.chosen.threshold,
        long_max_wait_s=advice.chosen.long_max_wait_s,
        aged_share=share,
        sentences=advice.sentences,
        mean_s=chosen.short.ttft.mean,
        best_mean_s=grid[best].short.ttft.mean,
        best_threshold=best.threshold,
        best_wait_s=best.long_max_wait_s,
        worst_mean_s=max(replay.short.ttft.mean for replay in grid.values()),
        p95_s=chosen.short.ttft.quantile(0.95),
        strict_p95_s=strict.short.ttft.quantile(0.95),
        tuned_mean_s=tuned.short.ttft.mean,
        tuned_p95_s=tuned.short.ttft.quantile(0.95),
        fcfs_mean_s=fcfs.short.ttft.mean,
        late_share=1 - chosen.long.attainment,
        wall_s=time.perf_counter() - began,
    )


def p80(trace: Trace) -> int:
    """The exact P80 of the whole trace's prompts."""
    lengths = sorted(request.prompt_tokens for request in trace)
    return lengths[int(SPLIT * (len(lengths) - 1))]


def judge_file(name: str, load: float, mixed: bool, told: bool) -> Judgement:
    """For another process."""
    return judge(open_trace(str(TRACES / name)), load, mixed, told)


def main() -> int:
    parser = argparse.ArgumentParser(description="judge advice on the second half of public traces")
    parser.add_argument("--mixed", action="store_true", help="with the traces' own outputs, not one token each")
    parser.add_argument("--untold", action="store_true", help="advice takes its own half's P80 for the split")
    parser.add_argument("--load", type=float, action="append", help="only this part of capacity; may be repeated")
    options = parser.parse_args()
    missing = [name for name in NAMES if not (TRACES / name).exists()]
    if missing:
        print(f"{TRACES} lacks {', '.join(missing)}: put them there (Azure/AzurePublicDataset, kvcache-ai/Mooncake)")
        return 2
    jobs = [
        (name, load, options.mixed, not options.untold) for load in options.load or LOADS for name in reversed(NAMES)
    ]
    judgements = []
    with ProcessPoolExecutor(PROCESSES) as pool:
        for done in as_completed([pool.submit(judge_file, *job) for job in jobs]):
            judgements.append(done.result())
            report(judgements[-1])
    judgements.sort(key=lambda judgement: (judgement.trace, judgement.load))
    write(OUTPUT, [asdict(each) for each in judgements])
    print(f"written to {OUTPUT}")
    return 0 if all(met for each in judgements for _, met in each.bars) else 1


def report(judgement: Judgement) -> None:
    """What it was, and whether the bars are met."""
    advised, best = judgement, f"{judgement.best_threshold:,} tokens and {judgement.best_wait_s:g} s"
    setting = f"{advised.threshold:,} tokens, {advised.long_max_wait_s:g} s, share {advised.aged_share:.3g}"
    print(f"{advised.trace} at {advised.load:.0%}: {setting} advised")
    print(
        f"  mean TTFT up to {advised.split_tokens:,} tokens: {advised.mean_s:.3f} s, FCFS {advised.fcfs_mean_s:.3f} s"
    )
    print(f"  grid: {advised.best_mean_s:.3f} s at {best}, worst {advised.worst_mean_s:.3f} s")
    print(f"  what the tuner alone would set: mean {advised.tuned_mean_s:.3f} s, P95 {advised.tuned_p95_s:.3f} s")
    print(f"  P95: {advised.p95_s:.3f} s (strict {advised.strict_p95_s:.3f}); {advised.late_share:.1%} of longs late")
    for claim, met in judgement.bars:
        print(f"  {'met   ' if met else 'MISSED'} {claim}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
