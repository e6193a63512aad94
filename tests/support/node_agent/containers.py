"""One container: started, probed, ended, started again, as its pod's restart policy says.

`run` is a loop over *instances* and returns when the container is over for good. `stop` may come at any moment: no
instance is started after it, and the running one is ended as a kubelet ends it: preStop, SIGTERM to the main
process alone, SIGKILL to the whole tree when the grace is used up (of which preStop takes its share, though SIGTERM
always leaves 2 s). When the main process ends, what it left behind is killed, as the end of a pid namespace would.

A container met again by a restarted agent is taken as killed (137) if it ran: its processes died with the agent.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from datetime import datetime

from tests.support.node_agent import status
from tests.support.node_agent.actions import Outcome, perform
from tests.support.node_agent.api import Json
from tests.support.node_agent.backoff import BackOff
from tests.support.node_agent.launching import NotLaunchableError, Plan, plan_launch
from tests.support.node_agent.probes import run_probes
from tests.support.node_agent.processes import exit_code, kill_trees, start
from tests.support.node_agent.sandbox import Sandbox

_RETRY_S = 2.0
_LEAST_TERM_S = 2.0
_MESSAGE_BYTES = 2048

_log = logging.getLogger(__name__)


class Container:
    """`previous` is the status that an earlier agent left, if one did."""

    def __init__(self, spec: Json, sandbox: Sandbox, *, is_init: bool = False, previous: Json | None = None) -> None:
        self.spec = spec
        self.name: str = spec["name"]
        self.restart_count = 0
        self.exit_code: int | None = None
        self.stopping = asyncio.Event()
        self._is_init = is_init
        self._sandbox = sandbox
        policy = sandbox.pod["spec"].get("restartPolicy", "Always")
        self._policy: str = "OnFailure" if is_init and policy == "Always" else policy
        self._state = status.waiting("PodInitializing")
        self._last_state: Json = {}
        self._started = False
        self._ready = False
        self._plan: Plan | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._pre_stopped = False
        self._back_off: BackOff = sandbox.host.settings.back_off
        self._ended_at = 0.0
        if previous:
            self._adopt(previous)

    # --- what it shows

    @property
    def is_running(self) -> bool:
        return "running" in self._state

    @property
    def waiting_for(self) -> Json | None:
        """Reason and message while it has not been started."""
        return self._state.get("waiting")

    def status(self) -> Json:
        number = self.restart_count
        began = self._process is not None or self.exit_code is not None
        return {
            "name": self.name,
            "image": self.spec["image"],
            "imageID": "",
            "containerID": f"process://{self._sandbox.folder.name}-{self.name}-{number}" if began else "",
            "state": self._state,
            "lastState": self._last_state,
            "ready": self._ready,
            "started": self._started,
            "restartCount": number,
        }

    def show_waiting(self, reason: str, message: str = "") -> None:
        """For a container whose turn has not come."""
        if "waiting" in self._state:
            self._change(status.waiting(reason, message))

    # --- running

    async def run(self) -> None:
        """Returns when it will not be started again."""
        while not self.stopping.is_set():
            if self.exit_code is not None:
                if not status.restarts(self._policy, self.exit_code):
                    return
                await self._wait_back_off(self.exit_code)
            if (plan := await self._planned()) and not self.stopping.is_set():
                await self._run_instance(plan)

    async def _planned(self) -> Plan | None:
        """The plan; None after a while without one (its state says why)."""
        try:
            return await plan_launch(self._sandbox, self.spec)
        except NotLaunchableError as error:
            if self.waiting_for != {"reason": error.reason, "message": error.message}:
                self._sandbox.event("Warning", "Failed", error.message)
            self._change(status.waiting(error.reason, error.message))
            await self._sleep(_RETRY_S)
            return None

    async def _run_instance(self, plan: Plan) -> None:
        if self.exit_code is not None:
            now = asyncio.get_running_loop().time()
            self._back_off = self._back_off.after_restart(self._ended_at, now)
            self.restart_count += 1
        log = self._sandbox.log_file(self.name, self.restart_count)
        began = self._sandbox.host.now()
        try:
            self._process = await start(plan.launch, log)
        except OSError as error:
            self._end(128, began, "StartError", f"{plan.launch.argv[0]} could not be started: {error}")
            return
        self._plan = plan
        self._pre_stopped = False
        self._change(status.running(status.timestamp(began)))
        self._sandbox.event("Normal", "Started", f"Started container {self.name}")
        await self._attend(self._process, began)

    async def _attend(self, process: asyncio.subprocess.Process, began: datetime) -> None:
        """Probes the instance until it has ended, and clears up after it."""
        if self.stopping.is_set():
            process.kill()
        probing = asyncio.create_task(self._probe())
        probing.add_done_callback(self._probing_ended)
        try:
            await process.wait()
        finally:
            probing.cancel()
            await asyncio.gather(probing, return_exceptions=True)
        await asyncio.to_thread(kill_trees, self._mark)
        self._process = None
        self._end(exit_code(process), began)

    async def _probe(self) -> None:
        if not self._is_init:
            await run_probes(self.spec, self, self._perform)

    def _probing_ended(self, probing: asyncio.Task[None]) -> None:
        if not probing.cancelled() and (error := probing.exception()):
            _log.error("%s: probing %s failed", self._sandbox.title, self.name, exc_info=error)

    def _end(self, code: int, began: datetime, reason: str = "", message: str = "") -> None:
        if code and not message and self.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            message = self._log_tail()
        self.exit_code = code
        self._ended_at = asyncio.get_running_loop().time()
        self._started = False
        self._ready = self._is_init and code == 0
        began_text, ended_text = status.timestamp(began), status.timestamp(self._sandbox.host.now())
        self._change(status.terminated(code, began_text, ended_text, reason, message))
        _log.info("%s: container %s ended with %d", self._sandbox.title, self.name, code)

    async def _wait_back_off(self, code: int) -> None:
        now = asyncio.get_running_loop().time()
        left = self._back_off.wait_s(self._ended_at, now)
        self._last_state = self._state if "terminated" in self._state else self._last_state
        if left <= 0:
            return
        delay = self._back_off.current_delay_s(self._ended_at)
        message = f"back-off {delay:g}s restarting failed container={self.name} pod={self._sandbox.title}"
        self._change(status.waiting("CrashLoopBackOff", message))
        self._sandbox.event("Warning", "BackOff", f"{message} (exit code {code})")
        await self._sleep(left)

    # --- ending

    async def stop(self, grace_s: float) -> None:
        """Ends it for good within the grace (and 2 s); may be called again with a shorter one."""
        self.stopping.set()
        await self._halt(grace_s)

    async def _halt(self, grace_s: float) -> None:
        """Ends the running instance."""
        loop = asyncio.get_running_loop()
        process, deadline = self._process, loop.time() + grace_s
        if process is None:
            return
        await self._pre_stop(grace_s)
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout_at(max(deadline, loop.time() + _LEAST_TERM_S)):
                await process.wait()
        except TimeoutError:
            _log.info("%s: container %s outlived its grace, killed", self._sandbox.title, self.name)
            await asyncio.to_thread(kill_trees, self._mark)
            await process.wait()

    async def _pre_stop(self, grace_s: float) -> None:
        hook = self.spec.get("lifecycle", {}).get("preStop")
        if not hook or self._pre_stopped:
            return
        self._pre_stopped = True
        outcome = await self._perform(hook, grace_s)
        if not outcome.ok:
            self._sandbox.event("Warning", "FailedPreStopHook", outcome.message)

    # --- what probes tell

    def became_started(self) -> None:
        self._started = True
        self._sandbox.notify()

    def became_ready(self, ready: bool, message: str) -> None:
        if ready is self._ready:
            return
        self._ready = ready
        self._sandbox.notify()
        if not ready:
            self._sandbox.event("Warning", "Unhealthy", f"Readiness probe failed: {message}")

    async def became_unhealthy(self, kind: str, probe: Json, message: str) -> None:
        self._sandbox.event("Warning", "Unhealthy", f"{kind} probe failed: {message}")
        self._sandbox.event("Normal", "Killing", f"Container {self.name} failed its {kind.lower()} probe")
        pod_grace = self._sandbox.pod["spec"].get("terminationGracePeriodSeconds", 30)
        await self._halt(float(probe.get("terminationGracePeriodSeconds", pod_grace)))

    # --- small things

    @property
    def _mark(self) -> str:
        return f"{self._sandbox.mark}/{self.name}"

    async def _perform(self, action: Json, timeout_s: float) -> Outcome:
        if self._plan is None:
            raise RuntimeError(f"container {self.name} has not been started")
        return await perform(action, self.spec, self._plan, self._sandbox.host, timeout_s)

    def _change(self, state: Json) -> None:
        if state != self._state:
            self._state = state
            self._sandbox.notify()

    async def _sleep(self, seconds: float) -> None:
        """Returns early when the container is stopped."""
        try:
            async with asyncio.timeout(seconds):
                await self.stopping.wait()
        except TimeoutError:
            return

    def _log_tail(self) -> str:
        log = self._sandbox.log_file(self.name, self.restart_count)
        return log.read_bytes()[-_MESSAGE_BYTES:].decode(errors="replace")

    def _adopt(self, previous: Json) -> None:
        self.restart_count = previous["restartCount"]
        self._last_state = previous.get("lastState", {})
        state = previous["state"]
        if begun := state.get("running"):
            now = status.timestamp(self._sandbox.host.now())
            message = "the node agent was restarted"
            state = status.terminated(137, begun["startedAt"], now, "ContainerStatusUnknown", message)
        self._state = state
        ended = state.get("terminated") or self._last_state.get("terminated")
        if ended:
            self.exit_code = ended["exitCode"]
