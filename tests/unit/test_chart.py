"""The Helm chart: what it renders, and that wrong values are refused before anything reaches a cluster."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefleet_operator.app.config import parse_config

from tests.support.binaries import ensure
from tests.support.installation import CHART, Helm, HelmFailed

Json = dict[str, Any]


@pytest.fixture(scope="module")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return Helm(ensure(["helm"])["helm"], tmp_path_factory.mktemp("helm"))


def render(helm: Helm, **values: Any) -> dict[str, list[Json]]:
    """The chart's objects by kind."""
    text = helm("template", "prefleet", str(CHART), "--namespace", "prefleet-system", values=values)
    objects: dict[str, list[Json]] = {}
    for document in yaml.safe_load_all(text):
        if document:
            objects.setdefault(document["kind"], []).append(document)
    return objects


def test_the_chart_passes_lint(helm: Helm) -> None:
    assert "0 chart(s) failed" in helm("lint", str(CHART), "--strict")


def test_the_mounted_configuration_is_one_that_the_operator_reads(helm: Helm) -> None:
    source = {"name": "cluster", "type": "Prometheus", "url": "http://prometheus:9090", "caFile": "/ca.crt"}
    (config_map,) = render(helm, metricsSources=[source], watchNamespaces=["a"])["ConfigMap"]
    config = parse_config(yaml.safe_load(config_map["data"]["config.yaml"]))
    assert config.namespaces == ("a",)
    assert config.metrics_sources[0].ca_file == "/ca.crt"
    assert config.runtime_image == "prefleet/prefleet:0.1.0"


def test_the_operator_pod_meets_the_restricted_standard(helm: Helm) -> None:
    (deployment,) = render(helm)["Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_a_changed_configuration_changes_the_pod_template(helm: Helm) -> None:
    def template(**values: Any) -> Json:
        (deployment,) = render(helm, **values)["Deployment"]
        return dict(deployment["spec"]["template"]["metadata"]["annotations"])

    assert template() == template(replicas=2)
    assert template() != template(loopInterval="7s")


def test_the_crd_is_a_template_that_helm_keeps(helm: Helm) -> None:
    (crd,) = render(helm)["CustomResourceDefinition"]
    assert crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_the_operators_pods_are_not_taken_for_a_fleets(helm: Helm) -> None:
    (deployment,) = render(helm)["Deployment"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert "prefleet.dev/fleet" not in labels
    assert labels.get("app.kubernetes.io/managed-by") != "prefleet"


@pytest.mark.parametrize(
    ("values", "kinds"),
    [
        pytest.param({}, {"ClusterRole": 1, "ClusterRoleBinding": 1, "Role": 1, "RoleBinding": 1}, id="all namespaces"),
        pytest.param({"watchNamespaces": ["a", "b"]}, {"Role": 3, "RoleBinding": 3}, id="a role in each namespace"),
        pytest.param({"rbac": {"create": False}}, {}, id="rights that somebody else gives"),
    ],
)
def test_rights_are_no_wider_than_what_is_served(helm: Helm, values: Json, kinds: Mapping[str, int]) -> None:
    objects = render(helm, **values)
    found = {kind: len(objects[kind]) for kind in objects if "Role" in kind}
    assert found == kinds
    rules = [rule for kind in found for role in objects[kind] for rule in role.get("rules", ())]
    assert "*" not in json.dumps(rules)
    assert not [rule for rule in rules if "secrets" in rule["resources"]]


@pytest.mark.parametrize(
    ("values", "where"),
    [
        pytest.param({"watchNamespace": ["a"]}, "watchNamespace", id="a misspelt value"),
        pytest.param({"replicas": -1}, "/replicas", id="negative replicas"),
        pytest.param({"loopInterval": "5"}, "/loopInterval", id="an interval without a unit"),
        pytest.param({"watchNamespaces": ["A b"]}, "/watchNamespaces/0", id="no name of a namespace"),
        pytest.param(
            {"metricsSources": [{"name": "PodScrape", "type": "Prometheus", "url": "http://x"}]},
            "/metricsSources/0/name", id="a name that is taken",
        ),
        pytest.param(
            {"metricsSources": [{"name": "x", "type": "Prometheus", "url": "x:9090"}]},
            "/metricsSources/0/url", id="a URL without a scheme",
        ),
        pytest.param({"image": {"repository": "x", "tags": "y"}}, "/image", id="a misspelt nested value"),
        pytest.param({"loopInterval": "0.5s"}, "loopInterval: 0.5s would flood", id="a busy loop"),
        pytest.param(
            {"sizing": {"window": "1m", "fastWindow": "90s"}},
            "fastWindow 90s beside window 1m", id="windows the wrong way round",
        ),
        pytest.param(
            {"sizing": {"fastWindow": "4900ms"}}, "write a fastWindow of 5s or more", id="a window of no scrape"
        ),
        pytest.param({"sizing": None}, "sizing", id="a value that is taken away"),
        pytest.param(
            {"metricsSources": [{"name": "a", "type": "Prometheus", "url": "http://x"}] * 2},
            "metricsSources: a is defined twice", id="a source twice",
        ),
        pytest.param({"podLabels": {"app.kubernetes.io/name": "x"}}, "/podLabels", id="a label of the selector"),
        pytest.param({"podLabels": {"prefleet.dev/fleet": "x"}}, "/podLabels", id="a label of fleets"),
        pytest.param(
            {"podAnnotations": {"prefleet.dev/config-sha256": "x"}}, "/podAnnotations", id="an annotation twice"
        ),
        pytest.param({"fullnameOverride": "X_y"}, "/fullnameOverride", id="no name of an object"),
        pytest.param({"nameOverride": "a" * 55}, "/nameOverride", id="a name that makes too long a label"),
    ],
)  # fmt: skip
def test_wrong_values_are_refused(helm: Helm, values: Json, where: str) -> None:
    with pytest.raises(HelmFailed) as refusal:
        render(helm, **values)
    assert where in str(refusal.value)


def test_windows_and_intervals_are_taken_as_the_operator_takes_them(helm: Helm) -> None:
    render(helm, loopInterval="1000ms", sizing={"window": "1h0.5m", "fastWindow": "1h29s"})


def test_the_notes_lead_to_a_namespace_that_is_served(helm: Helm) -> None:
    def notes(**values: Any) -> str:
        return helm("install", "prefleet", str(CHART), "--dry-run=client", values=values)

    assert "kubectl apply -f -" in notes()
    told = notes(watchNamespaces=["chat", "code"])
    assert "kubectl -n chat apply -f -" in told
    assert "kubectl -n chat get pp" in told


def test_every_value_is_described_and_every_default_is_in_the_schema() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert set(values) == set(schema["properties"]) - {"global"}
    assert [name for name, each in schema["properties"].items() if not each.get("description")] == []


def test_the_chart_carries_the_version_of_the_distribution() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = Path(CHART).parents[1] / "pyproject.toml"
    assert f'version = "{chart["appVersion"]}"' in project.read_text()
