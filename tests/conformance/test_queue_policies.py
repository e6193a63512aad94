"""One suite over all policies: random histories, played on the real queue and on its reference model.

Steps happen as engines make them: fix the order, perhaps let heads step aside, pop, put some back in any order,
leave some out, then commit what was scheduled in the order of the pops. Between steps requests arrive, are
preempted, aborted, deferred, found cached, and the policy is switched. `_check()` runs after every event, and
when a history ends the queue is drained: every request that was added has left exactly once.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from prefleet_runtime.contract import LengthKind, PolicyName, RuntimePolicy
from prefleet_runtime.queueing import MAX_BYPASSES, Lane, PolicyQueue, RequestFacts, make_queue, transfer

from tests.support.queue_model import Model

SHARES = st.sampled_from([0.25, 0.5, 1.0])
TOKENS = st.sampled_from([1, 8, 60, 100, 101, 400, 1000])
SECONDS = st.sampled_from([0.0, 0.25, 1.0, 3.0])


def policies(name: PolicyName) -> st.SearchStrategy[RuntimePolicy]:
    return st.builds(
        RuntimePolicy,
        generation=st.just(1),
        policy=st.just(name),
        threshold=st.sampled_from([50, 100]),
        long_max_wait_ms=st.sampled_from([0, 500, 2000]),
        aged_share=SHARES,
        length=st.sampled_from(LengthKind),
        trust_client_priority=st.booleans(),
    )


class Histories(RuleBasedStateMachine):
    """Requests are their own ids."""

    first_policy: PolicyName

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        policy = data.draw(policies(self.first_policy))
        self.queue: PolicyQueue[str] = make_queue(policy)
        self.model = Model(policy)
        self.now = 100.0
        self.count = 0
        self.ended: set[str] = set()

    @rule(
        prompt=TOKENS,
        cached=st.sampled_from([0, 0, 50, 400]),
        waited=st.sampled_from([0.0, 0.0, 0.5]),
        kind=st.sampled_from(["new", "new", "new", "deferred", "elevated", "favoured", "started", "preempted"]),
    )
    def arrive(self, prompt: int, cached: int, waited: float, kind: str) -> None:
        self.count += 1
        facts = RequestFacts(
            f"r{self.count}",
            self.now - waited,
            prompt,
            cached,
            priority=-1 if kind == "elevated" else 0,
            client_priority=-1 if kind == "favoured" else 0,
            started=kind in ("started", "preempted"),
            deferred=kind == "deferred",
        )
        if kind == "preempted":
            self.model.preempt(facts)
            self.queue.prepend(facts.request_id, facts)
        else:
            self.model.add(facts)
            self.queue.add(facts.request_id, facts)
            with pytest.raises(ValueError, match="already"):
                self.queue.add(facts.request_id, facts)

    @rule(data=st.data(), elapsed=SECONDS)
    def step(self, data: st.DataObject, elapsed: float) -> None:
        self.now += elapsed
        order = self.model.begin_step(self.now)
        self.queue.begin_step(self.now, self.count)
        self.check()
        assert list(self.queue) == order
        order = self.let_heads_step_aside(order, data.draw(st.sampled_from([0, 0, 1, 2])))
        popped = self.pop_and_put_back(data, order)
        for request_id in popped:
            if data.draw(st.integers(0, 3)):
                self.dispatch(request_id, data.draw(TOKENS))
                self.check()

    def let_heads_step_aside(self, order: list[str], times: int) -> list[str]:
        hidden: list[str] = []
        for _ in range(times):
            may = bool(order) and self.model.find(order[0]).bypasses < MAX_BYPASSES
            assert self.queue.bypass_head() is may
            if may:
                self.model.find(order[0]).bypasses += 1
                self.model.bypasses += 1
                hidden.append(order[0])
                order = self.model.order(self.now, frozenset(hidden))
        self.check()
        assert list(self.queue)[: len(order)] == order
        assert bool(self.queue) is bool(order)
        return order

    def pop_and_put_back(self, data: st.DataObject, order: list[str]) -> list[str]:
        """Whatever is put back, in whatever order, stands where it stood."""
        left = list(order)
        out: list[str] = []
        for put_back in data.draw(st.lists(st.booleans(), max_size=12)):
            if put_back and out:
                request_id = data.draw(st.sampled_from(out))
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
            self.check()
        return [request_id for request_id in order if request_id in out]

    def take(self, request_id: str) -> str:
        request = self.model.find(request_id)
        request.out, request.aged_when_popped = True, self.model.aged(request, self.now)
        return request_id

    def dispatch(self, request_id: str, tokens: int) -> None:
        request = self.model.find(request_id)
        length, arrival_s = self.model.length(request), request.facts.arrival_s
        lane, promoted = self.model.commit(request_id, tokens)
        dispatch = self.queue.commit(request_id, self.now + 0.125, tokens)
        assert dispatch is not None
        assert (dispatch.lane, dispatch.promoted, dispatch.length) == (lane, promoted, length)
        assert dispatch.wait_s == pytest.approx(self.now + 0.125 - arrival_s)
        assert self.queue.commit(request_id, self.now, tokens) is None, "a request was dispatched twice"
        self.ended.add(request_id)

    @rule(data=st.data(), what=st.sampled_from(["dispatch", "back", "restart"]))
    def end_an_absence(self, data: st.DataObject, what: str) -> None:
        """What an earlier step left out is dispatched at last, or comes back, perhaps as begun."""
        out = [request.facts.request_id for request in self.model.requests if request.out]
        if not out:
            return
        request_id = data.draw(st.sampled_from(out))
        if what == "dispatch":
            self.dispatch(request_id, data.draw(TOKENS))
        else:
            self.queue.prepend(request_id, self.model.put_back(request_id, started=what == "restart"))
            with pytest.raises(ValueError, match="already"):
                self.queue.prepend(request_id, self.model.find(request_id).facts)

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        ids = [request.facts.request_id for request in self.model.requests]
        request_id = data.draw(st.sampled_from([*ids, "unknown"]))
        assert self.queue.remove(request_id) == (request_id if request_id in ids else None)
        assert self.queue.remove(request_id) is None
        self.model.remove(request_id)
        self.ended.add(request_id)

    @rule(data=st.data(), deferred=st.booleans())
    def defer(self, data: st.DataObject, deferred: bool) -> None:
        self.queue.set_deferred("unknown", deferred)
        if self.model.waiting():
            request_id = data.draw(st.sampled_from(self.model.waiting())).facts.request_id
            self.model.defer(request_id, deferred)
            self.queue.set_deferred(request_id, deferred)

    @rule(cached=TOKENS, limit=st.integers(1, 3))
    def find_cached(self, cached: int, limit: int) -> None:
        longs = [r.facts for r in self.model.waiting() if self.model.lane(r) is Lane.LONG]
        for request_id, facts in (heads := self.queue.heads_to_refresh(limit)):
            assert facts in longs
            assert self.queue.refresh(request_id, cached) is self.model.refresh(request_id, cached)
            self.check()
        assert len(heads) <= limit
        assert not longs or not heads or heads[0][1] == longs[0]
        assert self.queue.refresh("unknown", cached) is False

    @rule(data=st.data(), name=st.sampled_from(PolicyName))
    def switch(self, data: st.DataObject, name: PolicyName) -> None:
        policy = data.draw(policies(name))
        old, self.queue = self.queue, make_queue(policy)
        transfer(old, self.queue)
        self.model.switch(policy)
        assert len(old) == 0
        assert list(old) == []

    @invariant()
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

    def teardown(self) -> None:
        if not hasattr(self, "queue"):
            return
        for request in [request for request in self.model.requests if request.out]:
            self.dispatch(request.facts.request_id, 1)
        for request_id in self.model.begin_step(self.now):
            self.queue.begin_step(self.now)
            self.take(popped := self.queue.pop())
            self.dispatch(popped, 1)
            assert request_id is not None
        self.queue._check()
        assert len(self.queue) == 0
        assert not self.queue
        assert self.ended - {"unknown"} == {f"r{number + 1}" for number in range(self.count)}


@pytest.mark.parametrize("policy", PolicyName)
def test_random_histories_agree_with_the_reference_model(policy: PolicyName) -> None:
    machine = type("Histories", (Histories,), {"first_policy": policy})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=150,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
