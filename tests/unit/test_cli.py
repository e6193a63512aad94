"""The commands render and crd: what they print, and how they end on bad input."""

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefleet_operator.api import EngineType
from prefleet_operator.cli.commands import app
from prefleet_operator.cli.crd import generated_files
from typer.testing import CliRunner

from tests.support.bad_specs import GOOD, engine_document

ROOT = Path(__file__).parents[2]
run = CliRunner().invoke


def write(folder: Path, text: str) -> str:
    path = folder / "policy.yaml"
    path.write_text(text, errors="surrogateescape")
    return str(path)


def test_render_prints_the_manifests_in_the_order_of_application(tmp_path: Path) -> None:
    result = run(app, ["render", "-f", write(tmp_path, yaml.safe_dump(GOOD))])
    kinds = [document["kind"] for document in yaml.safe_load_all(result.stdout)]
    assert result.exit_code == 0
    assert kinds == ["ConfigMap", "Deployment", "Service", "PodDisruptionBudget", "Deployment", "Service"]


def test_render_reads_standard_input(tmp_path: Path) -> None:
    result = run(app, ["render", "-f", "-", "--runtime-image", "mine:1"], input=yaml.safe_dump(GOOD))
    assert result.exit_code == 0
    assert "image: mine:1" in result.stdout


@pytest.mark.parametrize("kind", list(EngineType))
def test_render_prints_offline_what_each_engine_would_be_given(tmp_path: Path, kind: EngineType) -> None:
    result = run(app, ["render", "-f", write(tmp_path, yaml.safe_dump(engine_document(kind.value)))])
    assert result.exit_code == 0
    deployments = [each for each in yaml.safe_load_all(result.stdout) if each["kind"] == "Deployment"]
    assert all(each["spec"]["template"]["spec"]["containers"][0]["image"] for each in deployments)
    assert result.stderr.startswith("warning: SGLang silently runs HRRN") is (kind is EngineType.SGLANG)


KEDA = {"autoscaling": {"actuator": "KEDA", "prefill": {"maxReplicas": 4}}, "metricsSource": "cluster"}


def test_render_asks_for_the_address_that_keda_asks(tmp_path: Path) -> None:
    path = write(tmp_path, yaml.safe_dump({**GOOD, "spec": GOOD["spec"] | KEDA}))
    refused = run(app, ["render", "-f", path])
    assert refused.exit_code == 2
    assert "give its address with --metrics-url" in refused.stderr
    rendered = run(app, ["render", "-f", path, "--metrics-url", "http://prometheus:9090"])
    assert rendered.exit_code == 0
    assert "serverAddress: http://prometheus:9090" in rendered.stdout


BAD_FILES = (
    ("a bad spec", yaml.safe_dump({**GOOD, "spec": {**GOOD["spec"], "decode": None}}), "or mixed alone"),
    ("another kind", "kind: Pod", "not a PrefillPolicy"),
    ("an empty file", "", "holds no document"),
    ("no YAML", "a: [", "is not YAML that Kubernetes reads: line 1, column 5: while parsing a flow node"),
    ("no UTF-8", "a: \udcff", "'utf-8' codec can't decode byte 0xff"),
    ("a key twice", yaml.safe_dump(GOOD) + "kind: Pod\n", "column 1: kind is set twice"),
    (
        "a date as a key",
        yaml.safe_dump({**GOOD, "spec": {**GOOD["spec"], "decode": {"replicas": 1}}}).replace(
            "replicas: 1", "2001-01-01: 3"
        ),
        "spec.decode.2001-01-01: no such field",
    ),
    ("a number that never ends", f"a: {'9' * 6000}", "Exceeds the limit"),
    ("a hole without a bottom", "[" * 3000, "it nests too deeply"),
    (
        "an alias of what holds it",
        f"{yaml.safe_dump({**GOOD, 'spec': None}).replace('spec: null', 'spec: &s {model: *s}')}",
        "an alias in it stands for what holds it",
    ),
    ("metadata that is a number", yaml.safe_dump({**GOOD, "metadata": 7}), "metadata: should be an object"),
    (
        "annotations that are a number",
        yaml.safe_dump({**GOOD, "metadata": {"name": "a", "annotations": 5}}),
        "metadata.annotations: write text for each key",
    ),
    (
        "a namespace of two words",
        yaml.safe_dump({**GOOD, "metadata": {"name": "a", "namespace": "A b"}}),
        "metadata.namespace: write at most 63",
    ),
    (
        "a field beside the spec",
        yaml.safe_dump({**GOOD, "Spec": {}}),
        "Spec: no such field: remove it, or write one of",
    ),
    (
        "a bad one of two",
        yaml.safe_dump_all([GOOD, {**GOOD, "spec": {}}]),
        "policy.yaml, document 2: spec.model: is required",
    ),
    (
        "one policy twice",
        yaml.safe_dump_all([GOOD, {**GOOD, "metadata": {**GOOD["metadata"], "namespace": "default"}}]),
        "policy.yaml, document 2: default/chat stands in the file already: remove one of them",
    ),
)


@pytest.mark.parametrize(("text", "sentence"), [case[1:] for case in BAD_FILES], ids=[case[0] for case in BAD_FILES])
def test_render_ends_with_two_and_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    result = run(app, ["render", "-f", write(tmp_path, text)])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert sentence in result.stderr
    assert "Traceback" not in result.stderr


def test_what_kubernetes_takes_for_text_is_text(tmp_path: Path) -> None:
    """PyYAML would make seconds of the one and a date of the other, which are no text for a variable."""
    env = "env: [{name: AT, value: 12:30}, {name: DAY, value: 2026-11-30}]"
    text = yaml.safe_dump({**GOOD, "spec": {**GOOD["spec"], "prefill": {"replicas": 1}}})
    path = write(tmp_path, "\ufeff" + text.replace("replicas: 1", env).replace("\n", "\r\n"))
    result = run(app, ["render", "-f", path])
    assert result.exit_code == 0, result.stderr
    assert {"12:30", "2026-11-30"} <= set(re.findall(r"value: '(.+)'", result.stdout))


def test_a_merge_may_be_overridden(tmp_path: Path) -> None:
    document = yaml.safe_dump({**GOOD, "spec": {**GOOD["spec"], "prefill": None, "decode": None}})
    pods = "prefill: &pods {replicas: 3}\n  decode: {<<: *pods, replicas: 2}"
    result = run(
        app, ["render", "-f", write(tmp_path, document.replace("prefill: null", pods).replace("  decode: null\n", ""))]
    )
    assert result.exit_code == 0, result.stderr
    replicas = [each["spec"]["replicas"] for each in yaml.safe_load_all(result.stdout) if each["kind"] == "Deployment"]
    assert replicas == [3, 2]


def test_the_release_is_told() -> None:
    assert run(app, ["--version"]).stdout == f"prefleet {version('prefleet')}\n"


def test_a_full_disk_is_told_in_a_sentence(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from prefleet_operator.cli import main; main()", "crd", "--print"]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (2, "error: the output: No space left on device\n")


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        pytest.param(
            "model",
            {"servedName": 5},
            "spec.model.servedName: is 5: write it in quotes",
            id="a number for text",
        ),
        pytest.param(
            "prefill",
            {"replicas": "2"},
            'spec.prefill.replicas: is "2": write it without quotes',
            id="text for a number",
        ),
        pytest.param(
            "prefill",
            {"replicas": "two"},
            'spec.prefill.replicas: is "two": write a whole number\n',
            id="no number at all",
        ),
        pytest.param(
            "scheduling",
            {"trustClientPriority": "true"},
            'is "true": write it without quotes',
            id="text for a truth",
        ),
    ],
)
def test_quotes_too_few_or_too_many_are_named(tmp_path: Path, field: str, value: Any, sentence: str) -> None:
    path = write(tmp_path, yaml.safe_dump({**GOOD, "spec": {**GOOD["spec"], field: value}}))
    result = run(app, ["render", "-f", path])
    assert result.exit_code == 2
    assert sentence in result.stderr


def test_a_port_that_is_none_is_refused() -> None:
    result = run(app, ["run", "--config", "absent", "--port", "99999"])
    assert (result.exit_code, "--port" in result.stderr) == (2, True)


def test_where_only_the_runtime_is_installed_the_extras_are_named() -> None:
    program = "import sys; sys.modules['typer'] = None; from prefleet_operator.cli import main; main()"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    sentence = "error: typer is not installed: install Prefleet as prefleet[operator,replay]\n"
    assert (ended.returncode, ended.stderr) == (2, sentence)


def test_render_says_which_file_is_missing(tmp_path: Path) -> None:
    result = run(app, ["render", "-f", str(tmp_path / "absent.yaml")])
    assert (result.exit_code, "absent.yaml: cannot be read" in result.stderr) == (2, True)


@pytest.mark.parametrize("path", generated_files())
def test_the_generated_files_are_those_of_the_models(path: str) -> None:
    assert (ROOT / path).read_text() == generated_files()[path], "run `prefleet crd`"


def test_crd_writes_what_its_check_accepts(tmp_path: Path) -> None:
    (tmp_path / "helm" / "prefleet").mkdir(parents=True)
    (tmp_path / "helm" / "prefleet" / "Chart.yaml").touch()
    assert run(app, ["crd", "--root", str(tmp_path), "--check"]).exit_code == 1
    assert run(app, ["crd", "--root", str(tmp_path)]).exit_code == 0
    assert run(app, ["crd", "--root", str(tmp_path), "--check"]).exit_code == 0


def test_crd_writes_nothing_but_into_the_repository(tmp_path: Path) -> None:
    refused = run(app, ["crd", "--root", str(tmp_path)])
    assert (refused.exit_code, list(tmp_path.iterdir())) == (2, [])
    assert "write --print for the CRD alone" in refused.stderr


def test_crd_prints_one_document() -> None:
    (document,) = yaml.safe_load_all(run(app, ["crd", "--print"]).stdout)
    assert document["kind"] == "CustomResourceDefinition"


def described(schema: dict[str, Any], path: str) -> Iterator[tuple[str, str]]:
    """Every field below, with what `kubectl explain` says of it."""
    for name, child in schema.get("properties", {}).items():
        yield f"{path}.{name}", child.get("description", "")
        for part in (child, child.get("items", {})):
            yield from described(part, f"{path}.{name}")


def test_kubectl_explains_every_field_and_how_a_duration_is_written() -> None:
    (served,) = yaml.safe_load(generated_files()["crds/prefleet.dev_prefillpolicies.yaml"])["spec"]["versions"]
    schema = served["schema"]["openAPIV3Schema"]["properties"]
    fields = dict(pair for part in ("spec", "status") for pair in described(schema[part], part))
    assert len(fields) > 100
    assert [name for name, text in fields.items() if not text.endswith(".")] == []
    form = 'A duration from 100ms to 24h with its unit (ms, s, m, h), such as "8s".'
    assert fields["spec.slo.longQueueWait"] == f"The most extra queueing that a long request may suffer. {form}"


def test_the_chart_keeps_the_crd() -> None:
    template = yaml.safe_load(generated_files()["helm/prefleet/templates/crd.yaml"])
    plain = yaml.safe_load(generated_files()["crds/prefleet.dev_prefillpolicies.yaml"])
    assert template["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert template == plain
