"""The pods of the documentation that a policy attaches: each fits the policy beside it, and the runtime takes what it
is told. KServe's own definitions cannot be had here: its example is judged as the pod that KServe copies it into."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefleet_operator.api import PolicyDocument, parse_document
from prefleet_operator.render import live_config_map_name
from prefleet_runtime.contract import POLICY_FILE, RuntimeSettings

from tests.support.rendering import VLLM_MIXED, option
from tests.support.rendering import engine as rendered_engine

SAMPLES = Path(__file__).parents[2] / "docs" / "samples"

Json = dict[str, Any]


def deployment() -> tuple[PolicyDocument, Json, Json]:
    found = yaml.safe_load((SAMPLES / "pods" / "vllm-deployment.yaml").read_text())
    template = found["spec"]["template"]
    return policy("attach-vllm-deployment"), template["spec"], template["metadata"]["labels"]


def kserve() -> tuple[PolicyDocument, Json, Json]:
    """KServe gives the pods of a predictor these two labels."""
    found = yaml.safe_load((SAMPLES / "pods" / "kserve-inferenceservice.yaml").read_text())
    labels = {"serving.kserve.io/inferenceservice": found["metadata"]["name"], "component": "predictor"}
    return policy("attach-kserve"), found["spec"]["predictor"], labels


def policy(name: str) -> PolicyDocument:
    return parse_document(yaml.safe_load((SAMPLES / f"{name}.yaml").read_text()))


@pytest.mark.parametrize("example", [deployment(), kserve()], ids=["deployment", "kserve"])
def test_the_pods_of_an_example_fit_its_policy(example: tuple[PolicyDocument, Json, Json]) -> None:
    document, pod, labels = example
    rendered = rendered_engine(VLLM_MIXED, "mixed")
    (attached,) = document.spec.attached_roles().values()
    (engine,), (installer,) = pod["containers"], pod["initContainers"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: mount for mount in engine["volumeMounts"]}
    settings = RuntimeSettings.parse(json.loads(option(engine["args"], "--additional-config"))["prefleet"])

    assert attached.pod_selector.match_labels.items() <= labels.items()
    assert settings.exporter_port == attached.metrics_port
    folder, _, file = settings.policy_file.rpartition("/")
    mounted = volumes[mounts[folder]["name"]]["configMap"]
    assert (mounted["name"], file) == (live_config_map_name(document.name, document.spec), POLICY_FILE)
    assert not [mount for mount in engine["volumeMounts"] if "subPath" in mount]

    *_, target = installer["command"]
    (copied,) = installer["volumeMounts"]
    assert (copied["mountPath"], copied["name"]) == (target, mounts[target]["name"])
    assert {"name": "PYTHONPATH", "value": target} in engine["env"]
    assert f"v{document.spec.engine.version}" in engine["image"]
    assert f"--served-model-name={document.spec.model.served_name}" in engine["args"]
    assert option(engine["args"], "--scheduler-cls") == option(rendered["args"], "--scheduler-cls")
