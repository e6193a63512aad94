"""An OpenAI-compatible completions server without an accelerator: `python3 -m prefleet_runtime.sim.server`.

It stands in for `vllm serve`: the same routes, errors and metric names (`protocol`, `vllm_metrics`), the
runtime's own queue, policy file and exporter (`Governor`), and an engine that sleeps instead of computing
(`api`, `realtime`, `engine`, `cost_model`). So a fleet of these behaves, and is tuned, like a fleet of the named
model on the named accelerator, on a fraction of a CPU core.

Prefill and decode hand over as vLLM's NixlConnector does. The prefill is called with `kv_transfer_params`
{do_remote_decode: true} and keeps the KV blocks; its answer's `kv_transfer_params`, given to the decode, let
it skip prefill: it takes room for the KV, waits as long as the transfer takes, and tells the prefill to free
its blocks. That message is a POST to /prefleet/kv_release on the prefill's own port (vLLM uses a NIXL
notification on a side channel). Blocks that nobody fetches are freed when their lease ends. Left out: the
heartbeats with which vLLM renews the lease while the decode queues; a fetch after the lease still succeeds.
As in vLLM, whoever may call a decode pod chooses the address that it then calls: keep it behind the router.

POST /prefleet/drain from the pod itself (`drain`): every answer closes its connection from now on. SIGTERM: completions
are refused with 503, what runs or is kept for another pod ends, then the process exits with 0; a second signal ends it
at once. Left out: chat completions, authentication, TLS.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

from prefleet_runtime.contract import DEFAULT_EXPORTER_PORT, InvalidPolicyError, RuntimeSettings
from prefleet_runtime.governor import Governor
from prefleet_runtime.sim.cost_model import DEFAULT_PROFILE, EngineProfile, parse_profile
from prefleet_runtime.sim.protocol import ServedModel
from prefleet_runtime.sim.realtime import clock
from prefleet_runtime.sim.state import (
    BLOCK_TOKENS,
    DEFAULT_KV_LEASE_S,
    DEFAULT_MAX_NUM_BATCHED_TOKENS,
    DEFAULT_MAX_NUM_SEQS,
    Limits,
    SimRequest,
)

try:
    from aiohttp import web

    from prefleet_runtime.sim.api import SimulatedServer
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "aiohttp":
        raise
    raise SystemExit("the simulated server needs aiohttp: pip install 'prefleet[replay]'") from error

logger = logging.getLogger(__name__)

DRAIN_POLL_S = 0.05
SHUTDOWN_S = 1.0
ROLES = ("prefill", "decode", "mixed")


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The command line, checked."""

    host: str
    port: int
    runtime: RuntimeSettings
    model: ServedModel
    profile: EngineProfile
    limits: Limits


async def serve(settings: ServerSettings, governor: Governor[SimRequest]) -> None:
    """Serve until SIGTERM or SIGINT, then drain. Raises what kills the engine."""
    signals = asyncio.Queue[None]()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.put_nowait, None)
    server = SimulatedServer(settings.model, settings.profile, settings.limits, governor)
    runner = web.AppRunner(
        server.application(), access_log=None, handler_cancellation=True, shutdown_timeout=SHUTDOWN_S
    )
    await runner.setup()
    try:
        await _listen(runner, settings)
        logger.info("serving %s on %s", settings.model.name, runner.addresses)
        await _first_of(server.realtime.run(), _stopped(server, signals))
    finally:
        await runner.cleanup()


async def _listen(runner: web.AppRunner, settings: ServerSettings) -> None:
    try:
        await web.TCPSite(runner, settings.host, settings.port, backlog=1024).start()
    except (OSError, OverflowError) as error:
        where, reason = f"{settings.host}:{settings.port}", getattr(error, "strerror", None) or error
        raise SystemExit(f"the simulated server cannot listen on {where} ({reason}): set another --port") from error


async def _first_of(*runs: Coroutine[Any, Any, None]) -> None:
    """Run several until one returns or raises, then end the others."""
    tasks = [asyncio.create_task(run) for run in runs]
    done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    for task in done:
        task.result()


async def _stopped(server: SimulatedServer, signals: asyncio.Queue[None]) -> None:
    """Returns once a signal came and everything open has ended, or a second signal came."""
    await signals.get()
    server.draining = True
    logger.info("draining: %d requests are unfinished", server.realtime.engine.unfinished)
    # Leases end inside the engine, which is pure and sets no event.
    while server.busy and signals.empty():  # noqa: ASYNC110
        await asyncio.sleep(DRAIN_POLL_S)


def parse_arguments(arguments: Sequence[str]) -> ServerSettings:
    """The command line. Raises SystemExit with a sentence."""
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        profile = parse_profile(given.cost_model)
        if given.kv_cache_tokens is not None:
            profile = replace(profile, kv_cache_tokens=given.kv_cache_tokens)
        limits = Limits(
            max_num_batched_tokens=given.max_num_batched_tokens,
            max_num_seqs=given.max_num_seqs,
            kv_cache_tokens=profile.kv_cache_tokens,
            kv_lease_s=given.kv_lease_s,
        )
        _check_room(given.max_model_len, limits)
        runtime = RuntimeSettings.parse(
            {"policy_file": given.policy_file, "exporter_host": given.host, "exporter_port": given.exporter_port}
        )
    except ValueError as error:
        parser.error(str(error))
    return ServerSettings(
        host=given.host,
        port=given.port,
        runtime=runtime,
        model=ServedModel(given.served_model_name or profile.name, given.max_model_len, given.role),
        profile=profile,
        limits=limits,
    )


def _check_room(max_model_len: int, limits: Limits) -> None:
    room = limits.blocks * BLOCK_TOKENS
    if not 1 < max_model_len <= room:
        raise ValueError(f"--max-model-len is {max_model_len} and the KV cache holds {room}: give 2 to {room}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="prefleet_runtime.sim.server", description="A simulated LLM server.")
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address of API and exporter")
    add("--port", type=int, default=8000, help="0 takes any free port")
    add("--policy-file", required=True, help="the runtime policy (JSON), followed while running")
    add("--exporter-port", type=int, default=DEFAULT_EXPORTER_PORT, help="the runtime's own metrics")
    add("--role", choices=ROLES, default="mixed")
    add("--served-model-name", help="default: the cost model's name")
    add("--cost-model", default=DEFAULT_PROFILE.name, help="a preset, or a JSON object of seconds")
    add("--max-num-batched-tokens", type=int, default=DEFAULT_MAX_NUM_BATCHED_TOKENS)
    add("--max-num-seqs", type=int, default=DEFAULT_MAX_NUM_SEQS)
    add("--max-model-len", type=int, default=131072)
    add("--kv-cache-tokens", type=int, help="default: what the model leaves on its accelerator")
    add("--kv-lease-s", type=float, default=DEFAULT_KV_LEASE_S, help="how long KV waits for a decode pod")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the server."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    settings = parse_arguments(sys.argv[1:] if arguments is None else arguments)
    try:
        governor: Governor[SimRequest] = Governor.start(settings.runtime, clock=clock)
    except (InvalidPolicyError, OSError) as error:
        raise SystemExit(f"the simulated server cannot start: {error}") from error
    try:
        asyncio.run(serve(settings, governor))
    finally:
        governor.close()


if __name__ == "__main__":
    main()
