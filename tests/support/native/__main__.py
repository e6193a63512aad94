"""A server that stands for one engine that schedules by itself: `python -m tests.support.native FLAVOUR ARGUMENTS`.

A mock, since the engines need accelerators that do not exist here. It takes an engine's real arguments and refuses
what that refuses (`start`), serves its routes, and shows its metrics (`series`). Behind them is the runtime's own
simulator (`prefleet_runtime.sim`): its HTTP side, its engine, and its queues under the policy that the arguments ask
for. Tokens cost what the variable STAND_IN_COST says (a cost model as in `sim.cost_model`), 1 ms a step and 10 us a
token unless it is set.

What only the engines themselves can show: whether their schedulers do what their documents say.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import cast

from aiohttp import web
from prefleet_runtime.governor import Governor
from prefleet_runtime.reload import PolicyWatcher
from prefleet_runtime.sim.api import SimulatedServer
from prefleet_runtime.sim.cost_model import parse_profile
from prefleet_runtime.sim.protocol import ServedModel
from prefleet_runtime.sim.realtime import RealTimeEngine, clock
from prefleet_runtime.sim.state import SimRequest
from prefleet_runtime.sim.vllm_metrics import VllmMetrics
from prefleet_runtime.telemetry import RuntimeMetrics
from prometheus_client import CollectorRegistry

from tests.support.native.series import MAX_LENGTH, NativeSeries
from tests.support.native.start import RefusedError, Start, read_start

COST_VARIABLE = "STAND_IN_COST"
DEFAULT_COST = '{"fixed_s": 0.001, "per_prefill_token_s": 1e-5, "per_decode_token_s": 1e-5}'
DRAIN_POLL_S = 0.05


class NativeServer(SimulatedServer):
    """The simulated server with the metrics of the flavour."""

    def __init__(self, start: Start, governor: Governor[SimRequest], cost: str) -> None:
        super().__init__(ServedModel(start.model, MAX_LENGTH, start.role), parse_profile(cost), start.limits, governor)
        self._shows_metrics = start.metrics and "metrics" not in start.ports
        if start.flavour != "vllm-ascend":
            engine = self.realtime.engine
            self._registry = CollectorRegistry()
            series = NativeSeries(start.flavour, self._registry, engine, start.model)
            # It is asked for `step` and `abort` alone, which both have.
            self.realtime = RealTimeEngine(engine, governor, cast(VllmMetrics, series))

    def applications(self, start: Start) -> dict[str, web.Application]:
        """The routes by port: health and metrics are on ports of their own where the engine has them so."""
        main = self.application()
        if "management" not in start.ports:
            return {"http": main}
        management, metrics = web.Application(), web.Application()
        management.router.add_get("/v2/health/ready", self._health)
        management.router.add_get("/v2/health/live", self._health)
        if start.metrics:
            metrics.router.add_get("/metrics", super()._metrics)
        return {"http": main, "management": management, "metrics": metrics}

    async def _metrics(self, http: web.Request) -> web.Response:
        if not self._shows_metrics:
            raise web.HTTPNotFound
        return await super()._metrics(http)


async def serve(start: Start, governor: Governor[SimRequest], cost: str) -> None:
    """Serve until SIGTERM, then drain."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    server = NativeServer(start, governor, cost)
    runners = {}
    for name, application in server.applications(start).items():
        runners[name] = web.AppRunner(application, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
        await runners[name].setup()
    steps = asyncio.create_task(server.realtime.run())
    try:
        for name, runner in runners.items():
            await web.TCPSite(runner, start.host, start.ports[name], backlog=1024).start()
        await ended.wait()
        server.draining = True
        while server.busy:  # noqa: ASYNC110
            await asyncio.sleep(DRAIN_POLL_S)
    finally:
        steps.cancel()
        for runner in runners.values():
            await runner.cleanup()


def main() -> None:
    """Run the server."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        start = read_start(sys.argv[1], sys.argv[2:])
    except RefusedError as error:
        raise SystemExit(f"{sys.argv[1]}: error: {error}") from None
    logging.info("%s runs %s", start.flavour, start.policy.to_json())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy.json"
        path.write_text(start.policy.to_json())
        watcher = PolicyWatcher(path)
        # Nobody reads what the runtime itself would show: the engine that this stands for has no runtime.
        unread = RuntimeMetrics(CollectorRegistry(), clock, lambda: watcher.current, lambda: 0)
        governor: Governor[SimRequest] = Governor(watcher, unread)
        try:
            asyncio.run(serve(start, governor, os.environ.get(COST_VARIABLE, DEFAULT_COST)))
        finally:
            governor.close()


if __name__ == "__main__":
    main()
