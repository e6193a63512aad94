"""Decode steps between prefills: the published formula, its closed form, and the bound on starvation."""

from __future__ import annotations

from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prefleet_runtime.contract import RuntimePolicy, TptStage
from prefleet_runtime.stage import Arbiter, Prefill, StepView
from prefleet_runtime.stage.tpt import MAX_DECODE_STEPS


def stage(p: float, d: float, m: int) -> TptStage:
    return TptStage(type="tpt", prefill_ms_per_request=p, decode_ms_per_request=d, max_batch=m)


def arbiter(p: float, d: float, m: int) -> Arbiter:
    return Arbiter(RuntimePolicy(generation=1, stage=stage(p, d, m)))


def pending(decodes: int) -> StepView:
    return StepView(budget=512, decodes=decodes, decode_tokens=decodes, shorts=[Prefill(4000)])


def decode_steps(rule: Arbiter, decodes: int) -> int:
    """Steps of decode alone before the next that carries prefill."""
    for count in range(10 * MAX_DECODE_STEPS):
        if not rule.plan(pending(decodes)).decode_only:
            return count
    raise AssertionError("prefill starves")


@settings(deadline=None)
@given(p=st.integers(1, 400), d=st.integers(1, 40), m=st.integers(2, 64), data=st.data())
def test_the_formula_has_its_closed_form(p: int, d: int, m: int, data: st.DataObject) -> None:
    r = data.draw(st.integers(0, m - 1))
    expected = max(0, ceil(p * r / (d * (m - r))) - 1)
    rule = arbiter(p, d, m)
    runs = [decode_steps(rule, r) for _ in range(3)]
    assert runs == [min(expected, MAX_DECODE_STEPS)] * 3
    assert rule.counters.decode_only == sum(runs)
    assert rule.counters.starved == (3 if expected > MAX_DECODE_STEPS else 0)


@pytest.mark.parametrize(
    ("d", "decodes"),
    [
        pytest.param(5, 32, id="a full node never earns a credit"),
        pytest.param(0, 3, id="nor do decodes that cost none"),
    ],
)
def test_starvation_is_bounded_and_counted(d: float, decodes: int) -> None:
    rule = arbiter(100, d, 32)
    assert decode_steps(rule, decodes) == MAX_DECODE_STEPS
    assert rule.counters.starved == 1


def test_more_decodes_than_the_maximum_count_as_a_full_node() -> None:
    assert decode_steps(arbiter(100, 5, 8), 20) == MAX_DECODE_STEPS


def test_nothing_moves_while_no_prefill_is_pending() -> None:
    rule = arbiter(100, 5, 32)
    for _ in range(3 * MAX_DECODE_STEPS):
        assert not rule.plan(StepView(budget=512, decodes=8, decode_tokens=8)).decode_only
    assert (rule.counters.decode_only, rule.counters.starved) == (0, 0)
    assert decode_steps(rule, 8) == max(0, ceil(100 * 8 / (5 * 24)) - 1)


def test_where_nothing_decodes_prefill_goes_at_once() -> None:
    assert decode_steps(arbiter(100, 5, 32), 0) == 0
