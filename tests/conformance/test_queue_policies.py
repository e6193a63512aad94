"""One suite over all policies: random histories, played on the real queue and on its reference model.

`History` says what is compared. Most histories are short and come from a seeded generator: many, fast, the same
in every run. Fewer are chosen by hypothesis, which makes a failing one as small as it can. A few are deep.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prefleet_runtime.contract import PolicyName

from tests.support.queue_history import History

SHORT_HISTORIES = 2600
"""For each policy: over 10,000 in all."""


@pytest.mark.parametrize("policy", PolicyName)
def test_short_histories_agree_with_the_reference_model(policy: PolicyName) -> None:
    for seed in range(SHORT_HISTORIES):
        rng = random.Random(seed)
        History(rng.choice, policy).play(rng.randrange(5, 30))


@pytest.mark.parametrize("policy", PolicyName)
def test_deep_histories_agree_with_the_reference_model(policy: PolicyName) -> None:
    for seed in range(10):
        History(random.Random(seed).choice, policy).play(120)


@pytest.mark.parametrize("policy", PolicyName)
@settings(max_examples=150, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), events=st.integers(0, 25))
def test_searched_histories_agree_with_the_reference_model(
    policy: PolicyName, data: st.DataObject, events: int
) -> None:
    History(lambda options: data.draw(st.sampled_from(options)), policy).play(events)
