"""Conditions: what they say, and that they change only when something has changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from prefleet_operator.api import (
    AutoscalingSpec,
    Condition,
    ConditionStatus,
    ConditionType,
    PrefillPolicyStatus,
    Role,
    RoleBounds,
)
from prefleet_operator.core.measured import FIRST_METRICS_S
from prefleet_operator.core.observed import Missing, PodTrouble, PodView, Reading, Sample, Stale
from prefleet_operator.core.policy_active import judge_policy_active
from prefleet_operator.core.ready import judge_ready, still_ready
from prefleet_operator.core.reasons import Reason
from prefleet_operator.core.scaling import judge_growth
from prefleet_operator.core.sizing.turn import with_replicas
from prefleet_operator.core.status import (
    PROPAGATION_S,
    Facts,
    Verdict,
    merge_conditions,
    refused,
    role_statuses,
    wording,
)

from tests.support.policies import make_spec

NOW = 1_700_000_000.0
LONG_AGO = NOW - 3600
TIME = "2023-11-14T22:13:20Z"
CURRENT, OLD, SILENT = Sample(5, NOW), Sample(4, NOW), Missing("pod b did not answer.")


def pod(
    name: str,
    reading: Reading[int],
    role: Role = Role.PREFILL,
    ready: bool = True,
    since_s: float = LONG_AGO,
    made_s: float = LONG_AGO - 60,
) -> PodView:
    ip = "10.0.0.1"
    return PodView(name, role, ip, ready, ready_since_s=since_s, reported_generation=reading, created_s=made_s)


def new_pod(name: str, reading: Reading[int] = SILENT, since_s: float = NOW - 5) -> PodView:
    """A pod that the fleet has just grown by."""
    return pod(name, reading, since_s=since_s, made_s=NOW - 120)


def facts(
    *pods: PodView,
    changed_at_s: float | None = LONG_AGO,
    stuck: dict[Role, str] | None = None,
    denied: dict[Role, str] | None = None,
) -> Facts:
    changed = None if changed_at_s is None else int(changed_at_s)
    return Facts(
        make_spec(), pods, generation=5, changed_at_s=changed, now=NOW, stuck=stuck or {}, refused=denied or {}
    )


def troubled(name: str, reason: Reason = Reason.UNSCHEDULABLE, told: str = "no node takes it", **given: Any) -> PodView:
    return replace(pod(name, SILENT, ready=False, **given), trouble=PodTrouble(reason, told))


ACTIVE = merge_conditions([], [judge_policy_active(facts(pod("a", CURRENT)))], 1, NOW)


@pytest.mark.parametrize(
    ("given", "status", "reason"),
    [
        pytest.param(facts(), "Unknown", "NoReadyPods", id="no pod proves nothing"),
        pytest.param(facts(pod("a", CURRENT, ready=False)), "Unknown", "NoReadyPods", id="nor does one not ready"),
        pytest.param(facts(pod("a", CURRENT), pod("b", CURRENT)), "True", "GenerationReported", id="all report it"),
        pytest.param(
            facts(pod("a", CURRENT), pod("b", OLD), changed_at_s=NOW - PROPAGATION_S + 1),
            "Unknown", "Propagating", id="a change has two minutes to arrive",
        ),
        pytest.param(
            facts(pod("a", CURRENT), pod("b", OLD), changed_at_s=NOW - PROPAGATION_S),
            "False", "GenerationNotReported", id="after two minutes an old report is False",
        ),
        pytest.param(
            facts(pod("a", CURRENT), pod("b", SILENT)), "Unknown", "GenerationUnknown", id="silence is never False"
        ),
        pytest.param(
            facts(pod("a", CURRENT), pod("b", SILENT, since_s=NOW - 5)),
            "Unknown", "Propagating", id="a pod that has just turned ready has two minutes",
        ),
        pytest.param(
            facts(pod("a", CURRENT), new_pod("b")), "Unknown", "Propagating", id="all must have proved it once"
        ),
        pytest.param(
            facts(pod("a", Stale(5, NOW - 500))), "Unknown", "GenerationUnknown", id="a stale report proves nothing"
        ),
        pytest.param(
            facts(pod("a", OLD), pod("b", SILENT)), "False", "GenerationNotReported", id="one wrong report is enough"
        ),
        pytest.param(
            facts(pod("a", OLD), changed_at_s=None), "False", "GenerationNotReported", id="an unknown change is old"
        ),
    ],
)  # fmt: skip
def test_policy_active(given: Facts, status: str, reason: str) -> None:
    verdict = judge_policy_active(given)
    assert (verdict.status.value, verdict.reason.value) == (status, reason)


@pytest.mark.parametrize(
    ("given", "status", "reason"),
    [
        pytest.param(
            facts(pod("a", CURRENT), new_pod("b")),
            "True", "GenerationReported", id="a new pod need not have been read while others prove the setting",
        ),
        pytest.param(
            facts(pod("a", CURRENT), new_pod("b", since_s=NOW - FIRST_METRICS_S)),
            "Unknown", "Propagating", id="but is missed after a minute",
        ),
        pytest.param(facts(new_pod("b")), "Unknown", "Propagating", id="a new one alone proves nothing"),
        pytest.param(
            facts(pod("a", CURRENT), new_pod("b"), changed_at_s=NOW - 10),
            "Unknown", "Propagating", id="nor need one that was made before the change run what was changed",
        ),
        pytest.param(
            facts(pod("a", CURRENT), new_pod("b"), pod("c", SILENT)),
            "Unknown", "GenerationUnknown", id="an old one that is silent counts beside it",
        ),
        pytest.param(
            facts(pod("a", CURRENT), new_pod("b", OLD)),
            "Unknown", "Propagating", id="and a new one that reports another generation counts at once",
        ),
    ],
)  # fmt: skip
def test_a_fleet_that_is_active_stays_so_while_it_grows(given: Facts, status: str, reason: str) -> None:
    verdict = judge_policy_active(given, ACTIVE)
    assert (verdict.status.value, verdict.reason.value) == (status, reason)


def test_policy_active_tells_how_many_were_not_read_yet() -> None:
    verdict = judge_policy_active(facts(pod("a", CURRENT), new_pod("b")), ACTIVE)
    assert verdict.message == (
        "All 1 ready pods that have been read report generation 5; 1 made with it was not read yet."
    )


def test_policy_active_counts_and_names_the_pods() -> None:
    verdict = judge_policy_active(facts(pod("a", CURRENT), *(pod(f"b{n}", OLD) for n in range(5))))
    assert verdict.message == (
        "1 of 6 ready pods report generation 5; b0, b1, b2 and 2 more still report another: "
        "look in their logs for a refused policy file."
    )


def ready_pods(prefill: int, decode: int) -> tuple[PodView, ...]:
    prefills = tuple(pod(f"p{n}", CURRENT) for n in range(prefill))
    return prefills + tuple(pod(f"d{n}", CURRENT, Role.DECODE) for n in range(decode))


@pytest.mark.parametrize(
    ("given", "status", "reason", "words"),
    [
        pytest.param(facts(*ready_pods(2, 1)), "True", "PodsReady", "2 prefill, 1 decode", id="all are ready"),
        pytest.param(facts(*ready_pods(3, 1)), "True", "PodsReady", "2 prefill", id="a surplus pod is no fault"),
        pytest.param(facts(*ready_pods(1, 1)), "False", "PodsNotReady", "1 of 2 prefill", id="one is missing"),
        pytest.param(
            facts(*ready_pods(1, 1), stuck={Role.PREFILL: "quota exceeded."}),
            "False", "RolloutStuck", "(quota exceeded); 1 of 2 pods serve", id="a rollout that is stuck says why",
        ),
        pytest.param(
            facts(*ready_pods(1, 1), troubled("p7")),
            "False", "Unschedulable", "Ready pods: 1 of 2 prefill; pod p7: no node takes it.", id="a pod's own fault",
        ),
        pytest.param(
            facts(*ready_pods(1, 1), troubled("p7"), stuck={Role.PREFILL: "timed out"}),
            "False", "Unschedulable", "pod p7: no node takes it", id="which says more than the rollout that it stops",
        ),
        pytest.param(
            facts(*ready_pods(1, 0), troubled("p7"), troubled("d8", role=Role.DECODE)),
            "False", "Unschedulable",
            "Ready pods: 1 of 2 prefill, 0 of 1 decode; pod p7: no node takes it (and 1 more pod in trouble).",
            id="several faults",
        ),
        pytest.param(
            facts(*ready_pods(1, 1), denied={Role.PREFILL: "exceeded quota."}),
            "False", "PodsRefused", "1 of 2 prefill; the cluster refuses to make more: exceeded quota.", id="a quota",
        ),
        pytest.param(
            facts(*ready_pods(2, 1), denied={Role.PREFILL: "exceeded quota."}),
            "True", "PodsReady", "2 prefill", id="a quota that stands in nobody's way",
        ),
        pytest.param(
            facts(*ready_pods(2, 1), troubled("p7", Reason.IMAGE_UNAVAILABLE, "it waits")),
            "True", "ImageUnavailable", "but none takes the place of an old one: pod p7: it waits.",
            id="a rollout that cannot go on while all serve",
        ),
        pytest.param(
            facts(*ready_pods(2, 1), replace(troubled("p7"), terminating=True)),
            "True", "PodsReady", "2 prefill", id="a pod that goes is no fault",
        ),
    ],
)  # fmt: skip
def test_ready(given: Facts, status: str, reason: str, words: str) -> None:
    verdict = judge_ready(given)
    assert (verdict.status.value, verdict.reason.value) == (status, reason)
    assert words in verdict.message


@pytest.mark.parametrize(
    ("pods", "status", "reason", "words"),
    [
        pytest.param(ready_pods(5, 1), "True", "PodsReady", "5 prefill", id="all that it is to have"),
        pytest.param(
            ready_pods(2, 1),
            "True",
            "Scaling",
            "Ready pods: 2 of 5 prefill, which is minReplicas or more",
            id="growing",
        ),
        pytest.param(ready_pods(1, 1), "False", "PodsNotReady", "1 of 5 prefill", id="fewer than it must have"),
        pytest.param(ready_pods(5, 0), "False", "PodsNotReady", "0 of 1 decode", id="a role that is not sized"),
        pytest.param(
            (*ready_pods(2, 1), troubled("p7")),
            "True",
            "Scaling",
            "Ready pods: 2 of 5 prefill, which is minReplicas or more; pod p7: no node takes it.",
            id="it cannot grow, which CapacityLimited tells",
        ),
        pytest.param(
            (*ready_pods(2, 1), troubled("p7", Reason.ENGINE_CRASHING, "it ends")),
            "True",
            "EngineCrashing",
            "which is minReplicas or more; pod p7: it ends.",
            id="what ails a pod itself is told here",
        ),
        pytest.param(
            (*ready_pods(1, 1), troubled("p7")),
            "False",
            "Unschedulable",
            "no node takes it",
            id="nor have what it must",
        ),
    ],
)
def test_a_role_that_is_sized_is_ready_while_it_grows(
    pods: tuple[PodView, ...], status: str, reason: str, words: str
) -> None:
    verdict = judge_ready(growing(*pods))
    assert (verdict.status.value, verdict.reason.value) == (status, reason)
    assert words in verdict.message


def growing(*pods: PodView, **given: Any) -> Facts:
    """A fleet that is to have 5 prefill pods, and must have 2."""
    bounds = RoleBounds(min_replicas=2, max_replicas=8)
    sized = make_spec().model_copy(update={"autoscaling": AutoscalingSpec(prefill=bounds)})
    return replace(facts(*pods, **given), spec=with_replicas(sized, {Role.PREFILL: 5}))


def test_a_growing_role_whose_rollout_is_stuck_is_not_ready() -> None:
    verdict = judge_ready(growing(*ready_pods(2, 1), stuck={Role.PREFILL: "timed out"}))
    assert (verdict.status.value, verdict.reason) == ("False", Reason.ROLLOUT_STUCK)


@pytest.mark.parametrize(
    ("given", "reason", "why"),
    [
        pytest.param(
            growing(*ready_pods(2, 1), troubled("p7")), "Unschedulable", "pod p7: no node takes it", id="node"
        ),
        pytest.param(
            growing(*ready_pods(2, 1), denied={Role.PREFILL: "exceeded quota."}),
            "PodsRefused",
            "the cluster refuses to make more (exceeded quota)",
            id="a quota",
        ),
    ],
)
def test_a_role_that_cannot_grow_is_limited_in_its_capacity_though_ready(given: Facts, reason: str, why: str) -> None:
    verdict = judge_growth(given)
    assert verdict is not None
    assert (verdict.type, verdict.status.value, verdict.reason.value) == (
        ConditionType.CAPACITY_LIMITED,
        "True",
        reason,
    )
    assert verdict.message == (
        f"prefill cannot grow from 2 to 5 pods: {why}; "
        "make room for them, or lower spec.autoscaling.prefill.maxReplicas."
    )
    assert judge_ready(given).reason is Reason.SCALING


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(growing(*ready_pods(2, 1)), id="pods that load"),
        pytest.param(growing(*ready_pods(5, 1), troubled("p7")), id="one too many"),
        pytest.param(growing(*ready_pods(1, 1), troubled("p7")), id="fewer than it must have, which Ready tells"),
        pytest.param(growing(*ready_pods(2, 1), troubled("p7", Reason.ENGINE_CRASHING)), id="a fault of the pod"),
        pytest.param(growing(*ready_pods(2, 0), troubled("d7", role=Role.DECODE)), id="a role that is not sized"),
    ],
)
def test_what_is_no_want_of_room_limits_no_capacity(given: Facts) -> None:
    assert judge_growth(given) is None


def test_roles_show_the_lowest_generation_that_is_reported() -> None:
    prefill, decode = role_statuses(facts(pod("a", CURRENT), pod("b", OLD), pod("c", SILENT)))
    assert (prefill.desired, prefill.ready, prefill.active, prefill.reported_generation) == (2, 3, 1, 4)
    assert (decode.ready, decode.reported_generation) == (0, None)


def verdict(status: ConditionStatus, message: str, **given: Any) -> Verdict:
    return Verdict(ConditionType.READY, status, given.pop("reason", Reason.PODS_NOT_READY), message, **given)


def merged(*verdicts: Verdict) -> list[Condition]:
    conditions: list[Condition] = []
    for turn, each in enumerate(verdicts):
        conditions = merge_conditions(conditions, [each], turn, NOW + 60 * turn)
    return conditions


def test_the_transition_time_moves_with_the_status_alone() -> None:
    false, true = ConditionStatus.FALSE, ConditionStatus.TRUE
    (kept,) = merged(verdict(false, "1 of 3"), verdict(false, "2 of 3", reason=Reason.ROLLOUT_STUCK))
    assert (kept.last_transition_time, kept.message, kept.observed_generation) == (TIME, "2 of 3", 1)
    (moved,) = merged(verdict(false, "2 of 3"), verdict(true, "3 of 3"))
    assert moved.last_transition_time == "2023-11-14T22:14:20Z"


def test_numbers_that_are_noise_do_not_change_a_message() -> None:
    false = ConditionStatus.FALSE
    (kept,) = merged(verdict(false, "12.5 s old", noisy=True), verdict(false, "17 s old", noisy=True))
    assert kept.message == "12.5 s old"
    (other,) = merged(verdict(false, "12 s old", noisy=True), verdict(false, "17 s late", noisy=True))
    assert other.message == "17 s late"


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        pytest.param(Reason.INVALID_SPEC, "False", id="a wrong spec is not accepted"),
        pytest.param(Reason.APPLY_REFUSED, "False", id="nor is one that the API server refuses"),
        pytest.param(Reason.RECONCILE_FAILED, "Unknown", id="the operator's own fault says nothing of the spec"),
    ],
)
def test_a_refusal_leaves_the_rest_of_the_status(reason: Reason, status: str) -> None:
    ready = merged(verdict(ConditionStatus.TRUE, "3 of 3"))
    before = PrefillPolicyStatus(conditions=ready, observed_generation=1)
    said = refused(before, 2, reason, "spec.prefill: write it.", NOW)
    assert [(c.type.value, c.status.value) for c in said.conditions] == [("Accepted", status), ("Ready", "True")]
    assert said.observed_generation == 2


def test_of_a_refused_fleet_the_pods_are_counted_on() -> None:
    """Against what the last accepted spec asked for; generations, which nobody reads, stay as they were known."""
    before = PrefillPolicyStatus(
        conditions=merged(verdict(ConditionStatus.TRUE, "3 of 3", reason=Reason.PODS_READY)),
        roles=role_statuses(facts(*ready_pods(2, 1))),
    )
    after = still_ready(before, [pod("a", SILENT), troubled("b")], {}, {}, NOW + 60)
    (ready,) = after.conditions
    assert (ready.status.value, ready.reason, ready.observed_generation) == ("False", "Unschedulable", 0)
    assert [(role.desired, role.ready, role.active, role.reported_generation) for role in after.roles] == [
        (2, 1, 1, 5),
        (1, 0, 0, 5),
    ]
    assert after.pods is not None
    assert (after.pods.prefill, after.pods.decode) == ("1/2", "0/1")


def test_a_fleet_that_never_was_accepted_has_no_pods_to_count() -> None:
    before = refused(PrefillPolicyStatus(), 1, Reason.INVALID_SPEC, "spec.prefill: write it.", NOW)
    assert still_ready(before, [], {}, {}, NOW) == before
    assert before.reason == "InvalidSpec"


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        pytest.param("12.5 s old", "17 s old", True, id="numbers"),
        pytest.param("pod a-7d4b9c6f5d-x2z4w ends", "pod a-6c8d5f7b9-bcdfg ends", True, id="what pods are called"),
        pytest.param("pod chat-prefill ends", "pod chat-decode ends", False, id="words"),
        pytest.param("model long-context-chats", "model long-context-words", False, id="words with hyphens"),
    ],
)
def test_wording(first: str, second: str, same: bool) -> None:
    assert (wording(first) == wording(second)) is same
