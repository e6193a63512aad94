"""Slow reference models of the queue policies, written from the sentences of the design.

A `Model` is a plain list of requests in arrival order. Every question is answered by looking at all of them;
nothing is remembered that the sentences do not name. The conformance suite plays the same history on a model
and on the real queue and compares orders, gauges and counters after each event.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from prefleet_runtime.contract import LengthKind, PolicyName, RuntimePolicy
from prefleet_runtime.queueing import Lane, RequestFacts


@dataclass(eq=False)
class Request:
    """One request of the history. `out`: popped; `parked`: it was left out by an earlier step.

    `cost` and `processed` (the counter) are those of its arrival, and stay.
    """

    facts: RequestFacts
    place: int
    deferred: bool
    cost: int
    processed: int
    out: bool = False
    parked: bool = False
    bypasses: int = 0
    aged_when_popped: bool = False
    held: bool = False


class Model:
    """What the design says of one queue, under a policy that may be switched."""

    def __init__(self, policy: RuntimePolicy) -> None:
        self.policy = policy
        self.requests: list[Request] = []
        self.debt = 0.0
        self.streak = 0
        self.promotions = self.degradations = self.requeues = self.bypasses = 0
        self.dispatches = dict.fromkeys(Lane, 0)
        self.processed = 0
        self.promoted: str | None = None
        self._back, self._front = 0, 0

    # Events.

    def add(self, facts: RequestFacts) -> None:
        self._back += 1
        self.requests.append(Request(facts, self._back, facts.deferred, facts.uncached_tokens, self.processed))

    def preempt(self, facts: RequestFacts) -> None:
        """A running request comes back: it goes to the front, as if it had been there from the beginning."""
        self._front -= 1
        self.requeues += 1
        self.requests.insert(0, Request(facts, self._front, facts.deferred, facts.uncached_tokens, 0))

    def put_back(self, request_id: str, started: bool) -> RequestFacts:
        request = self.find(request_id)
        request.out = request.parked = False
        facts = replace(request.facts, started=request.facts.started or started, deferred=request.deferred)
        if facts.started:  # classified anew, by what is told now
            request.facts = facts
        self.requeues += 1
        self._clear()
        return facts

    def remove(self, request_id: str) -> None:
        self.requests = [request for request in self.requests if request.facts.request_id != request_id]
        self._clear()

    def defer(self, request_id: str, deferred: bool) -> None:
        self.find(request_id).deferred = deferred
        self._clear()

    def refresh(self, request_id: str, cached_tokens: int) -> bool:
        request = self.find(request_id)
        if self.policy.policy is not PolicyName.SHORT_REQUEST_FIRST:
            return False
        facts = replace(request.facts, cached_tokens=max(cached_tokens, request.facts.cached_tokens))
        if self.lane(request) is not Lane.LONG or self.lane(replace(request, facts=facts)) is not Lane.SHORT:
            return False
        request.facts = facts
        return True

    def switch(self, policy: RuntimePolicy) -> None:
        """Every request is ordered anew under the new policy; the debt starts anew."""
        self.policy, self.debt, self.streak, self.promoted = policy, 0.0, 0, None
        for request in self.requests:
            request.held = False
            request.parked = request.out

    def begin_step(self, now: float, processed: int) -> list[str]:
        """The order of the step. A counter that falls is taken to stand still."""
        self.processed = max(self.processed, processed)
        for request in self.requests:
            request.parked = request.out
        self._clear()
        long = next((request for request in self.waiting() if self.lane(request) is Lane.LONG), None)
        if self.shorts_wait() and self.debt > 0 and long is not None and self.aged(long, now) and not long.held:
            long.held = True
            self._extend_streak()
        normal = [request for request in self.waiting() if self.lane(request) is not Lane.IMMEDIATE]
        shortest = min(normal, key=self.length, default=None)
        self.promoted = shortest.facts.request_id if shortest else None
        return self.order(now, frozenset())

    def commit(self, request_id: str, tokens: int) -> tuple[Lane, bool]:
        """A dispatch: the lane that it left, and whether it was a promotion."""
        request = self.find(request_id)
        lane, share = self.lane(request), self.policy.aged_share
        promoted = lane is Lane.LONG and request.aged_when_popped and self.shorts_wait()
        if lane is Lane.SHORT:
            self.debt = max(0.0, self.debt - share * tokens)
            if share == 1:
                self.streak = 0
        if promoted:
            self.promotions += 1
            self.debt += (1 - share) * tokens
            if share == 1:
                self._extend_streak()
            elif not request.held:
                self.streak = 0
        self.dispatches[lane] += 1
        self.remove(request_id)
        return lane, promoted

    # Questions.

    def find(self, request_id: str) -> Request:
        return next(request for request in self.requests if request.facts.request_id == request_id)

    def waiting(self) -> list[Request]:
        return sorted((request for request in self.requests if not request.out), key=lambda request: request.place)

    def length(self, request: Request) -> int:
        if self.policy.length is LengthKind.UNCACHED:
            return request.facts.uncached_tokens
        return max(1, request.facts.prompt_tokens)

    def lane(self, request: Request) -> Lane:
        facts = request.facts
        trusted = self.policy.trust_client_priority and facts.client_priority < 0
        if facts.started or facts.priority < 0 or trusted:
            return Lane.IMMEDIATE
        if self.policy.policy is not PolicyName.SHORT_REQUEST_FIRST:
            return Lane.ALL
        assert self.policy.threshold is not None
        return Lane.SHORT if self.length(request) <= self.policy.threshold else Lane.LONG

    def aged(self, request: Request, now: float) -> bool:
        limit_s = self.policy.long_max_wait_ms / 1000
        return limit_s > 0 and now - request.facts.arrival_s >= limit_s

    def shorts_wait(self) -> bool:
        """Whether a short waits for nothing but its turn; one popped in this step is not dispatched yet."""
        return any(
            self.lane(request) is Lane.SHORT and not request.deferred and not request.parked
            for request in self.requests
        )

    def order(self, now: float, hidden: frozenset[str]) -> list[str]:
        """What successive pops of this step give."""
        left = [request for request in self.waiting() if request.facts.request_id not in hidden]
        match self.policy.policy:
            case PolicyName.FCFS:
                left.sort(key=lambda request: self.lane(request) is not Lane.IMMEDIATE)
            case PolicyName.PROMOTE_SHORTEST:
                left.sort(
                    key=lambda request: (
                        self.lane(request) is not Lane.IMMEDIATE,
                        request.facts.request_id != self.promoted,
                    )
                )
            case PolicyName.HRRN:
                left.sort(key=lambda request: (self.lane(request) is not Lane.IMMEDIATE, -self.ratio(request)))
            case PolicyName.SHORT_REQUEST_FIRST:
                return self._short_first(left, now)
        return [request.facts.request_id for request in left]

    def ratio(self, request: Request) -> Fraction:
        """Work done since its arrival for each token that it costs; nothing while it is immediate."""
        if self.lane(request) is Lane.IMMEDIATE:
            return Fraction(0)
        return Fraction(self.processed - request.processed, request.cost)

    def _short_first(self, left: list[Request], now: float) -> list[str]:
        """Successive dispatches, if each took its uncached tokens: whoever may go next, goes next."""
        contest, debt, share, order = self.shorts_wait(), self.debt, self.policy.aged_share, []
        while left:
            request = self._next(left, now, held_back=contest and debt > 0)
            left.remove(request)
            order.append(request.facts.request_id)
            if self.lane(request) is Lane.SHORT:
                debt = max(0.0, debt - share * request.facts.uncached_tokens)
            elif self.lane(request) is Lane.LONG and self.aged(request, now):
                debt += (1 - share) * request.facts.uncached_tokens
        return order

    def _next(self, left: list[Request], now: float, held_back: bool) -> Request:
        by_lane = {lane: [request for request in left if self.lane(request) is lane] for lane in Lane}
        aged_long = [request for request in by_lane[Lane.LONG][:1] if self.aged(request, now) and not held_back]
        lanes = (by_lane[Lane.IMMEDIATE], aged_long, by_lane[Lane.SHORT], by_lane[Lane.LONG])
        return next(lane[0] for lane in lanes if lane)

    def _clear(self) -> None:
        if not self.shorts_wait():
            self.debt, self.streak = 0.0, 0

    def _extend_streak(self) -> None:
        self.streak += 1
        self.degradations += self.streak == 3
