"""From a spec and what is seen of pods to what sizing asks for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from prefleet_operator.api import PrefillPolicySpec, Role, parse_document, parse_spec
from prefleet_operator.app.records import PodRecord
from prefleet_operator.cli.render import render_policy
from prefleet_operator.core.observed import Missing, PodTrouble, PodView, Sample
from prefleet_operator.core.reasons import Reason
from prefleet_operator.core.sizing.inputs import DEFAULT_STEP_TOKENS, rules_of, signals_of, start_time
from prefleet_operator.core.sizing.turn import with_replicas
from prefleet_operator.core.sizing.values import RoleLoad, RoleRules

from tests.support.loads import load_of
from tests.support.reconciling import POD

NOW = 1_700_000_000.0
P, D = Role.PREFILL, Role.DECODE


def make_spec(autoscaling: dict[str, Any], **given: Any) -> PrefillPolicySpec:
    base = {
        "model": {"source": {"hub": {"repo": "example/model"}}, "servedName": "model"},
        "engine": {"type": "VLLM", "version": "0.33.0"},
        "prefill": {"replicas": 2, "accelerator": {"resource": "nvidia.com/gpu", "count": 4}, "nodesPerReplica": 2},
        "decode": {"replicas": 3, "accelerator": {"resource": "nvidia.com/gpu", "count": 2}},
    }
    return parse_spec(base | given | {"autoscaling": autoscaling})


BOTH = {"prefill": {"minReplicas": 2, "maxReplicas": 8}, "decode": {"maxReplicas": 6}}


def test_what_the_spec_asks_becomes_the_rules():
    spec = make_spec(
        BOTH | {"ratio": {"min": 0.5, "max": 4}, "maxAccelerators": 40, "drainTime": "1m", "downWindow": "20m"},
        slo={"longQueueWait": "5s", "interTokenGap": "100ms", "shortTTFT": "300ms"},
        tuning={"waitQuantile": "P90", "cooldown": "30m"},
    )
    rules = rules_of(spec)
    assert rules.roles == {P: RoleRules(2, 8, accelerators=8), D: RoleRules(1, 6, accelerators=2)}
    assert (rules.wait_s, rules.quantile, rules.gap_s) == (5.0, 0.9, 0.1)
    assert (rules.drain_s, rules.ratio, rules.quota) == (60.0, (0.5, 4.0), 40)
    assert (rules.down_window_s, rules.cooldown_s) == (1200.0, 1800.0)


@pytest.mark.parametrize(
    ("most", "quota"),
    [
        pytest.param(40, 34, id="three decode pods of two accelerators that nobody sizes are off it"),
        pytest.param(14, 8, id="what is left is at least what sized roles ask for at their smallest"),
        pytest.param(None, None, id="no limit"),
    ],
)
def test_roles_that_are_not_sized_have_their_part_of_the_accelerators(most, quota):
    limit = {} if most is None else {"maxAccelerators": most}
    assert rules_of(make_spec({"prefill": {"maxReplicas": 8}} | limit)).quota == quota


def pod(ready_after_s: float | None, created_s: float = NOW - 7200, **given: Any) -> PodView:
    ready = ready_after_s is not None
    seen = PodView("p", P, "10.0.0.1", ready, created_s=created_s)
    return replace(seen, ready_since_s=created_s + ready_after_s if ready else None, **given)


@pytest.mark.parametrize(
    ("pods", "start_s"),
    [
        pytest.param([pod(60), pod(80), pod(300)], 80, id="the median"),
        pytest.param([pod(None)], None, id="none has become ready"),
        pytest.param([pod(60), pod(3000, restarted=True)], 60, id="one that was restarted tells nothing"),
        pytest.param([pod(60), pod(7000)], 60, id="nor one that must have turned ready once more"),
        pytest.param([pod(1200)], 1200, id="twenty minutes are a start"),
        pytest.param([pod(-5)], None, id="clocks that differ"),
    ],
)
def test_how_long_pods_take_to_be_ready(pods, start_s):
    reading = start_time(pods, NOW)
    assert isinstance(reading, Missing) if start_s is None else reading == Sample(start_s, NOW)


TROUBLED = PodTrouble(Reason.ENGINE_CRASHING, "its engine crashes")


def test_pods_are_counted_by_what_becomes_of_them():
    pods = [
        pod(60),
        pod(None),
        pod(None, trouble=TROUBLED),
        pod(None, terminating=True),
        pod(60, terminating=True),
        pod(60, role=D),
    ]
    signals = signals_of(P, 4, pods, load_of(1.0, NOW), NOW)
    assert (signals.replicas, signals.ready, signals.starting) == (4, 1, 1)
    assert signals.step_cost == load_of(1.0, NOW).step_cost


def test_of_a_source_that_says_nothing_all_is_missing_but_the_pods():
    signals = signals_of(P, 4, [pod(60)], RoleLoad(), NOW)
    assert isinstance(signals.arrivals, Missing)
    assert signals.step_tokens == DEFAULT_STEP_TOKENS
    assert signals.start_s == Sample(60, NOW)


@pytest.mark.parametrize(
    ("pods", "template"),
    [
        pytest.param([pod(60, template="a"), pod(60, template="a")], "a", id="all were made of one template"),
        pytest.param([pod(60, template="a"), pod(60, template="b")], None, id="a rollout is under way"),
        pytest.param([pod(60, template="a"), pod(None, template="b")], "a", id="the first new one does not serve yet"),
        pytest.param([pod(60, template="a", terminating=True), pod(60, template="b")], "b", id="the last old one goes"),
        pytest.param([pod(60), pod(60)], "", id="an earlier release made them without a digest"),
        pytest.param([pod(None, template="a")], None, id="none serves"),
    ],
)
def test_what_serves_is_known_by_the_template_of_its_pods(pods, template):
    assert signals_of(P, 2, pods, load_of(1.0, NOW), NOW).template == template


def test_a_spec_with_other_replicas_is_else_the_same():
    spec = make_spec(BOTH)
    counted = with_replicas(spec, {P: 7})
    assert {role: given.replicas for role, given in counted.roles().items()} == {P: 7, D: 3}
    assert with_replicas(counted, {P: 2}) == spec


@pytest.mark.parametrize(("replicas", "rendered"), [(1, 2), (5, 5), (20, 8)])
def test_without_a_cluster_a_role_has_the_replicas_of_the_spec_within_its_bounds(replicas, rendered):
    spec = make_spec(BOTH, prefill={"replicas": replicas}).to_resource()
    document = {
        "apiVersion": "prefleet.dev/v1alpha1",
        "kind": "PrefillPolicy",
        "metadata": {"name": "chat", "namespace": "ns"},
        "spec": spec,
    }
    counts = {
        each["metadata"]["name"]: each["spec"]["replicas"]
        for each in render_policy(parse_document(document), "runtime:1")
        if each["kind"] == "Deployment"
    }
    assert counts == {"chat-prefill": rendered, "chat-decode": 3}


@pytest.mark.parametrize("count", [0, 2])
def test_a_pod_tells_when_it_was_made_and_whether_it_was_restarted(count):
    made = POD | {
        "metadata": POD["metadata"] | {"creationTimestamp": "2026-01-01T00:00:00Z"},
        "status": POD["status"] | {"containerStatuses": [{"name": "engine", "restartCount": count}]},
    }
    record = PodRecord.of(made)
    assert (record.created_s, record.restarted) == (1767225600.0, bool(count))
