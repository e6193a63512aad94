"""podTemplate: merged as Kubernetes merges, and refused where it takes away what the operator needs."""

from typing import Any

import pytest
from prefleet_operator.api import InvalidSpecError, Role
from prefleet_operator.render.overlay import apply_overlay

from tests.support.bad_pod_templates import BAD_LEAVES, BadLeaf
from tests.support.pod_fields import FILE, pod_fields
from tests.support.rendering import SIMULATOR, VLLM, template

BASE = template(VLLM, "prefill")


def overlaid(overlay: dict[str, Any]) -> Any:
    return apply_overlay(BASE, overlay, Role.PREFILL)


def on_engine(**fields: Any) -> dict[str, Any]:
    """An overlay on the engine's container."""
    return {"spec": {"containers": [{"name": "engine", **fields}]}}


def test_an_empty_overlay_changes_nothing() -> None:
    assert overlaid({}) == BASE
    assert overlaid({"spec": {"containers": [{"name": "engine"}]}}) == BASE


def test_maps_merge_and_null_takes_a_key_away() -> None:
    merged = overlaid({"metadata": {"labels": {"team": "a"}}, "spec": {"securityContext": None}})
    assert merged["metadata"]["labels"] == BASE["metadata"]["labels"] | {"team": "a"}
    assert "securityContext" not in merged["spec"]


def test_a_known_item_merges_in_place_and_a_new_one_is_appended() -> None:
    merged = overlaid({"spec": {"containers": [{"name": "sidecar"}, {"name": "engine", "tty": True}]}})
    assert [container["name"] for container in merged["spec"]["containers"]] == ["engine", "sidecar"]
    assert merged["spec"]["containers"][0] == BASE["spec"]["containers"][0] | {"tty": True}


MERGED_LISTS = (
    ("env", {"name": "A", "value": "1"}),
    ("ports", {"containerPort": 9999}),
    ("volumeMounts", {"name": "cache", "mountPath": "/cache"}),
)


@pytest.mark.parametrize(("key", "item"), MERGED_LISTS, ids=[case[0] for case in MERGED_LISTS])
def test_lists_of_the_engine_merge_by_their_key(key: str, item: dict[str, Any]) -> None:
    merged = overlaid(on_engine(**{key: [item]}))["spec"]["containers"][0]
    assert merged[key] == [*BASE["spec"]["containers"][0][key], item]


FREE_PORTS = (
    ("another number", [{"containerPort": 8080, "name": "http"}]),
    ("another protocol", [{"containerPort": 8000, "protocol": "UDP"}]),
)


@pytest.mark.parametrize("ports", [case[1] for case in FREE_PORTS], ids=[case[0] for case in FREE_PORTS])
def test_another_container_may_listen_where_the_engine_does_not(ports: list[dict[str, Any]]) -> None:
    merged = overlaid({"spec": {"containers": [{"name": "proxy", "ports": ports}]}})
    assert merged["spec"]["containers"][1]["ports"] == ports


def test_a_container_that_ends_before_the_engine_starts_may_listen_where_it_will() -> None:
    before = {"name": "warm-up", "ports": [{"containerPort": 8000}]}
    assert before in overlaid({"spec": {"initContainers": [before]}})["spec"]["initContainers"]


def test_a_list_without_a_key_is_replaced() -> None:
    tolerations = [{"key": "gpu", "operator": "Exists"}]
    assert overlaid({"spec": {"tolerations": tolerations}})["spec"]["tolerations"] == tolerations


def test_probes_and_resources_are_the_users_to_change() -> None:
    merged = overlaid(on_engine(startupProbe={"failureThreshold": 1000}, resources={"requests": {"cpu": "8"}}))
    container = merged["spec"]["containers"][0]
    assert container["startupProbe"]["failureThreshold"] == 1000
    assert container["resources"]["requests"] == {"nvidia.com/gpu": "1", "cpu": "8"}


def test_merging_leaves_the_rendered_template_alone() -> None:
    before = str(BASE)
    overlaid(on_engine(env=[{"name": "A"}], securityContext={"capabilities": {"add": ["IPC_LOCK"]}}))
    assert str(BASE) == before


REFUSED: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("the fleet's label", {"metadata": {"labels": {"prefleet.dev/fleet": "other"}}}, "leave them out"),
    ("the image", on_engine(image="mine"), "write spec.engine.image instead"),
    ("the arguments", on_engine(args=["--port", "1"]), "write the role's args instead"),
    ("the command", on_engine(command=["sh"]), "write the role's args instead"),
    ("a variable of the operator", on_engine(env=[{"name": "PYTHONPATH", "value": "/x"}]), "the operator sets them"),
    ("the engine's port", on_engine(ports=[{"containerPort": 8000, "name": "web"}]), "other numbers and names"),
    ("a second port named http", on_engine(ports=[{"containerPort": 1, "name": "http"}]), "other numbers and names"),
    (
        "a port of the engine's for another container",
        {"spec": {"containers": [{"name": "proxy", "ports": [{"containerPort": 9400}]}]}},
        "listen elsewhere",
    ),
    (
        "a port of the engine's for a sidecar",
        {"spec": {"initContainers": [{"name": "p", "restartPolicy": "Always", "ports": [{"containerPort": 8000}]}]}},
        "listen elsewhere",
    ),
    (
        "the digest of the template",
        {"metadata": {"annotations": {"prefleet.dev/template": "mine"}}},
        "the operator writes it",
    ),
    (
        "a mount over the policy",
        on_engine(volumeMounts=[{"name": "x", "mountPath": "/etc/prefleet/policy/"}]),
        "mount elsewhere",
    ),
    ("a mount above the policy", on_engine(volumeMounts=[{"name": "x", "mountPath": "/etc"}]), "mount elsewhere"),
    (
        "the policy by subPath",
        on_engine(volumeMounts=[{"mountPath": "/etc/prefleet/policy", "subPath": "policy.json"}]),
        "mount elsewhere",
    ),
    ("the policy volume", {"spec": {"volumes": [{"name": "prefleet-policy", "emptyDir": {}}]}}, "other names"),
    (
        "the init container's image",
        {"spec": {"initContainers": [{"name": "prefleet-runtime", "image": "x"}]}},
        "write spec.runtime.image",
    ),
    ("a list for a map", {"spec": []}, "write a mapping"),
    ("a map for a list", {"spec": {"containers": {"name": "engine"}}}, "write a list"),
    ("an item without its key", {"spec": {"containers": [{"image": "x"}]}}, "write name in each item"),
    ("a directive", {"spec": {"$patch": "replace"}}, "write null to take a key away"),
    ("a whole pod object", {"kind": "Pod", "spec": {}}, "write metadata and spec, as in a pod"),
)


@pytest.mark.parametrize(("overlay", "fix"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_what_the_operator_needs_cannot_be_changed(overlay: dict[str, Any], fix: str) -> None:
    with pytest.raises(InvalidSpecError) as refusal:
        overlaid(overlay)
    assert str(refusal.value).startswith("spec.prefill.podTemplate")
    assert fix in str(refusal.value)


TAKEN_AWAY: tuple[tuple[dict[str, Any], str, str], ...] = (
    ({"metadata": None}, ".metadata", "the labels prefleet.dev/fleet and prefleet.dev/role"),
    ({"spec": None}, ".spec", "the engine's image"),
    ({"spec": {"containers": None}}, ".spec.containers", "the engine's image"),
    ({"spec": {"nodeSelector": None, "volumes": None}}, ".spec.volumes", "the volumes prefleet-policy"),
    ({"spec": {"initContainers": None}}, ".spec.initContainers", "what the init container prefleet-runtime does"),
    (on_engine(image=None), ".spec.containers[engine].image", "the engine's image"),
    (on_engine(ports=None), ".spec.containers[engine].ports", "a port that the operator uses"),
    (on_engine(volumeMounts=None), ".spec.containers[engine].volumeMounts", "the mounts at /etc/prefleet/policy"),
)


@pytest.mark.parametrize(("overlay", "field", "what"), TAKEN_AWAY, ids=[case[1] for case in TAKEN_AWAY])
def test_a_null_that_takes_away_what_the_operator_needs_is_named_as_the_fault(
    overlay: dict[str, Any], field: str, what: str
) -> None:
    with pytest.raises(InvalidSpecError) as refusal:
        overlaid(overlay)
    assert str(refusal.value).startswith(f"spec.prefill.podTemplate{field}: null takes away {what}")
    assert str(refusal.value).endswith(": leave it out, and write only what you change")


@pytest.mark.parametrize("bad", BAD_LEAVES, ids=lambda bad: f"{bad.field} {bad.value}")
def test_a_value_of_a_wrong_type_is_refused_with_the_field_and_the_fix(bad: BadLeaf) -> None:
    with pytest.raises(InvalidSpecError) as refusal:
        overlaid(bad.overlay())
    assert str(refusal.value).startswith(f"spec.prefill.podTemplate{bad.field}: {bad.sentence}")


def test_all_values_of_a_wrong_type_are_told_at_once() -> None:
    with pytest.raises(InvalidSpecError) as refusal:
        overlaid({"metadata": {"labels": {"a": 1}}, "spec": {"nodeSelector": [1]}})
    assert "podTemplate.metadata.labels.a: " in str(refusal.value)
    assert "podTemplate.spec.nodeSelector: " in str(refusal.value)


RIGHT: tuple[dict[str, Any], ...] = (
    on_engine(resources={"limits": {"cpu": 2, "memory": "8Gi"}}),
    on_engine(livenessProbe={"httpGet": {"path": "/", "port": "http"}}),
    on_engine(livenessProbe={"httpGet": {"path": "/", "port": 8000}}),
    {"spec": {"terminationGracePeriodSeconds": 30.0}},
    {"spec": {"aFieldOfANewerKubernetes": [{"env": 1}]}},
    {"metadata": {"labels": {"team": "7", "gone": None}}},
)


@pytest.mark.parametrize("overlay", RIGHT, ids=str)
def test_what_kubernetes_takes_or_may_take_is_left_to_it(overlay: dict[str, Any]) -> None:
    overlaid(overlay)


def test_a_number_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidSpecError, match="cpu: is NaN: write a quantity such as"):
        overlaid(on_engine(resources={"limits": {"cpu": float("nan")}}))


def test_the_types_of_a_pods_fields_are_those_of_kubernetes() -> None:
    assert FILE.read_text() == pod_fields()


SHAPELESS: tuple[dict[str, Any], ...] = (
    {"spec": {"initContainers": "x"}},
    on_engine(ports=[{"containerPort": [1]}]),
    on_engine(volumeMounts=[{"mountPath": 5}]),
    on_engine(env=[{"name": ["a"]}]),
)


@pytest.mark.parametrize("overlay", SHAPELESS, ids=str)
def test_what_is_no_pod_at_all_is_refused_with_a_sentence(overlay: dict[str, Any]) -> None:
    with pytest.raises(InvalidSpecError, match=r"^spec\.mixed\.podTemplate"):
        apply_overlay(template(SIMULATOR, "mixed"), overlay, Role.MIXED)
