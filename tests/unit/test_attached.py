"""Pods that somebody else makes: what is said of them, whose they are, and what a policy for them becomes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from prefleet_operator.api import (
    Condition,
    ConditionStatus,
    ConditionType,
    InvalidSpecError,
    PrefillPolicyStatus,
    Role,
    parse_spec,
)
from prefleet_operator.api.attach import attachable_engine_rules
from prefleet_operator.core.attached import (
    OVERLAP_HOLD_S,
    Claim,
    find_overlap,
    hold_refusal,
    judge_attached_ready,
)
from prefleet_operator.core.observed import FleetMetrics, Missing, PodTrouble, PodView, Reading, Sample
from prefleet_operator.core.plan import make_plan
from prefleet_operator.core.policy_active import judge_policy_active
from prefleet_operator.core.reasons import Reason
from prefleet_operator.core.situation import LivePolicy, Situation
from prefleet_operator.core.status import ATTACHED_PROPAGATION_S, Facts, role_statuses
from prefleet_operator.render import KEPT_ANNOTATION, InstallationDefaults, PolicyObject, render_fleet
from prefleet_runtime.contract import RuntimePolicy

from tests.support.policies import make_attached_spec, make_spec

NOW = 1_700_000_000.0
LONG_AGO = NOW - 3600
PINNED: dict[str, Any] = {"threshold": 900, "longMaxWait": "4s"}
CURRENT, OLD = Sample(5, NOW), Sample(4, NOW)
CRASH = PodTrouble(Reason.ENGINE_CRASHING, "container vllm ends (exit code 1)")
BOTH: dict[str, Any] = {
    "prefill": {"podSelector": {"matchLabels": {"role": "prefill"}}},
    "decode": {"podSelector": {"matchLabels": {"role": "decode"}}},
}


def pod(name: str, role: Role = Role.MIXED, reading: Reading[int] = CURRENT, **given: Any) -> PodView:
    defaults: dict[str, Any] = {"ip": "10.0.0.1", "ready": True, "ready_since_s": LONG_AGO}
    return PodView(name=name, role=role, reported_generation=reading, **(defaults | given))


def facts(*pods: PodView, attach: dict[str, Any] | None = None, changed_at_s: float = LONG_AGO) -> Facts:
    return Facts(make_attached_spec(attach), pods, generation=5, changed_at_s=int(changed_at_s), now=NOW)


@pytest.mark.parametrize(
    ("given", "status", "reason", "message"),
    [
        pytest.param(
            facts(), "False", "NoPodsFound",
            "No pod of the namespace matches spec.attach.mixed.podSelector (app=chat): "
            "compare it with kubectl get pods --show-labels.",
            id="no pod matched is said with the selector",
        ),
        pytest.param(
            facts(pod("a", ready=False), pod("b", ready=False)), "False", "PodsNotReady",
            "Ready pods of those found: 0 of 2 mixed; each attached role needs one that is ready.",
            id="pods that do not serve are no fleet",
        ),
        pytest.param(
            facts(pod("a"), pod("b", ready=False)), "True", "PodsReady",
            "Ready pods of those found: 1 of 2 mixed.",
            id="one pod that serves is enough, and the numbers are said",
        ),
        pytest.param(
            facts(pod("a", ready=False, trouble=CRASH)), "False", "EngineCrashing",
            "Ready pods of those found: 0 of 1 mixed; each attached role needs one that is ready; "
            "pod a: container vllm ends (exit code 1).",
            id="a pod that crashes is said to",
        ),
        pytest.param(
            facts(pod("a"), pod("b", ready=False, trouble=CRASH)), "True", "EngineCrashing",
            "Ready pods of those found: 1 of 2 mixed; pod b: container vllm ends (exit code 1).",
            id="also beside one that serves",
        ),
        pytest.param(
            facts(pod("a", Role.PREFILL), attach=BOTH), "False", "NoPodsFound",
            "No pod of the namespace matches spec.attach.decode.podSelector (role=decode): "
            "compare it with kubectl get pods --show-labels.",
            id="every attached role needs its own",
        ),
        pytest.param(
            facts(pod("a", terminating=True)), "False", "NoPodsFound",
            "No pod of the namespace matches spec.attach.mixed.podSelector (app=chat): "
            "compare it with kubectl get pods --show-labels.",
            id="a pod that is going is not found",
        ),
    ],
)  # fmt: skip
def test_ready(given: Facts, status: str, reason: str, message: str) -> None:
    verdict = judge_attached_ready(given)
    assert (verdict.status.value, verdict.reason.value, verdict.message) == (status, reason, message)


def test_the_pods_found_are_the_pods_wanted() -> None:
    (status,) = role_statuses(facts(pod("a"), pod("b", ready=False), pod("c", reading=OLD), pod("d", terminating=True)))
    assert (status.desired, status.ready, status.active, status.reported_generation) == (3, 2, 1, 4)


@pytest.mark.parametrize(
    ("age_s", "status", "words"),
    [
        pytest.param(0, "Unknown", "within 90 seconds, and the others have 180 to report it", id="at once"),
        pytest.param(ATTACHED_PROPAGATION_S - 1, "Unknown", "within 90 seconds", id="at the end of the grace"),
        pytest.param(
            ATTACHED_PROPAGATION_S, "False", "see that they mount the policy ConfigMap, without subPath", id="after it"
        ),
    ],
)
def test_attached_pods_have_the_kubelets_time_to_follow(age_s: float, status: str, words: str) -> None:
    verdict = judge_policy_active(facts(pod("a"), pod("b", reading=OLD), changed_at_s=NOW - age_s))
    assert verdict.status.value == status
    assert verdict.message.startswith("1 of 2 ready pods report generation 5; ")
    assert words in verdict.message


def situation(**given: Any) -> Situation:
    defaults: dict[str, Any] = {
        "spec": make_attached_spec(scheduling=PINNED),
        "generation": 1,
        "status": PrefillPolicyStatus(),
        "live": None,
        "metrics": FleetMetrics(),
    }
    return Situation(**(defaults | given))


def test_attached_pods_are_never_annotated_and_pods_of_the_operators_are() -> None:
    behind = {"pods": (pod("a"),), "pod_generations": {"a": None}}
    assert make_plan(situation(**behind), NOW).annotate == ()
    mine = situation(**behind, spec=make_spec(scheduling=PINNED))
    assert make_plan(replace(mine, pods=(pod("a", Role.PREFILL),)), NOW).annotate == ("a",)


def test_another_config_map_gets_the_next_generation_and_is_not_called_deleted() -> None:
    plan = make_plan(situation(), NOW)
    moved = make_plan(situation(status=plan.status, generation=2), NOW + 60)
    assert moved.policy.generation == 2
    assert moved.status.history[-1].reason == "SpecChanged"
    gone = make_plan(situation(status=plan.status), NOW + 60)
    assert gone.status.history[-1].reason == "DriftCorrected"


def test_a_config_map_that_was_kept_is_adopted_by_a_policy_of_that_name() -> None:
    kept = make_plan(situation(), NOW).policy.model_copy(update={"generation": 7})
    plan = make_plan(situation(live=LivePolicy(kept, 7)), NOW)
    assert plan.policy == kept
    assert plan.status.history[-1].reason == "Adopted"


def rendered(spec: Any, **given: Any) -> list[dict[str, Any]]:
    policy = PolicyObject(name="chat", namespace="ns", uid="1")
    return render_fleet(policy, spec, RuntimePolicy(generation=3), InstallationDefaults("runtime:1"), **given)


def test_an_attached_fleet_is_one_config_map_that_nobody_owns_and_that_says_so() -> None:
    (config_map,) = rendered(make_attached_spec())
    assert (config_map["kind"], config_map["metadata"]["name"]) == ("ConfigMap", "chat-policy")
    assert "ownerReferences" not in config_map["metadata"]
    assert "PrefillPolicy chat" in config_map["metadata"]["annotations"][KEPT_ANNOTATION]


def test_the_config_map_has_the_name_that_the_pods_mount() -> None:
    (config_map,) = rendered(make_attached_spec({**BOTH, "policyConfigMap": "queue.v2"}))
    assert config_map["metadata"]["name"] == "queue.v2"


def test_a_config_map_that_pods_of_others_may_mount_gets_no_owner_later_on() -> None:
    owned = rendered(make_spec())
    assert all(each["metadata"].get("ownerReferences") for each in owned)
    kept = rendered(make_spec(), kept=True)
    assert [each["kind"] for each in kept if not each["metadata"].get("ownerReferences")] == ["ConfigMap"]


@pytest.mark.parametrize(
    ("selector", "text"),
    [
        pytest.param({"matchLabels": {"b": "2", "a": "1"}}, "a=1,b=2", id="labels in their order"),
        pytest.param({"matchLabels": {"a": ""}}, "a=", id="an empty value is a value"),
        pytest.param(
            {
                "matchExpressions": [
                    {"key": "a", "operator": "In", "values": ["x", "y"]},
                    {"key": "b", "operator": "NotIn", "values": ["z"]},
                    {"key": "c/d", "operator": "Exists"},
                    {"key": "e", "operator": "DoesNotExist"},
                ]
            },
            "a in (x,y),b notin (z),c/d,!e",
            id="every operator",
        ),
    ],
)
def test_selectors_are_written_as_the_api_server_takes_them(selector: dict[str, Any], text: str) -> None:
    spec = make_attached_spec({"mixed": {"podSelector": selector}})
    assert spec.attached_roles()[Role.MIXED].pod_selector.text == text


def test_an_engine_that_reads_no_file_is_kept_out() -> None:
    assert attachable_engine_rules(["VLLM", "Simulator"]) == ()
    (rule,) = attachable_engine_rules(["VLLM", "Simulator", "LightLLM"])
    spec = make_attached_spec()
    assert rule.holds(spec)
    assert rule.holds(make_spec())
    other = spec.model_copy(update={"engine": spec.engine.model_copy(update={"type": "LightLLM"})})
    assert not rule.holds(other)
    assert rule.message.startswith("attach works with engine types VLLM and Simulator")


def test_prefill_pods_may_be_attached_without_decode_pods() -> None:
    spec = make_attached_spec({"prefill": BOTH["prefill"]})
    assert spec.role_names() == (Role.PREFILL,)


def test_an_attached_fleet_of_vllm_says_its_release_and_needs_no_model() -> None:
    attach = {"mixed": {"podSelector": {"matchLabels": {"app": "chat"}}}}
    base: dict[str, Any] = {"model": {"servedName": "m"}, "engine": {"type": "VLLM"}, "attach": attach}
    with pytest.raises(InvalidSpecError, match="write version"):
        parse_spec(base)
    assert parse_spec(base | {"engine": {"type": "VLLM", "version": "0.32.0"}}).attach is not None


OLDER, NEWER = "2026-11-30T06:00:00Z", "2026-11-30T07:00:00Z"


def attaching(policy: str, created: str, *pods: str, twice: str | None = None, **made: str) -> Claim:
    return Claim(policy, created, True, dict.fromkeys(pods, "") | made, twice)


@pytest.mark.parametrize(
    ("mine", "others", "words"),
    [
        pytest.param(attaching("b", NEWER, "p1"), [attaching("a", OLDER, "p2")], None, id="apart is well"),
        pytest.param(
            attaching("b", NEWER, "p1", "p2", "p3"), [attaching("a", OLDER, "p3", "p2")],
            "Pod p2 is matched by spec.attach of the older policy a too, which keeps it: "
            "change one of the selectors so that no pod matches both.",
            id="the newer one is refused, with the policy and the first pod",
        ),
        pytest.param(attaching("a", OLDER, "p1"), [attaching("b", NEWER, "p1")], None, id="the older one goes on"),
        pytest.param(
            attaching("b", OLDER, "p1"), [attaching("a", OLDER, "p1")], "older policy a", id="of one age, by name"
        ),
        pytest.param(attaching("a", OLDER, "p1"), [attaching("b", OLDER, "p1")], None, id="and only one of them"),
        pytest.param(
            attaching("b", NEWER, p1="made"), [Claim("made", OLDER)],
            "Pod p1 is matched by spec.attach, but the operator made it for policy made: "
            "narrow the podSelector to pods that others make.",
            id="pods of the operator's making are not attached",
        ),
        pytest.param(
            attaching("b", NEWER, p1="gone"), [], "made it for policy gone", id="nor those of a policy that is gone"
        ),
        pytest.param(
            attaching("b", NEWER, p1="b"), [], "made it for this policy", id="nor those of the policy itself"
        ),
        pytest.param(
            attaching("a", OLDER, p1="made"), [Claim("made", NEWER)], None,
            id="a younger policy's pods are no reason against an older one",
        ),
        pytest.param(
            Claim("made", NEWER), [attaching("a", OLDER, p1="made")],
            "Pod p1 of this policy is matched by spec.attach of the older policy a too: narrow the podSelector of a.",
            id="but against the younger policy",
        ),
        pytest.param(
            Claim("made", OLDER), [attaching("a", NEWER, p1="made")], None, id="who made its pods first goes on"
        ),
        pytest.param(
            attaching("a", OLDER, "p1", twice="p1"), [],
            "Pod p1 is matched by the selectors of two roles in spec.attach: make them exclude each other.",
            id="one pod has one role",
        ),
    ],
)  # fmt: skip
def test_of_two_policies_with_one_pod_the_newer_is_refused(mine: Claim, others: list[Claim], words: str | None) -> None:
    found = find_overlap(mine, others)
    assert found is None if words is None else words in str(found)


def accepted(status: str, reason: str, generation: int = 2) -> Condition:
    return Condition(
        type=ConditionType.ACCEPTED,
        status=ConditionStatus(status),
        reason=reason,
        message="as it was said",
        last_transition_time="2023-11-14T22:13:20Z",
        observed_generation=generation,
    )


@pytest.mark.parametrize(
    ("found", "standing", "seen_ago_s", "refusal"),
    [
        pytest.param("Pod x", None, 0, "Pod x", id="an overlap refuses"),
        pytest.param(None, accepted("False", "PodsOverlap"), 1, "as it was said", id="and outlasts a rolled pod"),
        pytest.param(None, accepted("False", "PodsOverlap"), OVERLAP_HOLD_S, None, id="but not for ever"),
        pytest.param(None, accepted("False", "PodsOverlap", 1), 1, None, id="nor over a change of the spec"),
        pytest.param(None, accepted("False", "InvalidSpec"), 1, None, id="another refusal is none of its"),
        pytest.param(None, accepted("True", "Accepted"), 1, None, id="what is accepted stays so"),
        pytest.param(None, None, 0, None, id="nor is a new policy refused without a cause"),
    ],
)
def test_a_refusal_outlasts_its_cause(
    found: str | None, standing: Condition | None, seen_ago_s: float, refusal: str | None
) -> None:
    assert hold_refusal(found, standing, 2, NOW - seen_ago_s, NOW) == refusal


def test_silence_of_attached_pods_says_why() -> None:
    silent = Missing("pod a shows no prefleet_policy_generation at http://10.0.0.1:9400/metrics")
    verdict = judge_policy_active(facts(pod("a", reading=silent)))
    assert (verdict.status.value, verdict.reason.value) == ("Unknown", "GenerationUnknown")
    assert "shows no prefleet_policy_generation" in verdict.message
