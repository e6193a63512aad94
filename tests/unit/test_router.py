"""The router: what it is told, what it may do, what its pods are taken for, and how it counts in Ready."""

from __future__ import annotations

from typing import Any

import pytest
from prefleet_operator.api import InvalidSpecError, PrefillPolicyStatus, Role, parse_spec
from prefleet_operator.app.gather import Cluster
from prefleet_operator.app.records import ChildRecord, PodRecord
from prefleet_operator.core.events import condition_events
from prefleet_operator.core.observed import PodTrouble, PodView, RouterView, Sample
from prefleet_operator.core.ready import judge_ready
from prefleet_operator.core.reasons import Reason
from prefleet_operator.core.status import Facts, Verdict, merge_conditions
from prefleet_operator.render import router_warnings
from prefleet_operator.render.router_command import retry_arguments, router_command

from tests.support.rendering import SGLANG, SIMULATOR, VLLM, VLLM_MIXED, option, render, template

ROUTER: dict[str, Any] = {"type": "VLLMRouter", "image": "example.com/router:1"}
NATIVE: dict[str, Any] = {"type": "SGLangRouter", "image": "lmsysorg/sgl-model-gateway:v0.3.2"}
NOW = 1_700_000_000.0


GROWS: dict[str, Any] = {"autoscaling": {"mixed": {"minReplicas": 1, "maxReplicas": 2}}}


def with_router(spec: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return spec | {"router": ROUTER | fields}


def arguments(spec: dict[str, Any], **fields: Any) -> list[str]:
    return list(router_command("chat", "serving", parse_spec(with_router(spec, **fields))).args)


def values(args: list[str], name: str) -> list[str]:
    """What follows an argument, up to the next one."""
    rest = args[args.index(name) + 1 :]
    return rest[: next((at for at, arg in enumerate(rest) if arg.startswith("--")), len(rest))]


def test_without_a_router_nothing_is_rendered_for_one() -> None:
    assert render(VLLM) == render(VLLM | {"router": {"type": "None"}})
    assert not any(name.endswith("-router") for name in render(VLLM))


def test_a_router_comes_last_as_a_deployment_and_a_service_on_the_engines_port() -> None:
    rendered = render(with_router(VLLM))
    assert list(rendered)[-2:] == ["Deployment/chat-router", "Service/chat-router"]
    service = rendered["Service/chat-router"]["spec"]
    labels = rendered["Deployment/chat-router"]["spec"]["template"]["metadata"]["labels"]
    assert service["selector"].items() <= labels.items()
    assert [port["port"] for port in service["ports"]] == [8000]


@pytest.mark.parametrize(("replicas", "protected"), [(1, False), (2, True)], ids=["a single one", "of two one stays"])
def test_a_drain_takes_the_pods_of_a_router_one_by_one(replicas: int, protected: bool) -> None:
    rendered = render(with_router(SIMULATOR, replicas=replicas))
    budgets = {name: item["spec"] for name, item in rendered.items() if name == "PodDisruptionBudget/chat-router"}
    assert bool(budgets) is protected
    labels = rendered["Deployment/chat-router"]["spec"]["template"]["metadata"]["labels"]
    for spec in budgets.values():
        assert spec["selector"]["matchLabels"].items() <= labels.items()
        assert (spec["maxUnavailable"], spec["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")


def test_the_roles_and_the_router_never_select_each_others_pods() -> None:
    rendered = render(with_router(VLLM))
    labels = {
        name: item["spec"]["template"]["metadata"]["labels"]
        for name, item in rendered.items()
        if item["kind"] == "Deployment"
    }
    for name, item in rendered.items():
        if item["kind"] == "Service":
            chosen = [pods for pods, has in labels.items() if item["spec"]["selector"].items() <= has.items()]
            assert chosen == [name.replace("Service", "Deployment")]


def test_a_routers_pod_is_no_engine_pod() -> None:
    labels = template(with_router(SIMULATOR), "router")["metadata"]["labels"]
    metadata = {"namespace": "serving", "name": "chat-router-1", "uid": "1", "resourceVersion": "1", "labels": labels}
    record = PodRecord.of({"metadata": metadata, "status": {}})
    assert record.role is None
    assert record.identity.fleet == "chat"


def test_a_change_of_the_router_touches_no_engine_pod() -> None:
    before, after = render(VLLM), render(with_router(VLLM, args=["--policy", "random"]))
    assert before == {name: item for name, item in after.items() if not name.endswith("-router")}


def test_by_default_it_sends_to_the_services_of_the_roles_and_has_no_rights() -> None:
    args = arguments(VLLM)
    assert values(args, "--prefill") == ["http://chat-prefill.serving.svc:8000"]
    assert values(args, "--decode") == ["http://chat-decode.serving.svc:8000"]
    assert {"--vllm-pd-disaggregation", "--disable-circuit-breaker"} <= set(args)
    assert "--service-discovery" not in args
    pod = template(with_router(VLLM), "router")["spec"]
    assert not pod["automountServiceAccountToken"]
    assert "serviceAccountName" not in pod


def test_a_mixed_fleet_is_one_address() -> None:
    args = arguments(VLLM_MIXED)
    assert values(args, "--worker-urls") == ["http://chat-mixed.serving.svc:8000"]
    assert "--vllm-pd-disaggregation" not in args


def test_with_an_account_it_watches_the_pods_of_its_own_namespace() -> None:
    args = arguments(VLLM, serviceAccountName="finder")
    assert values(args, "--prefill-selector") == ["prefleet.dev/fleet=chat", "prefleet.dev/role=prefill"]
    assert values(args, "--decode-selector") == ["prefleet.dev/fleet=chat", "prefleet.dev/role=decode"]
    assert values(args, "--service-discovery-namespace") == ["serving"]
    assert values(args, "--service-discovery-port") == ["8000"]
    assert not {"--prefill", "--decode", "--disable-circuit-breaker"} & set(args)
    pod = template(with_router(VLLM, serviceAccountName="finder"), "router")["spec"]
    assert (pod["automountServiceAccountToken"], pod["serviceAccountName"]) == (True, "finder")


def test_a_users_argument_wins_over_a_default_and_loses_to_the_operators() -> None:
    args = arguments(SIMULATOR, args=["--policy", "power_of_two"])
    assert option(args, "--policy") == "power_of_two"
    assert args.index("power_of_two") < args.index("--host")


@pytest.mark.parametrize(
    ("timeout_s", "tries", "pause_ms"),
    [
        pytest.param(5, 10, 500, id="nine pauses of half a second fit into five seconds"),
        pytest.param(600, 1091, 500, id="ten minutes"),
        pytest.param(0.6, 2, 500, id="one pause fits"),
        pytest.param(0.2, 2, 181, id="one shorter pause where none of half a second fits"),
        pytest.param(0.001, 2, 1, id="the least"),
    ],
)
def test_a_busy_retry_is_as_many_pauses_as_fit(timeout_s: float, tries: int, pause_ms: int) -> None:
    args = list(retry_arguments(timeout_s))
    assert (option(args, "--retry-max-retries"), option(args, "--retry-initial-backoff-ms")) == (
        str(tries),
        str(pause_ms),
    )
    assert option(args, "--retry-max-backoff-ms") == str(pause_ms)
    assert option(args, "--retry-backoff-multiplier") == "1.0"


@pytest.mark.parametrize("timeout", ["0s", "0ms", "0.0s"])
def test_a_busy_retry_of_zero_is_no_retry(timeout: str) -> None:
    args = arguments(SIMULATOR, busyRetryTimeout=timeout)
    assert "--disable-retries" in args
    assert "--retry-max-retries" not in args


def test_a_busy_retry_is_rendered_where_the_router_can_do_it() -> None:
    args = arguments(SIMULATOR, busyRetryTimeout="2s")
    assert "--disable-retries" not in args
    assert values(args, "--retry-max-retries") == ["4"]


def test_sglangs_router_in_front_of_one_kind_of_pod() -> None:
    spec = parse_spec(SGLANG | {"router": NATIVE})
    command = router_command("chat", "serving", spec)
    assert command.command == ("python3", "-m", "sglang_router.launch_router")
    args = list(command.args)
    assert values(args, "--worker-urls") == ["http://chat-mixed.serving.svc:8000"]
    assert {"--disable-retries", "--disable-circuit-breaker", "--shutdown-grace-period-secs"} <= set(args)
    assert not {"--vllm-pd-disaggregation", "--kv-connector", "--pd-disaggregation"} & set(args)


def test_sglangs_router_meets_prefill_and_decode_pods_one_by_one_and_can_retry_there() -> None:
    router = NATIVE | {"serviceAccountName": "finder", "busyRetryTimeout": "3s"}
    apart = {name: part for name, part in SGLANG.items() if name != "mixed"} | {"prefill": {}, "decode": {}}
    args = list(router_command("chat", "serving", parse_spec(apart | {"router": router})).args)
    assert "--pd-disaggregation" in args
    assert values(args, "--prefill-selector") == ["prefleet.dev/fleet=chat", "prefleet.dev/role=prefill"]
    assert values(args, "--retry-max-retries") == ["6"]


def test_the_pod_fits_the_restricted_profile_and_asks_for_no_accelerator() -> None:
    pod = template(with_router(VLLM), "router")["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert not container["securityContext"]["allowPrivilegeEscalation"]
    assert "resources" not in container


def test_running_answers_have_time_to_end() -> None:
    pod = template(with_router(VLLM), "router")["spec"]
    (container,) = pod["containers"]
    pre_stop = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] >= pre_stop + 300


def test_an_overlay_is_laid_over_the_routers_pod() -> None:
    overlay = {"spec": {"nodeSelector": {"pool": "cpu"}, "containers": [{"name": "router", "tty": True}]}}
    pod = template(with_router(VLLM, podTemplate=overlay), "router")["spec"]
    assert pod["nodeSelector"] == {"pool": "cpu"}
    assert pod["containers"][0]["tty"]


@pytest.mark.parametrize(
    ("overlay", "sentence"),
    [
        ({"metadata": {"labels": {"prefleet.dev/role": "mixed"}}}, "changes the labels"),
        ({"spec": {"containers": [{"name": "router", "image": "x"}]}}, "write spec.router.image instead"),
        ({"spec": {"containers": [{"name": "router", "args": []}]}}, "write spec.router.args instead"),
        ({"spec": {"serviceAccountName": "admin"}}, "write spec.router.serviceAccountName instead"),
        ({"status": {}}, "spec.router.podTemplate: remove status"),
        (
            {"spec": {"containers": [{"name": "proxy", "ports": [{"containerPort": 29000}]}]}},
            "spec.router.podTemplate: changes who listens at the router's ports",
        ),
    ],
    ids=["labels", "image", "args", "account", "no pod", "a port"],
)
def test_an_overlay_that_changes_what_the_operator_needs_is_refused(overlay: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidSpecError) as refusal:
        render(with_router(VLLM, podTemplate=overlay))
    assert sentence in str(refusal.value)


@pytest.mark.parametrize(
    ("spec", "warned"),
    [
        pytest.param(with_router(VLLM), True, id="by Services, before several pods"),
        pytest.param(with_router(SIMULATOR), False, id="before one pod"),
        pytest.param(with_router(SIMULATOR | GROWS), True, id="before one pod that may become several"),
        pytest.param(with_router(VLLM, serviceAccountName="finder"), False, id="by watching"),
        pytest.param(VLLM, False, id="no router"),
    ],
)
def test_a_router_that_cannot_balance_is_warned_of(spec: dict[str, Any], warned: bool) -> None:
    warnings = router_warnings(parse_spec(spec))
    assert bool(warnings) is warned
    assert all("write router.serviceAccountName" in warning for warning in warnings)


# Ready.


NO_IMAGE = PodTrouble(Reason.IMAGE_UNAVAILABLE, "pod chat-router-1: no image")


def judge(router: RouterView | None, ready: bool = True, **fields: Any) -> Verdict:
    pod = PodView("a", Role.MIXED, "10.0.0.1", ready, ready_since_s=NOW, reported_generation=Sample(1, NOW))
    spec = parse_spec(with_router(SIMULATOR, **fields))
    return judge_ready(Facts(spec, (pod,), generation=1, changed_at_s=int(NOW), now=NOW, router=router))


@pytest.mark.parametrize(
    ("verdict", "status", "reason", "words"),
    [
        pytest.param(judge(RouterView(1)), "True", "PodsReady", "1 mixed, 1 router", id="all are there"),
        pytest.param(judge(None), "False", "RouterNotReady", "0 of 1 pods", id="no Deployment yet"),
        pytest.param(judge(RouterView(1), replicas=2), "False", "RouterNotReady", "1 of 2", id="one of two"),
        pytest.param(
            judge(RouterView(0, "quota exceeded.")), "False", "RolloutStuck", "(quota exceeded)", id="it is stuck"
        ),
        pytest.param(
            judge(RouterView(0, "late", refused="quota exceeded.")), "False", "PodsRefused", "make more (quota",
            id="its pods are refused",
        ),
        pytest.param(
            judge(RouterView(0, trouble=NO_IMAGE)),
            "False", "ImageUnavailable", "0 of 1 pods ready (pod chat-router-1: no image)",
            id="its pod says what ails it",
        ),
        pytest.param(judge(RouterView(0), ready=False), "False", "PodsNotReady", "0 of 1 mixed", id="engines first"),
        pytest.param(
            judge(RouterView(1, trouble=NO_IMAGE)), "True", "ImageUnavailable", "no new router takes the place of",
            id="another behind the one that serves cannot start",
        ),
        pytest.param(
            judge(RouterView(1, "deadline exceeded.")), "False", "RolloutStuck", "(deadline exceeded); 1 of 1 pods",
            id="nor ever did",
        ),
        pytest.param(judge(RouterView(2)), "True", "PodsReady", "1 router", id="one more while it rolls"),
    ],
)  # fmt: skip
def test_the_router_counts_in_ready(verdict: Verdict, status: str, reason: str, words: str) -> None:
    assert (verdict.status, verdict.reason) == (status, reason)
    assert words in verdict.message


def in_turn(*turns: tuple[Verdict, int]) -> list[list[tuple[str, bool]]]:
    """The events of verdicts of Ready that follow each other, each with the generation of its spec."""
    status, told = PrefillPolicyStatus(), []
    for verdict, generation in turns:
        conditions = merge_conditions(status.conditions, [verdict], generation, NOW)
        after = PrefillPolicyStatus(conditions=conditions)
        told.append([(event.reason.value, event.warning) for event in condition_events(status, after)])
        status = after
    return told


STARTS, READY, GONE = judge(RouterView(1), ready=False), judge(RouterView(1)), judge(RouterView(0))


@pytest.mark.parametrize(
    ("turns", "last"),
    [
        pytest.param([(STARTS, 1), (GONE, 1)], [], id="ordinary while a fleet starts"),
        pytest.param([(GONE, 1)], [], id="and where the operator looks for the first time"),
        pytest.param([(READY, 1), (GONE, 1)], [("RouterNotReady", True)], id="an outage once it has served"),
        pytest.param([(READY, 1), (GONE, 1), (GONE, 1)], [], id="which is told once"),
        pytest.param([(READY, 1), (GONE, 1), (READY, 1)], [("PodsReady", False)], id="and its end"),
        pytest.param([(READY, 1), (GONE, 2)], [("RouterNotReady", False)], id="what a new spec brings must start"),
        pytest.param(
            [(STARTS, 1), (GONE, 1), (judge(RouterView(0, trouble=NO_IMAGE)), 1)], [("ImageUnavailable", True)],
            id="one that cannot start warns whenever that is known",
        ),
    ],
)  # fmt: skip
def test_the_events_of_a_router(turns: list[tuple[Verdict, int]], last: list[tuple[str, bool]]) -> None:
    assert in_turn(*turns)[-1] == last


@pytest.mark.parametrize(("role", "ready"), [("router", 2), ("mixed", 0)])
def test_only_the_routers_ready_pods_are_read_from_its_deployment(role: str, ready: int) -> None:
    labels = {"prefleet.dev/fleet": "chat", "prefleet.dev/role": role}
    metadata = {"namespace": "serving", "name": "x", "uid": "1", "resourceVersion": "1", "labels": labels}
    assert ChildRecord.of({"metadata": metadata, "status": {"readyReplicas": 2}}).ready_pods == ready


def test_a_routers_pod_in_trouble_is_found_for_its_fleet() -> None:
    item = render(with_router(SIMULATOR))["Deployment/chat-router"]
    item["metadata"] |= {"uid": "1", "resourceVersion": "1"}
    metadata = item["metadata"] | {"name": "chat-router-x"}
    waiting = {"reason": "ErrImageNeverPull", "message": "no such image"}
    status = {"containerStatuses": [{"name": "router", "image": "r:1", "state": {"waiting": waiting}}]}
    cluster = Cluster()
    cluster.children["Deployment"].put(ChildRecord.of(item))
    cluster.pods.put(PodRecord.of({"metadata": metadata, "status": status}))
    router = cluster.router("serving", "chat")
    assert router is not None
    assert router.wanted == 1
    assert router.trouble is not None
    assert router.trouble.told.startswith("pod chat-router-x: container router waits with ErrImageNeverPull")
