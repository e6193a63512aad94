"""How fast a trace is replayed on one core, and how much memory that takes as the trace becomes longer.

`make bench-replay` runs each case in a process of its own, pinned to one core, so that its peak of memory is its own.
What is timed is the whole way of `prefleet replay`: reading the trace again and again (`repeated`), stretching its
gaps to 90% of what the fleet serves, the virtual fleet, and the sketches of what users met. Beside it, in the same
process, stands a bare queue through which the same requests go one by one (add, begin_step, pop, commit): the ratio of
the two does not depend on the machine.

Rates are by CPU time, which a neighbour on the machine does not spoil; wall time stands beside it. Memory is the
highest resident set that the kernel has seen, all of Python and of the product included (`at_start`).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter, process_time

from prefleet_operator.replay.setting import Scheduling, capacity, make_policy, percentile_split
from prefleet_operator.replay.study import study
from prefleet_runtime.contract import PolicyName, RuntimePolicy
from prefleet_runtime.queueing import PolicyQueue, make_queue
from prefleet_runtime.sim.fleet import FleetShape
from prefleet_runtime.sim.replay import as_sim_requests, replay
from prefleet_runtime.sim.router import RouterKind
from prefleet_runtime.sim.state import SimRequest
from prefleet_runtime.sim.traces import Trace, TraceRequest, open_trace
from prefleet_runtime.sim.traces.transforms import prefill_only, repeated, stretched

from tests.benchmarks.bars import Bar
from tests.benchmarks.console import show_bars, tell, write
from tests.benchmarks.lengths import TRACES

AZURE = TRACES / "AzureLLMInferenceTrace_conv_2023.csv"
STAND_IN = "bursty:seed=7,requests=20000"
LOAD = 0.9
LONG_MAX_WAIT_S = 5.0
FEW, MANY = 100_000, 1_000_000
BARE = 20_000
LEAST_A_MINUTE = 1_000_000
MOST_GROWTH = 1.1
OUTPUT = Path(__file__).resolve().parents[2] / "build" / "bench" / "replay.json"


@dataclass(frozen=True)
class Case:
    """`requests` through `pods`, which only prefill or (`decodes`) also decode."""

    fleet: str
    requests: int
    pods: int = 1
    decodes: bool = False


MAIN = "one prefill pod"
CASES = (
    Case(MAIN, FEW),
    Case(MAIN, MANY),
    Case("one mixed pod, with decode", FEW, decodes=True),
    Case("four prefill pods, least tokens", FEW, pods=4),
)


@dataclass(frozen=True)
class Row:
    """What a case took. `times_bare`: its cost for each request over that of the bare queue."""

    fleet: str
    requests: int
    answered: int
    requests_per_minute: float
    wall_s: float
    peak_rss_mb: float
    rss_at_start_mb: float
    bare_queue_us: float
    times_bare: float


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--case", type=int, help="measure this one in this process, and print its figures as JSON")
    options = parser.parse_args()
    trace, source = the_trace()
    if options.case is not None:
        print(json.dumps(asdict(measure(CASES[options.case], trace))))
        return
    print(f"{PolicyName.SHORT_REQUEST_FIRST} at its default settings, {LOAD:.0%} load; {source}")
    rows = [in_its_own_process(number) for number in range(len(CASES))]
    verdicts = list(bars(rows))
    show(rows)
    show_bars(verdicts)
    write_figures(options.output, rows, verdicts, source)
    print(f"\nwritten to {options.output}")


def the_trace() -> tuple[Trace, str]:
    """The trace to repeat, and what it is."""
    if AZURE.exists():
        return open_trace(str(AZURE)), f"the public trace {AZURE.name}, repeated"
    return open_trace(STAND_IN), f"the mix {STAND_IN}, repeated (the public trace is not on this machine)"


def in_its_own_process(number: int) -> Row:
    command = [sys.executable, "-m", "tests.benchmarks.replay", "--case", str(number)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return Row(**json.loads(done.stdout))


def measure(case: Case, trace: Trace) -> Row:
    """Run a case here and now, on one core."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    requests, policy, shape, split = prepared(case, trace)
    at_start = resident_mb("VmRSS")
    began_s, began_cpu_s = perf_counter(), process_time()
    result = replay(
        requests, shape, policy, split, progress=lambda answered: tell(f"{answered:,} of {case.requests:,}")
    )
    wall_s, cpu_s = perf_counter() - began_s, process_time() - began_cpu_s
    peak = resident_mb("VmHWM")
    tell("")
    each_s = cpu_s / result.requests
    bare_s = bare_queue_s(policy, list(as_sim_requests(repeated(trace, requests=BARE), 0)))
    return Row(
        fleet=case.fleet,
        requests=case.requests,
        answered=result.requests,
        requests_per_minute=60 / each_s,
        wall_s=wall_s,
        peak_rss_mb=peak,
        rss_at_start_mb=at_start,
        bare_queue_us=1e6 * bare_s,
        times_bare=each_s / bare_s,
    )


def prepared(case: Case, trace: Trace) -> tuple[Iterator[TraceRequest], RuntimePolicy, FleetShape, int]:
    """The requests at the load, what they meet, and the length that divides the lanes."""
    studied = study(trace)
    if not case.decodes:
        studied = replace(studied, sample=tuple(prefill_only(studied.sample)))
    split = percentile_split(studied)
    policy = make_policy(PolicyName.SHORT_REQUEST_FIRST, Scheduling(split, LONG_MAX_WAIT_S))
    shape = FleetShape(case.pods, router=RouterKind.LEAST_TOKENS)
    factor = studied.rate / (LOAD * capacity(studied, shape))
    requests = stretched(repeated(trace, requests=case.requests), factor)
    return requests if case.decodes else prefill_only(requests), policy, shape, split


def bare_queue_s(policy: RuntimePolicy, requests: Sequence[SimRequest]) -> float:
    """Seconds of CPU for each request that goes alone through the policy's queue."""
    queue: PolicyQueue[SimRequest] = make_queue(policy)
    known = [(request, request.facts) for request in requests]
    began_s = process_time()
    for request, facts in known:
        queue.add(request, facts)
        queue.begin_step(request.arrival_s)
        queue.pop()
        queue.commit(request.request_id, request.arrival_s, request.prompt_tokens)
    return (process_time() - began_s) / len(requests)


def resident_mb(what: str) -> float:
    """`VmRSS` now, or `VmHWM` at its highest; unlike `ru_maxrss` without the process that started this one."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(what):
            return int(line.split()[1]) / 1024
    raise OSError(f"/proc/self/status lacks {what}: run the benchmark on Linux")


def bars(rows: Iterable[Row]) -> Iterator[Bar]:
    """What is promised of the main case."""
    main_rows = {row.requests: row for row in rows if row.fleet == MAIN}
    for requests, row in main_rows.items():
        rate = row.requests_per_minute
        claim = f"{MAIN}, {requests:,} requests: at least {LEAST_A_MINUTE:,} a minute on one core"
        yield Bar(claim, rate >= LEAST_A_MINUTE, f"{rate:,.0f}")
    growth = main_rows[MANY].peak_rss_mb / main_rows[FEW].peak_rss_mb
    claim = f"memory at {MANY:,} requests at most {MOST_GROWTH:g}x that at {FEW:,}"
    yield Bar(claim, growth <= MOST_GROWTH, f"{growth:.2f}x")


def show(rows: Iterable[Row]) -> None:
    headings = ("requests", "a minute", "wall s", "peak MiB", "at start", "us each", "x bare queue")
    print(f"\n{'':34}" + "".join(f"{heading:>13}" for heading in headings))
    for row in rows:
        cells = (
            f"{row.requests:,}",
            f"{row.requests_per_minute:,.0f}",
            f"{row.wall_s:.1f}",
            f"{row.peak_rss_mb:.1f}",
            f"{row.rss_at_start_mb:.1f}",
            f"{60e6 / row.requests_per_minute:.1f}",
            f"{row.times_bare:.1f}",
        )
        print(f"{row.fleet:34}" + "".join(f"{cell:>13}" for cell in cells))


def write_figures(path: Path, rows: Iterable[Row], verdicts: Iterable[Bar], source: str) -> None:
    document = {
        "command": "make bench-replay",
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "trace": source,
        "load": LOAD,
        "rows": [asdict(row) for row in rows],
        "bars": [asdict(bar) for bar in verdicts],
    }
    write(path, document)


if __name__ == "__main__":
    main()
