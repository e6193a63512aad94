"""The node agent's small decisions: back-off, addresses, probes' streaks, variables, Services, phases, log tails."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support.node_agent.addresses import Addresses, AddressesClaimedError, claim
from tests.support.node_agent.backoff import BackOff
from tests.support.node_agent.environment import service_variables
from tests.support.node_agent.fields import UnknownFieldError, field_value
from tests.support.node_agent.logs import tail_position
from tests.support.node_agent.pods import unsupported
from tests.support.node_agent.probes import Streak
from tests.support.node_agent.services import Address, wanted_ports
from tests.support.node_agent.settings import AgentSettings
from tests.support.node_agent.status import PodFacts, phase, pod_status, running, terminated, waiting

Json = dict[str, Any]

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)


# --- back-off


def test_back_off_doubles_from_an_immediate_restart_up_to_the_cap() -> None:
    back_off, ended_at, waits = BackOff(), 0.0, []
    for _ in range(8):
        waits.append(back_off.wait_s(ended_at, ended_at))
        restarted_at = ended_at + waits[-1]
        back_off = back_off.after_restart(ended_at, restarted_at)
        ended_at = restarted_at + 1
    assert waits == [0, 10, 20, 40, 80, 160, 300, 300]


def test_time_spent_since_the_end_counts() -> None:
    back_off = BackOff().after_restart(0, 0)
    assert back_off.wait_s(ended_at=1, now=4) == 7


def test_a_long_run_begins_the_back_off_anew() -> None:
    back_off = BackOff().after_restart(0, 0).after_restart(1, 11)
    ended_at = 11 + 601
    assert back_off.wait_s(ended_at, ended_at) == 0
    assert back_off.after_restart(ended_at, ended_at).wait_s(ended_at + 1, ended_at + 1) == 10


# --- addresses


def test_addresses_are_given_round_robin() -> None:
    addresses = Addresses("127.40")
    first = addresses.take()
    addresses.release(first)
    assert (addresses.node, first, addresses.take()) == ("127.40.0.1", "127.40.0.2", "127.40.0.3")


def test_a_pod_met_again_keeps_its_address() -> None:
    addresses = Addresses("127.40")
    assert addresses.take("127.40.3.3") == "127.40.3.3"
    assert addresses.take("127.40.3.3") == "127.40.0.2", "an address in use is not given twice"
    assert addresses.take("10.0.0.9") == "127.40.0.3", "an address of another range is not taken over"


def test_a_base_outside_loopback_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the address base is 10\.1; give two octets within 127\.0\.0\.0/8"):
        Addresses("10.1")


def test_a_claimed_range_is_passed_over() -> None:
    bases = ["127.196", "127.197", "127.198"]
    first, holder = claim(bases)
    with holder:
        second, other = claim(bases)
        other.close()
        assert first != second
        with pytest.raises(AddressesClaimedError, match=rf"in use for all of {first}; stop the node agent"):
            claim([first])


# --- probes


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        pytest.param([True], None, id="one success of two is no verdict"),
        pytest.param([True, True], True, id="two successes in a row are ready"),
        pytest.param([False, False], None, id="two failures of three are no verdict"),
        pytest.param([False, False, False], False, id="three failures in a row are a failure"),
        pytest.param([False, False, True, False], None, id="a success in between starts the count anew"),
    ],
)
def test_a_probe_counts_outcomes_in_a_row(outcomes: list[bool], verdict: bool | None) -> None:
    streak = Streak.of({"successThreshold": 2, "failureThreshold": 3})
    for outcome in outcomes:
        streak = streak.after(outcome)
    assert streak.verdict is verdict


# --- variables


def test_a_service_is_announced_as_a_kubelet_announces_it() -> None:
    service = {
        "metadata": {"name": "chat-prefill"},
        "spec": {"clusterIP": "127.96.0.9", "ports": [{"name": "http", "port": 8000, "protocol": "TCP"}]},
    }
    assert service_variables(service) == {
        "CHAT_PREFILL_SERVICE_HOST": "127.96.0.9",
        "CHAT_PREFILL_SERVICE_PORT": "8000",
        "CHAT_PREFILL_SERVICE_PORT_HTTP": "8000",
        "CHAT_PREFILL_PORT": "tcp://127.96.0.9:8000",
        "CHAT_PREFILL_PORT_8000_TCP": "tcp://127.96.0.9:8000",
        "CHAT_PREFILL_PORT_8000_TCP_PROTO": "tcp",
        "CHAT_PREFILL_PORT_8000_TCP_PORT": "8000",
        "CHAT_PREFILL_PORT_8000_TCP_ADDR": "127.96.0.9",
    }


POD: Json = {
    "metadata": {
        "name": "p",
        "namespace": "n",
        "uid": "u",
        "labels": {"app": "web", "a.b/c": 'say "x"'},
        "annotations": {"generation": "7"},
    },
    "spec": {"nodeName": "node-a"},
    "status": {"podIP": "127.32.0.2", "podIPs": [{"ip": "127.32.0.2"}], "hostIP": "127.32.0.1"},
}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "p"),
        ("metadata.labels['app']", "web"),
        ("metadata.labels['missing']", ""),
        ("metadata.annotations['generation']", "7"),
        ("metadata.labels", 'a.b/c="say \\"x\\""\napp="web"'),
        ("spec.nodeName", "node-a"),
        ("spec.serviceAccountName", "default"),
        ("status.podIP", "127.32.0.2"),
        ("status.podIPs", "127.32.0.2"),
    ],
)
def test_the_downward_api_answers(path: str, value: str) -> None:
    assert field_value(POD, path) == value


def test_an_unknown_field_path_is_named_with_those_that_are_known() -> None:
    with pytest.raises(UnknownFieldError, match=r"the field path is status\.phase; known are metadata\.name"):
        field_value(POD, "status.phase")


# --- images


def test_the_first_glob_that_matches_names_the_image_folder() -> None:
    settings = AgentSettings(
        kubeconfig=Path("k"),
        node_name="n",
        workdir=Path("w"),
        images=(("*/vllm*:*", Path("/a")), ("*/vllm-openai:*", Path("/b"))),
        default_image=Path("/default"),
    )
    assert settings.image_folder("docker.io/vllm-openai:v1") == Path("/a")
    assert settings.image_folder("busybox") == Path("/default")


# --- what is refused


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        pytest.param(
            {"initContainers": [{"name": "side", "restartPolicy": "Always"}], "containers": []},
            "init container side is a native sidecar, which this node does not run",
            id="a native sidecar",
        ),
        pytest.param(
            {"containers": [{"name": "c", "lifecycle": {"postStart": {"exec": {}}}}]},
            "container c has a postStart hook, which this node does not run",
            id="a postStart hook",
        ),
        pytest.param(
            {"containers": [{"name": "c", "livenessProbe": {"grpc": {"port": 1}}}]},
            "container c has a livenessProbe that is none of exec, httpGet, tcpSocket, sleep",
            id="a gRPC probe",
        ),
        pytest.param({"containers": [{"name": "c"}]}, None, id="a plain pod is run"),
    ],
)
def test_what_the_node_cannot_run_is_said_in_a_sentence(spec: Json, problem: str | None) -> None:
    assert unsupported(spec) == problem


# --- status


def _container(state: Json, *, ready: bool = False, ran: bool = False) -> Json:
    return {"name": "c", "state": state, "lastState": terminated(1, "", "") if ran else {}, "ready": ready}


RUNNING = _container(running("t"), ready=True)
DONE = _container(terminated(0, "t", "t"))
FAILED = _container(terminated(3, "t", "t"))
CRASHED = _container(waiting("CrashLoopBackOff"), ran=True)
CREATING = _container(waiting("ContainerCreating"))


def _facts(*main: Json, policy: str = "Always", **others: Any) -> PodFacts:
    settings: dict[str, Any] = {"initialized": True, "init": [], **others}
    return PodFacts(
        main=main,
        restart_policy=policy,
        address="127.32.0.2",
        node_address="127.32.0.1",
        started_at="t",
        **settings,
    )


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        pytest.param(_facts(CREATING), "Pending", id="a container that never ran keeps the pod pending"),
        pytest.param(_facts(CREATING, initialized=False), "Pending", id="so do init containers"),
        pytest.param(_facts(RUNNING, RUNNING), "Running", id="all containers run"),
        pytest.param(_facts(RUNNING, CRASHED), "Running", id="a crashed container does not fail the pod"),
        pytest.param(_facts(DONE, policy="Always"), "Running", id="Always starts even what succeeded"),
        pytest.param(_facts(DONE, policy="Never"), "Succeeded", id="what ended well is not started again"),
        pytest.param(_facts(DONE, FAILED, policy="Never"), "Failed", id="one failure fails the pod"),
        pytest.param(_facts(FAILED, policy="OnFailure"), "Running", id="OnFailure starts a failure again"),
        pytest.param(_facts(CREATING, init_failed=True, initialized=False), "Failed", id="init failed for good"),
        pytest.param(_facts(DONE, ending=True), "Succeeded", id="a pod that ends is over when it ended"),
        pytest.param(_facts(CREATING, ending=True), "Failed", id="a pod deleted before it ran has failed"),
    ],
)
def test_the_phase_is_a_kubelets(facts: PodFacts, expected: str) -> None:
    assert phase(facts) == expected


def test_conditions_of_others_and_times_of_what_did_not_change_stay() -> None:
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "before"}
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "before"}
    status = pod_status(_facts(RUNNING), {"conditions": [scheduled, ready]}, NOW)
    conditions = {item["type"]: item for item in status["conditions"]}
    assert conditions["PodScheduled"] == scheduled
    assert conditions["Ready"]["lastTransitionTime"] == "before"
    assert conditions["ContainersReady"]["lastTransitionTime"] == "2026-01-31T12:00:00Z"


def test_a_signal_is_shown_beside_the_exit_code() -> None:
    assert terminated(137, "a", "b")["terminated"] == {
        "exitCode": 137,
        "signal": 9,
        "reason": "Error",
        "startedAt": "a",
        "finishedAt": "b",
    }


# --- Services


def _pod(name: str, *, ready: bool = True, deleted: bool = False, app: str = "web") -> Json:
    metadata: Json = {"name": name, "namespace": "n", "labels": {"app": app}}
    if deleted:
        metadata["deletionTimestamp"] = "t"
    return {
        "metadata": metadata,
        "spec": {"containers": [{"ports": [{"name": "http", "containerPort": 8000}]}]},
        "status": {
            "podIP": f"127.32.0.{name}",
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }


def _service(**spec: Any) -> Json:
    ports = [{"port": 80, "targetPort": "http"}]
    defaults: Json = {"clusterIP": "127.96.0.9", "selector": {"app": "web"}, "ports": ports}
    return {"metadata": {"name": "s", "namespace": "n"}, "spec": defaults | spec}


@pytest.mark.parametrize(
    ("service", "pods", "wanted"),
    [
        pytest.param(
            _service(),
            [_pod("3"), _pod("2")],
            {("127.96.0.9", 80): [("127.32.0.2", 8000), ("127.32.0.3", 8000)]},
            id="a port by name leads to all ready pods",
        ),
        pytest.param(
            _service(ports=[{"port": 80, "targetPort": 9}, {"port": 81}]),
            [_pod("2")],
            {("127.96.0.9", 80): [("127.32.0.2", 9)], ("127.96.0.9", 81): [("127.32.0.2", 81)]},
            id="a port by number, and one that is the same",
        ),
        pytest.param(_service(), [_pod("2", ready=False)], {}, id="a port without ready pods is not listened on"),
        pytest.param(_service(), [_pod("2", deleted=True)], {}, id="a pod on its way out gets no more connections"),
        pytest.param(_service(), [_pod("2", app="other")], {}, id="other labels are not selected"),
        pytest.param(_service(clusterIP="None"), [_pod("2")], {}, id="a headless Service has no address"),
        pytest.param(_service(selector=None), [_pod("2")], {}, id="without a selector nothing is chosen"),
        pytest.param(
            _service(publishNotReadyAddresses=True),
            [_pod("2", ready=False)],
            {("127.96.0.9", 80): [("127.32.0.2", 8000)]},
            id="unready pods are reached where the Service says so",
        ),
    ],
)
def test_services_lead_to_their_ready_pods(
    service: Json, pods: list[Json], wanted: dict[Address, list[Address]]
) -> None:
    assert wanted_ports([service], pods) == wanted


# --- logs


@pytest.mark.parametrize(
    ("content", "lines", "tail"),
    [
        ("a\nb\nc\n", 2, "b\nc\n"),
        ("a\nb\nc", 1, "c"),
        ("a\nb\n", 5, "a\nb\n"),
        ("a\nb\n", 0, ""),
        ("", 3, ""),
    ],
)
def test_the_tail_of_a_log(content: str, lines: int, tail: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(content)
    assert content[tail_position(log, lines) :] == tail
