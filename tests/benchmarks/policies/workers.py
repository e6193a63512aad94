"""Runs the virtual half in worker processes of the vLLM environment, one series each at a time.

A thread for each worker hands it a series, reads as many runs as the series has and hands it the next. The first
worker that dies, or is silent for `SILENCE_S`, ends everything with the end of what it wrote to stderr. Workers are
our children and are killed by id when the iterator is closed, in whatever way that happens.
"""

from __future__ import annotations

import json
import queue
import subprocess
import tempfile
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import IO, Any

from tests.benchmarks.policies.cases import CONTENDERS
from tests.benchmarks.policies.rows import VIRTUAL, Run
from tests.support.vllm_server import REPOSITORY, RUNTIME_FOLDER, die_with_parent, log_tail, server_environment

COSTS = ("accelerator", "cpu")
SILENCE_S = 300.0
PREFILL_REQUESTS = 3


@dataclass(frozen=True)
class VirtualPlan:
    """Every combination of these, each seed under each policy that runs on the node.

    `requests` are those of a sustained load on a mixed node. A node that only prefills gets `PREFILL_REQUESTS` times
    as many, since it takes that many fewer steps for one, and the P95 of few longs differs much from seed to seed.
    """

    nodes: Sequence[str]
    costs: Sequence[str]
    loads: Sequence[str]
    policies: Sequence[str]
    seeds: int
    requests: int

    def series(self) -> list[dict[str, Any]]:
        """As a worker reads them; seeds outermost, so that what has come says something of everything."""
        common = {"loads": list(self.loads), "policies": list(self.policies)}
        requests = {node: self.requests * (PREFILL_REQUESTS if node == "prefill" else 1) for node in self.nodes}
        return [
            {"node": node, "costs": costs, "seed": seed, "requests": requests[node], **common}
            for seed, node, costs in product(range(self.seeds), self.nodes, self.costs)
        ]

    def runs_in(self, node: str) -> int:
        """Runs of one series."""
        return len(self.loads) * sum(c.name in self.policies and node in c.nodes for c in CONTENDERS)

    @property
    def total(self) -> int:
        return sum(self.runs_in(series["node"]) for series in self.series())


class Worker:
    """One process, to be started by a thread that outlives it: the process ends with that thread."""

    def __init__(self, python: Path, log: Path) -> None:
        self._log = log
        environment = server_environment(python) | {
            "PYTHONPATH": f"{RUNTIME_FOLDER}:{REPOSITORY}",
            "VLLM_LOGGING_LEVEL": "ERROR",
        }
        command = [str(python), "-W", "ignore", "-m", "tests.benchmarks.policies.virtual"]
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
                cwd=REPOSITORY,
                preexec_fn=die_with_parent,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input: IO[str] = self._process.stdin
        self._output: IO[str] = self._process.stdout

    def runs(self, series: dict[str, Any], count: int) -> Iterator[Run]:
        """Raises RuntimeError if the worker ends before the last of them."""
        try:
            self._input.write(json.dumps(series) + "\n")
            self._input.flush()
        except OSError as error:
            raise RuntimeError(self.about("took no series")) from error
        for _ in range(count):
            yield self._next_run()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        with suppress(OSError):  # of what it did not read
            self._input.close()

    def about(self, what: str) -> str:
        return f"a worker of the virtual half {what}:\n{log_tail(self._log)}"

    def _next_run(self) -> Run:
        for line in self._output:
            if line.startswith("{"):  # imports chatter on stdout, too
                document = json.loads(line)
                return Run(half=VIRTUAL, number=document.pop("seed"), **document)
        raise RuntimeError(self.about(f"ended with status {self._process.wait()}"))


def virtual_runs(python: Path, plan: VirtualPlan, workers: int) -> Generator[Run, None, None]:
    """All runs of the plan, as they come. Raises RuntimeError if a worker dies or is stuck."""
    waiting: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    for series in plan.series():
        waiting.put(series)
    done: queue.SimpleQueue[Run | Exception] = queue.SimpleQueue()
    with ExitStack() as stack:  # from its end: kill the workers, await their threads, remove their logs
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        threads: list[threading.Thread] = []
        stack.callback(_join, threads)
        crew = [_start(python, folder / f"worker-{n}.log", stack) for n in range(min(workers, len(plan.series())))]
        for worker in crew:
            threads.append(threading.Thread(target=_serve, args=(worker, plan, waiting, done), daemon=True))
            threads[-1].start()
        for _ in range(plan.total):
            yield _take(done, crew)


def _start(python: Path, log: Path, stack: ExitStack) -> Worker:
    worker = Worker(python, log)
    stack.callback(worker.kill)
    return worker


def _join(threads: Sequence[threading.Thread]) -> None:
    for thread in threads:
        thread.join()


def _serve(
    worker: Worker,
    plan: VirtualPlan,
    waiting: queue.SimpleQueue[dict[str, Any]],
    done: queue.SimpleQueue[Run | Exception],
) -> None:
    try:
        while True:
            series = waiting.get_nowait()
            for run in worker.runs(series, plan.runs_in(series["node"])):
                done.put(run)
    except queue.Empty:
        pass
    except (RuntimeError, ValueError, TypeError, KeyError) as error:  # raised again where results are taken
        done.put(error)


def _take(done: queue.SimpleQueue[Run | Exception], workers: Sequence[Worker]) -> Run:
    try:
        run = done.get(timeout=SILENCE_S)
    except queue.Empty:
        told = "\n".join(worker.about(f"said nothing for {SILENCE_S:.0f} s") for worker in workers)
        raise RuntimeError(told) from None
    if isinstance(run, Exception):
        raise run
    return run
