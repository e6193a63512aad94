"""The glue between an engine and its queue, shared by every engine: policy in force, queue, metrics, `recent`.

An engine calls, always from its one scheduling thread and with `now` on the axis of `facts.arrival_s`:

    add -> begin_step -> plan_step -> (queue.peek, queue.pop, prepend)* -> dispatched* -> end_step -> ended*

`remove` and `queue.set_deferred` may come between any two of them. A newly published policy is taken at the
top of `add` and of `begin_step` and nowhere else, so that no order changes within a step; a switch moves
everything that waits and everything that is out to the new queue and re-orders it once. `queue` is therefore
to be read afresh for each call and never kept.

The generation that the metrics report is the published one, also while the engine is idle and calls nothing.
That is no promise about the future: whatever the engine does next begins with `add` or `begin_step`, which
take the published policy before anything is ordered, so no request can be ordered by another one.

`plan_step` answers how the step is to be shared (`stage`) and sets the queue's limit on new longs; the rest of the
answer is the engine's to apply.

Left out: the engine itself, and the sharing of one queue between threads.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Generic, Self, TypeVar

from prometheus_client import CollectorRegistry

from .contract import RuntimePolicy, RuntimeSettings
from .device import UNKNOWN, Device
from .exporter import Exporter, serve
from .queueing import Dispatch, Lane, PolicyQueue, RequestFacts, make_queue, transfer
from .recent import RecentRequests
from .reload import PolicyWatcher
from .stage import Arbiter, StepBudget, StepView, StepWork
from .telemetry import EngineLoad, QueueSnapshot, RuntimeMetrics, StageSnapshot

logger = logging.getLogger(__name__)

T = TypeVar("T")

LOG_EVERY_S = 5.0

RECENT_PATH = "/recent"

HEADS_LOOKED_AT = 4
"""Waiting requests at the front of the long lane whose cached part is looked up anew in each step."""


class Governor(Generic[T]):
    """One engine's queue under the policy in force. Not thread-safe: the engine's thread owns it."""

    def __init__(
        self,
        watcher: PolicyWatcher,
        metrics: RuntimeMetrics,
        exporter: Exporter | None = None,
        recent: RecentRequests | None = None,
    ) -> None:
        self.recent = recent if recent is not None else RecentRequests(time.time)
        self._watcher = watcher
        self._metrics = metrics
        self._exporter = exporter
        self._policy = watcher.current
        self._queue: PolicyQueue[T] = make_queue(self._policy)
        self._arbiter = Arbiter(self._policy)
        self._snapshot = QueueSnapshot.of(self._queue)
        self._logged = self._snapshot.counters
        self._logged_s = float("-inf")
        self._degradations = 0
        self._publish()

    @classmethod
    def start(
        cls,
        settings: RuntimeSettings,
        rank: int = 0,
        clock: Callable[[], float] = time.time,
        device: Device = UNKNOWN,
    ) -> Self:
        """Watch the policy file and serve the metrics and /recent on `exporter_port + rank` (port 0: any free one).

        `clock` reads the axis of `facts.arrival_s`; it is used at a scrape alone, to age what waits.
        `device` is what the steps run on, for the metrics to name beside what was learnt of them.

        Raises:
            InvalidPolicyError: there is no policy to start with.
            OSError: the port cannot be had; the message names it.
        """
        watcher = PolicyWatcher(settings.policy_file)
        registry = CollectorRegistry()
        metrics = RuntimeMetrics(registry, clock, lambda: watcher.current, lambda: watcher.refused, device)
        recent = RecentRequests(clock)
        port = settings.exporter_port + rank if settings.exporter_port else 0
        try:
            exporter = serve(registry, settings.exporter_host, port, {RECENT_PATH: recent.to_json})
        except OSError:
            watcher.close()
            raise
        return cls(watcher, metrics, exporter, recent)

    def close(self) -> None:
        """Stop the exporter and the watcher's thread. The queue stays as it is."""
        if self._exporter is not None:
            self._exporter.close()
        self._watcher.close()

    @property
    def queue(self) -> PolicyQueue[T]:
        """The queue in force. Read it afresh each time: `add` and `begin_step` may replace it."""
        return self._queue

    @property
    def policy(self) -> RuntimePolicy:
        """The policy by which `queue` orders."""
        return self._policy

    @property
    def shares_steps(self) -> bool:
        """Whether the policy wants to share steps: where it does not, `plan_step` needs no call."""
        return not self._arbiter.is_idle

    @property
    def exporter_port(self) -> int | None:
        """The port the metrics are served on, None without an exporter."""
        return self._exporter.port if self._exporter is not None else None

    def show_load(self, read: Callable[[], EngineLoad]) -> None:
        """Show in the metrics what the engine holds; `read` is called by the exporter's threads."""
        self._metrics.show_load(read)

    def add(self, item: T, facts: RequestFacts, counts: bool = True) -> None:
        """A new request. `counts`: somebody asked for it, so its length is one of the fleet's.

        Raises ValueError if its id is already in the queue or out.
        """
        self._take_policy()
        self._queue.add(item, facts)
        if counts and not facts.started:
            self._metrics.observe_request(facts)
        self._publish()

    def prepend(self, item: T, facts: RequestFacts) -> None:
        """Put back what was popped, in its place, or admit a preempted request (`facts.started`) as immediate."""
        self._queue.prepend(item, facts)

    def remove(self, request_id: str) -> T | None:
        """Forget a request wherever it is; None if it is unknown. May be repeated."""
        item = self._queue.remove(request_id)
        self._publish()
        return item

    def begin_step(self, now: float, processed_prefill_tokens: int = 0) -> None:
        """Take a new policy if there is one, then fix the order of this step."""
        self._take_policy()
        self._queue.begin_step(now, processed_prefill_tokens)
        self._warn_of_degradation(now)

    def plan_step(self, view: StepView) -> StepBudget:
        """How the step that has begun is to be shared; the queue offers no more longs than that until the next."""
        budget = self._arbiter.plan(view)
        if budget.new_longs is not None:
            self._queue.limit_longs(budget.new_longs)
        return budget

    def refresh_heads(self, cached_tokens: Callable[[T], int], limit: int = HEADS_LOOKED_AT) -> None:
        """Look up anew how much of the first waiting longs is cached; what has become short changes its lane.

        To be called before `begin_step`, so that the order of a step stays fixed.
        """
        for item, facts in self._queue.heads_to_refresh(limit):
            self._queue.refresh(facts.request_id, cached_tokens(item))

    def dispatched(self, request_id: str, now: float, tokens: int) -> Dispatch | None:
        """A popped request was really scheduled; `tokens`: all prefill tokens that this sets in motion.

        That is what is left of its prompt, not only the first chunk: a started prefill runs to its end.
        Returns None for a request that was not waiting (a running one); it is then ignored. To be called in
        the order in which the requests were popped.
        """
        dispatch = self._queue.commit(request_id, now, tokens)
        if dispatch is not None:
            self._metrics.observe_dispatch(dispatch)
            self.recent.dispatched(dispatch, tokens)
            self._warn_of_degradation(now)
        return dispatch

    def ended(self, request_id: str, arrival_s: float, prompt_tokens: int, output_tokens: int) -> None:
        """A request left the engine, answered or aborted: note it for /recent. Once for each request."""
        self.recent.ended(request_id, arrival_s, prompt_tokens, output_tokens)

    def end_step(self, now: float, step_seconds: float, step_tokens: int, work: StepWork | None = None) -> None:
        """A step ended: `step_seconds` since the one before it ended or it began, `step_tokens` scheduled in it.

        `work`: what it computed, which is counted and from which the step cost is learnt.

        One without tokens is not measured: an engine that only waits for KV from elsewhere turns thousands of times
        a second, and those turns would bury the steps that compute.
        """
        if step_tokens:
            self._metrics.observe_step(step_seconds, step_tokens)
            if work is not None:
                self._metrics.observe_work(work, step_seconds)
                self._arbiter.observe(work, step_seconds)
            self._metrics.publish_stage(StageSnapshot.of(self._arbiter))
        self._publish()
        self._log(now)

    def count_fault(self) -> None:
        """Something of ours failed, and the engine went on without it."""
        self._metrics.count_fault()

    def _take_policy(self) -> None:
        policy = self._watcher.current
        if policy is self._policy:
            return
        queue: PolicyQueue[T] = make_queue(policy)
        transfer(self._queue, queue)
        self._policy, self._queue = policy, queue
        self._arbiter.take(policy)
        logger.info(
            "policy %s, generation %d: %d waiting requests re-ordered", policy.policy, policy.generation, len(queue)
        )

    def _publish(self) -> None:
        self._snapshot = QueueSnapshot.of(self._queue)
        self._metrics.publish(self._snapshot)

    def _warn_of_degradation(self, now: float) -> None:
        count = self._queue.counters.degradations
        if count == self._degradations:
            return
        self._degradations = count
        long = self._queue.gauges()[Lane.LONG]
        logger.warning(
            "degraded (episode %d): long requests past their wait of %d ms compete with waiting shorts; %d longs of"
            " %d tokens wait, the first for %.1f s: raise the threshold or the wait, or add capacity",
            count,
            self._policy.long_max_wait_ms,
            long.requests,
            long.tokens,
            long.oldest_wait_s(now),
        )

    def _log(self, now: float) -> None:
        counters = self._snapshot.counters
        if counters == self._logged or now - self._logged_s < LOG_EVERY_S:
            return
        self._logged, self._logged_s = counters, now
        logger.info("%s", _line(self._snapshot, now))


def _line(snapshot: QueueSnapshot, now: float) -> str:
    counters = snapshot.counters
    dispatched = " ".join(f"{lane}={count}" for lane, count in counters.dispatches.items() if count)
    waiting = " ".join(
        f"{lane}={gauge.requests} ({gauge.tokens} tokens, oldest {gauge.oldest_wait_s(now):.1f} s)"
        for lane, gauge in snapshot.lanes.items()
    )
    return (
        f"dispatched {dispatched or 'none'}; promotions {counters.promotions}, degradations {counters.degradations},"
        f" re-queues {counters.requeues}, bypasses {counters.bypasses}; waiting {waiting}"
    )
