"""`make demo`: the whole path on one machine, from helm install to a tuned fleet, with its figures.

FCFS first, then the policy that POLICY names.

Pods run as processes (there is no container engine): the control plane, the operator, the runtime, Prometheus and
Helm are real, the simulated engines say that they are simulated.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from prefleet_operator.api import CAPABILITIES, EngineType, SchedulingPolicy
from prefleet_runtime.sim.traces import Trace, TraceError, open_trace
from rich.console import Console

from tests.support.binaries import ToolMissing, ensure
from tests.support.demo.fleet import FCFS, NAME, NAMESPACE, Engine, Fleet, simulator, vllm
from tests.support.demo.phases import Measured, measure
from tests.support.demo.progress import Show
from tests.support.demo.report import draw, print_tables
from tests.support.demo.stack import HelmFailed, Stack, running_stack
from tests.support.demo.workload import trace_requests
from tests.support.plane.plane import BINARIES, KubectlFailed
from tests.support.plane.processes import ProcessFailed
from tests.support.progress import Progress
from tests.support.tiny_model import write_tiny_model
from tests.support.vllm_env import VllmEnvironmentError, ensure_vllm_env

RESULTS = Path("build/demo")
# Two engines, their API servers and the whole plane share two cores: this leaves several requests a second.
SMALLER_MODEL = {"num_hidden_layers": 2, "hidden_size": 256, "intermediate_size": 704, "num_attention_heads": 4}
STARTUP_FAULTS = (
    ToolMissing,
    VllmEnvironmentError,
    TraceError,
    HelmFailed,
    KubectlFailed,
    ProcessFailed,
    TimeoutError,
)


def main(arguments: Sequence[str]) -> int:
    """Run the demo; 0 if it ended well, 1 with one sentence if not, 130 after Ctrl-C."""
    options = _parser().parse_args(arguments)
    console = Console()
    show = Show(console)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix="prefleet-demo-"))
    try:
        _demo(options, folder, show)
    except KeyboardInterrupt:
        console.print("stopped; nothing is left running")
        return 130
    except STARTUP_FAULTS as fault:
        console.print(f"[bold]the demo ended early:[/] {fault}", markup=True, highlight=False)
        return 1
    finally:
        show.close()
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--engine", choices=("simulator", "vllm"), default="simulator")
    policies = [policy.value for policy in CAPABILITIES[EngineType.SIMULATOR].policies]
    default = SchedulingPolicy.SHORT_REQUEST_FIRST.value
    parser.add_argument("--policy", choices=policies, default=default, help="what runs after FCFS, beside it")
    parser.add_argument("--trace", help="a trace to replay: whatever `prefleet replay` takes, a mix included")
    parser.add_argument("--keep", action="store_true", help="leave everything running until Ctrl-C")
    return parser


def _demo(options: argparse.Namespace, folder: Path, show: Show) -> None:
    trace = _checked_trace(options.trace, show) if options.trace else None
    binaries = ensure([*BINARIES, "helm", "prometheus"], Progress(sys.stderr))
    engine, vllm_environment = _engine(options.engine, folder, show)
    began = time.monotonic()
    with running_stack(folder, binaries, vllm_environment, show) as stack:
        fleet = Fleet(stack.plane, engine)
        show.line(f"kubectl apply: PrefillPolicy {NAME}, {engine.name}, under FCFS", keep=True)
        fleet.apply(FCFS)
        fleet.wait_for("Ready", engine.ready_timeout_s, show.line)
        fleet.wait_for("PolicyActive", 60, show.line)
        policy = SchedulingPolicy(options.policy)
        measured = asyncio.run(measure(fleet, policy, stack.prometheus_url, trace, show))
        show.close()
        _report(measured, stack, show.console)
        show.console.print(f"the demo took {time.monotonic() - began:.0f} s")
        if options.keep:
            _keep(stack, show.console)


def _checked_trace(asked: str, show: Show) -> Trace:
    """The trace, read once before anything is started: a wrong one should cost nothing.

    Raises:
        TraceError: it cannot be replayed.
    """
    trace = open_trace(asked)
    trace_requests(trace, 60, 0.8, lambda tokens: tokens / 10_000, 2, 16_384)
    if trace.bad.count:
        show.line(f"{trace.name}: left out as malformed: {trace.bad.reasons()}", keep=True)
    return trace


def _engine(name: str, folder: Path, show: Show) -> tuple[Engine, Path | None]:
    if name == "simulator":
        return simulator(), None
    python = ensure_vllm_env(lambda text: show.line(text, keep=True))
    model = write_tiny_model(folder / "model", **SMALLER_MODEL)
    return vllm(model), python.parent.parent


def _report(measured: Measured, stack: Stack, console: Console) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    print_tables(console, measured.summary, measured.titles)
    console.print(stack.plane.kubectl("get", "pp", "-n", NAMESPACE), highlight=False)
    (RESULTS / "summary.json").write_text(measured.summary.to_json())
    draw(measured.summary, measured.titles, measured.outcomes, RESULTS / "demo.png")
    console.print(f"figures: {RESULTS / 'summary.json'}   picture: {RESULTS / 'demo.png'}")


def _keep(stack: Stack, console: Console) -> None:
    console.print("left running until Ctrl-C; in another terminal:")
    for command in (
        f"export KUBECONFIG={stack.plane.kubeconfig}",
        f"alias k={stack.plane.binaries['kubectl']}",
        f"k get pp,pods -n {NAMESPACE}",
        f"k describe pp {NAME} -n {NAMESPACE}",
        f"k edit pp {NAME} -n {NAMESPACE}      # pin scheduling.threshold, and watch the generation rise",
    ):
        console.print(f"  {command}", highlight=False, soft_wrap=True)
    with contextlib.suppress(KeyboardInterrupt):
        signal.pause()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
