"""Random histories of a queue, played on the real one and on its reference model side by side.

Steps happen as engines make them: fix the order, perhaps let heads step aside, pop, put some back in any order,
leave some out, then commit what was scheduled in the order of the pops. Between steps requests arrive, are
preempted, aborted, deferred, found cached, and the policy is switched. `_check()` runs after every event, and
when a history ends the queue is drained: every request that was added has left exactly once.

Every choice is asked of `pick`, so the same player serves a seeded generator and a searching one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import pytest
from prefleet_runtime.contract import LengthKind, PolicyName, RuntimePolicy
from prefleet_runtime.queueing import MAX_BYPASSES, Lane, PolicyQueue, RequestFacts, make_queue, transfer

from tests.support.queue_model import Model

X = TypeVar("X")

TOKENS = (1, 8, 60, 100, 101, 400, 1000)
ARRIVALS = (*["new"] * 4, "deferred", "elevated", "favoured", "started", "preempted", "front")
SECONDS = (0.0, 0.25, 1.0, 3.0)
PROCESSED = (0, 0, 1, 7, 60, 500, 2048)


class Pick(Protocol):
    """One of the options."""

    def __call__(self, options: Sequence[X], /) -> X: ...


class History:
    """One history under way. Requests are their own ids."""

    def __init__(self, pick: Pick, first_policy: PolicyName) -> None:
        self.pick = pick
        policy = self.policy(first_policy)
        self.queue: PolicyQueue[str] = make_queue(policy)
        self.model = Model(policy)
        self.now = 100.0
        self.processed = 0
        self.count = 0
        self.ended: set[str] = set()
        self.aside: list[str] = []

    def play(self, events: int) -> None:
        """That many events, then the end."""
        choices: tuple[Callable[[], None], ...] = (
            *[self.arrive] * 5,
            *[self.step] * 4,
            self.end_an_absence,
            self.abort,
            self.defer,
            self.find_cached,
            self.switch,
        )
        for _ in range(events):
            self.pick(choices)()
            self.check()
        self.drain()

    def policy(self, name: PolicyName) -> RuntimePolicy:
        return RuntimePolicy(
            generation=1,
            policy=name,
            threshold=self.pick((50, 100)),
            long_max_wait_ms=self.pick((0, 500, 2000)),
            aged_share=self.pick((0.25, 0.5, 1.0)),
            length=self.pick(tuple(LengthKind)),
            trust_client_priority=self.pick((False, True)),
        )

    # Events.

    def arrive(self) -> None:
        self.count += 1
        kind = self.pick(
            ("new", "new", "new", "new", "deferred", "elevated", "favoured", "started", "preempted", "front")
        )
        facts = RequestFacts(
            f"r{self.count}",
            self.now - self.pick((0.0, 0.0, 0.5)),
            self.pick(TOKENS),
            self.pick((0, 0, 50, 400)),
            priority=-1 if kind == "elevated" else 0,
            client_priority=-1 if kind == "favoured" else 0,
            started=kind in ("started", "preempted"),
            deferred=kind == "deferred",
        )
        if kind in ("preempted", "front"):
            self.model.preempt(facts)
            self.queue.prepend(facts.request_id, facts)
        else:
            self.model.add(facts)
            self.queue.add(facts.request_id, facts)
            with pytest.raises(ValueError, match="already"):
                self.queue.add(facts.request_id, facts)

    def step(self) -> None:
        self.now += self.pick(SECONDS)
        self.processed += self.pick(PROCESSED)
        told = self.pick((self.processed, self.processed, self.processed, 0))
        order = self.model.begin_step(self.now, told)
        self.aside.clear()
        self.queue.begin_step(self.now, told)
        self.check()
        assert list(self.queue) == order
        order = self.let_heads_step_aside(order, self.pick((0, 0, 1, 2)))
        for request_id in self.pop_and_put_back(order):
            if self.pick((0, 1, 2, 3)):
                self.dispatch(request_id, self.pick(TOKENS))
                self.queue._check()

    def let_heads_step_aside(self, order: list[str], times: int) -> list[str]:
        for _ in range(times):
            may = bool(order) and self.model.find(order[0]).bypasses < MAX_BYPASSES
            assert self.queue.bypass_head() is may
            if may:
                self.model.find(order[0]).bypasses += 1
                self.model.bypasses += 1
                self.aside.append(order[0])
                order = self.model.order(self.now, frozenset(self.aside))
        if times:
            self.check()
        assert list(self.queue)[: len(order)] == order
        assert bool(self.queue) is bool(order)
        return order

    def pop_and_put_back(self, order: list[str]) -> list[str]:
        """Whatever is put back, in whatever order, stands where it stood."""
        left = list(order)
        out: list[str] = []
        for _ in range(self.pick((0, 1, 2, 4, 8))):
            put_back = self.pick((True, False))
            if out and put_back:
                request_id = self.pick(out)
                out.remove(request_id)
                self.queue.prepend(request_id, self.model.put_back(request_id, started=False))
                left = [each for each in order if each in left or each == request_id]
            elif left:
                assert self.queue.peek() == left[0]
                assert self.queue.pop() == left[0]
                out.append(self.take(left.pop(0)))
            else:
                with pytest.raises(IndexError):
                    self.queue.pop()
            assert list(self.queue)[: len(left)] == left
            self.queue._check()
        return [request_id for request_id in order if request_id in out]

    def take(self, request_id: str) -> str:
        request = self.model.find(request_id)
        is_long = self.model.lane(request) is Lane.LONG
        request.out, request.aged_when_popped = True, is_long and self.model.aged(request, self.now)
        return request_id

    def dispatch(self, request_id: str, tokens: int) -> None:
        request = self.model.find(request_id)
        length, arrival_s = self.model.length(request), request.facts.arrival_s
        lane, promoted = self.model.commit(request_id, tokens)
        dispatch = self.queue.commit(request_id, self.now + 0.125, tokens)
        assert dispatch is not None
        assert (dispatch.lane, dispatch.promoted, dispatch.length) == (lane, promoted, length)
        assert abs(dispatch.wait_s - (self.now + 0.125 - arrival_s)) < 1e-6
        assert self.queue.commit(request_id, self.now, tokens) is None, "a request was dispatched twice"
        self.ended.add(request_id)

    def end_an_absence(self) -> None:
        """What an earlier step left out is dispatched at last, or comes back, perhaps as begun."""
        out = [request.facts.request_id for request in self.model.requests if request.out]
        if not out:
            return
        request_id, what = self.pick(out), self.pick(("dispatch", "back", "restart"))
        if what == "dispatch":
            self.dispatch(request_id, self.pick(TOKENS))
        else:
            self.queue.prepend(request_id, self.model.put_back(request_id, started=what == "restart"))
            with pytest.raises(ValueError, match="already"):
                self.queue.prepend(request_id, self.model.find(request_id).facts)

    def abort(self) -> None:
        ids = [request.facts.request_id for request in self.model.requests]
        request_id = self.pick([*ids, "unknown"])
        assert self.queue.remove(request_id) == (request_id if request_id in ids else None)
        assert self.queue.remove(request_id) is None
        self.model.remove(request_id)
        self.ended.add(request_id)

    def defer(self) -> None:
        deferred = self.pick((True, False))
        self.queue.set_deferred("unknown", deferred)
        if waiting := self.model.waiting():
            request_id = self.pick(waiting).facts.request_id
            self.model.defer(request_id, deferred)
            self.queue.set_deferred(request_id, deferred)

    def find_cached(self) -> None:
        cached, limit = self.pick(TOKENS), self.pick((1, 2, 3))
        longs = [r.facts for r in self.model.waiting() if self.model.lane(r) is Lane.LONG]
        for request_id, facts in (heads := self.queue.heads_to_refresh(limit)):
            assert facts in longs
            assert self.queue.refresh(request_id, cached) is self.model.refresh(request_id, cached)
            self.check()
        assert len(heads) <= limit
        present = [facts for facts in longs if facts.request_id not in self.aside]
        assert not heads or heads[0][1] == present[0]
        assert self.queue.refresh("unknown", cached) is False

    def switch(self) -> None:
        policy = self.policy(self.pick(tuple(PolicyName)))
        old, self.queue = self.queue, make_queue(policy)
        transfer(old, self.queue)
        self.model.switch(policy)
        self.aside.clear()
        old._check()
        assert len(old) == 0
        assert list(old) == []

    # What holds at any moment.

    def check(self) -> None:
        self.queue._check()
        waiting = self.model.waiting()
        assert len(self.queue) == len(waiting)
        assert [facts for _, facts in self.queue.entries()] == [request.facts for request in waiting]
        for request in self.model.requests:
            request_id = request.facts.request_id
            assert self.queue.get(request_id) == (None if request.out else request_id)
        self.check_gauges()
        self.check_counters()

    def check_gauges(self) -> None:
        waiting = self.model.waiting()
        lanes = {self.model.lane(request) for request in waiting}
        gauges = self.queue.gauges()
        assert lanes <= gauges.keys()
        for lane, gauge in gauges.items():
            members = [request for request in waiting if self.model.lane(request) is lane]
            assert gauge.requests == len(members)
            assert gauge.tokens == sum(map(self.model.length, members))
            assert gauge.oldest_arrival_s == (members[0].facts.arrival_s if members else None)

    def check_counters(self) -> None:
        counters, model = self.queue.counters, self.model
        assert counters.dispatches == model.dispatches
        assert (counters.promotions, counters.degradations) == (model.promotions, model.degradations)
        assert (counters.requeues, counters.bypasses) == (model.requeues, model.bypasses)

    def drain(self) -> None:
        """One request a step, until nobody is left."""
        for request in [request for request in self.model.requests if request.out]:
            self.dispatch(request.facts.request_id, 1)
        while order := self.model.begin_step(self.now, self.processed):
            self.queue.begin_step(self.now, self.processed)
            assert list(self.queue) == order
            self.dispatch(self.take(self.queue.pop()), 1)
            self.processed += 100
        self.queue._check()
        assert len(self.queue) == 0
        assert not self.queue
        assert self.ended - {"unknown"} == {f"r{number + 1}" for number in range(self.count)}
