"""The resource as a laptop judges it: what is admitted, what is refused, and in which words."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefleet_operator.api import (
    SUPPORTED_VLLM,
    InvalidSpecError,
    Model,
    PodColumns,
    PrefillPolicySpec,
    Role,
    RoleStatus,
    Rule,
    custom_resource_definition,
    format_duration,
    parse_document,
    parse_duration,
    parse_spec,
)
from prefleet_runtime.vllm.releases import SUPPORTED_MINORS
from pydantic import BaseModel

from tests.support.bad_specs import BAD_SPECS, GOOD, BadSpec

ROOT = Path(__file__).parents[2]
SAMPLES = sorted((ROOT / "docs" / "samples").glob("*.yaml"))


def test_the_good_spec_is_admitted_and_its_absent_values_stay_absent() -> None:
    spec = parse_document(GOOD).spec
    assert list(spec.roles()) == [Role.PREFILL, Role.DECODE]
    assert spec.scheduling.threshold is None
    assert spec.scheduling.long_max_wait_s is None
    assert (spec.slo.short_ttft_s, spec.tuning.window_s) == (0.5, 300.0)


@pytest.mark.parametrize("bad", BAD_SPECS, ids=lambda bad: bad.name)
def test_a_bad_spec_is_refused_with_the_field_and_the_fix(bad: BadSpec) -> None:
    with pytest.raises(InvalidSpecError) as refusal:
        parse_document(bad.document())
    assert bad.field in str(refusal.value)
    assert bad.sentence in str(refusal.value)
    assert "Input should" not in str(refusal.value)


def test_every_rule_is_broken_by_a_bad_spec() -> None:
    """So that the control plane's run of the same table covers every CEL rule of the CRD."""
    messages = {rule["message"] for rule in _validations(custom_resource_definition())}
    assert {message for message in messages if not _tested(message)} == set()


def _tested(message: str) -> bool:
    return any(bad.sentence in message for bad in BAD_SPECS)


def _validations(node: Any) -> Iterator[dict[str, str]]:
    if isinstance(node, dict):
        yield from node.get("x-kubernetes-validations", ())
        for child in node.values():
            yield from _validations(child)
    elif isinstance(node, list):
        for child in node:
            yield from _validations(child)


UNKNOWN: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("a field of no release", {"canary": {}}, "spec.canary: no such field in this release: remove it, or write one of"),
    (
        "a scale target of attached pods",
        {"attach": {"mixed": {"podSelector": {"matchLabels": {"a": "b"}}, "scaleTargetRef": {}}}},
        "spec.attach.mixed.scaleTargetRef: no such field in this release: remove it, or write one of metricsPort",
    ),
    (
        "a misspelt value",
        {"scheduling": {"treshold": 5}},
        "agedShare, length, longChunk, longChunkTokens, longMaxWait, policy, stage, threshold",
    ),
    ("a field of an item", {"prefill": {"env": [{"name": "A", "valueFrom": {}}]}}, "or write one of name, value"),
)


@pytest.mark.parametrize(("change", "sentence"), [case[1:] for case in UNKNOWN], ids=[case[0] for case in UNKNOWN])
def test_an_unknown_field_is_refused_with_those_that_are_known(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidSpecError) as refusal:
        parse_spec(GOOD["spec"] | change)
    assert sentence in str(refusal.value)


DURATION = "with its unit (ms, s, m, h), such as"

PLAIN: tuple[tuple[dict[str, Any], str], ...] = (
    ({"scheduling": {"longMaxWait": 5}}, f'longMaxWait: is 5: write a duration from 0s to 24h {DURATION} "8s"'),
    ({"slo": {"shortTTFT": 0.5}}, f'shortTTFT: is 0.5: write a duration from 1ms to 1h {DURATION} "500ms"'),
    ({"slo": {"shortTTFT": "0s"}}, f'spec.slo.shortTTFT: write a duration from 1ms to 1h {DURATION} "500ms"'),
    ({"engine": {"type": "VLLM", "version": 0.32}}, "spec.engine.version: is 0.32: write "),
    (
        {"engine": {"type": "vllm"}},
        'engine.type: is "vllm": write VLLM, Simulator, VLLMAscend, LightLLM, SGLang or MindIE',
    ),
    ({"tuning": {"mode": False}}, "spec.tuning.mode: is false: write Auto, Advise or Off, in quotes"),
    ({"tuning": {"waitQuantile": "P99"}}, 'spec.tuning.waitQuantile: is "P99": write P90 or P95'),
    ({"tuning": {"bias": "much"}}, 'spec.tuning.bias: is "much": write a number'),
    ({"tuning": {"bias": float("nan")}}, "spec.tuning.bias: is NaN: write a number less than or equal to 1"),
    ({"prefill": {"replicas": 2.5}}, "spec.prefill.replicas: is 2.5: write a whole number"),
    ({"prefill": {"replicas": -1}}, "spec.prefill.replicas: is -1: write a number greater than or equal to 0"),
    ({"scheduling": {"threshold": 10**9}}, "is 1000000000: write a number less than or equal to 100000000"),
    ({"prefill": {"args": "--x"}}, 'spec.prefill.args: is "--x": write a list'),
    ({"prefill": {"args": [5]}}, "spec.prefill.args.0: is 5: write it in quotes"),
    ({"prefill": {"args": ["--x"] * 101}}, "write at most 100 items"),
    ({"prefill": ["a"]}, 'spec.prefill: is ["a"]: write a mapping'),
    ({"prefill": {"podTemplate": True}}, "spec.prefill.podTemplate: is true: write a mapping"),
    ({"prefill": {"env": [{"name": 1}]}}, "spec.prefill.env.0.name: is 1: write letters, digits and _"),
    ({"prefill": {"env": [{"name": "A", "value": 1}]}}, "spec.prefill.env.0.value: is 1: write it in quotes"),
    ({"model": {"servedName": ""}}, 'spec.model.servedName: is "": write text that is not empty'),
    ({"model": {"servedName": "x" * 513}}, "xxx...: write at most 512 characters"),
)


@pytest.mark.parametrize(("change", "sentence"), PLAIN, ids=lambda case: str(case)[:60])
def test_a_value_that_does_not_fit_is_told_with_the_field_and_the_fix(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidSpecError) as refusal:
        parse_spec(GOOD["spec"] | change)
    assert sentence in str(refusal.value)
    assert "should" not in str(refusal.value)


def test_what_may_be_a_number_or_a_share_is_told_once_and_by_its_field() -> None:
    with pytest.raises(InvalidSpecError) as refusal:
        parse_spec(GOOD["spec"] | {"prefill": {"rollout": {"maxSurge": [1], "maxUnavailable": 1}}})
    told = 'write a number of replicas from 0 to 10000, or a share of them such as "25%"'
    assert str(refusal.value) == f"spec.prefill.rollout.maxSurge: is [1]: {told}"


def test_a_bare_off_is_refused_with_the_advice_to_quote_it() -> None:
    with pytest.raises(InvalidSpecError, match="in quotes"):
        parse_spec(GOOD["spec"] | yaml.safe_load("tuning: {mode: Off}"))


def test_a_number_in_quotes_is_no_number_here_either() -> None:
    with pytest.raises(InvalidSpecError, match=r"spec\.prefill\.replicas"):
        parse_spec(GOOD["spec"] | {"prefill": {"replicas": "2"}})


def test_two_variables_of_one_name_are_refused() -> None:
    twice = [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]
    with pytest.raises(InvalidSpecError, match="name each variable once"):
        parse_spec(GOOD["spec"] | {"prefill": {"env": twice}})


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(InvalidSpecError) as refusal:
        parse_spec({"model": {}, "engine": {"type": "VLLM"}, "tuning": {"band": {"low": 0}}})
    assert all(
        field in str(refusal.value) for field in ("spec.model.servedName", "spec.engine", "spec.tuning.band.low")
    )


def test_what_is_not_a_prefill_policy_is_refused_as_such() -> None:
    documents: tuple[Any, ...] = (None, [], {"kind": "Deployment"}, GOOD | {"apiVersion": "prefleet.dev/v1"})
    for document in documents:
        with pytest.raises(InvalidSpecError, match="not a PrefillPolicy"):
            parse_document(document)


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_every_example_of_the_documentation_is_admitted(path: Path) -> None:
    for document in yaml.safe_load_all(path.read_text()):
        parse_document(document)


def test_the_vllm_releases_are_those_that_the_runtime_supports() -> None:
    assert [f"{major}.{minor}" for major, minor in SUPPORTED_MINORS] == list(SUPPORTED_VLLM)


@pytest.mark.parametrize("version", [f"{minor}.{patch}" for minor in SUPPORTED_VLLM for patch in ("0", "1rc1")])
def test_every_patch_of_a_supported_vllm_release_is_admitted(version: str) -> None:
    admitted = BadSpec("a supported release", {"spec.engine.version": version}, "", "")
    assert parse_document(admitted.document()).spec.engine.version == version


def test_a_release_that_no_tag_can_name_is_admitted_beside_an_image_and_for_attached_pods() -> None:
    own = {"spec.engine": {"type": "VLLM", "version": "0.33.0+cu129", "image": "mine/vllm:1"}}
    attached = {
        "spec.engine": {"type": "VLLM", "version": "0.33.0+cu129"},
        "spec.model.source": None,
        "spec.prefill": None,
        "spec.decode": None,
        "spec.attach": {"mixed": {"podSelector": {"matchLabels": {"app": "chat"}}}},
    }
    for change in (own, attached):
        assert parse_document(BadSpec("good", change, "", "").document()).spec.engine.version == "0.33.0+cu129"


@pytest.mark.parametrize("version", ["0.27.1", "0.34.0", "0.3.20", "0.280.0", "0x28.0", "v0.32.0"])
def test_another_vllm_release_is_refused(version: str) -> None:
    refused = BadSpec("another release", {"spec.engine.version": version}, "", "")
    with pytest.raises(InvalidSpecError, match="write a release of vLLM"):
        parse_document(refused.document())


DURATIONS = (("500ms", 0.5), ("8s", 8.0), ("1m30s", 90.0), ("1.5h", 5400.0), ("0s", 0.0))


@pytest.mark.parametrize(("text", "seconds"), DURATIONS)
def test_a_duration_is_its_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "8", "s", "-1s", "8 s", "1d", "8s "])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)


@pytest.mark.parametrize("seconds", [0.001, 0.5, 8.0, 9.999, 10.0, 90.5, 1234.567, 3600.0])
def test_a_duration_that_was_written_is_read_as_it_was(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds)


def test_a_rule_refuses_with_its_sentence() -> None:
    class Pair(Model):
        low: int
        high: int
        RULES = (Rule("self.low < self.high", "write low below high", lambda pair: pair.low < pair.high),)

    assert Pair(low=1, high=2).to_resource() == {"low": 1, "high": 2}
    with pytest.raises(ValueError, match="write low below high"):
        Pair(low=2, high=1)


def _role(name: Role, ready: int, desired: int) -> RoleStatus:
    return RoleStatus(name=name, ready=ready, desired=desired, active=0)


def test_columns_count_each_role() -> None:
    columns = PodColumns.of([_role(Role.PREFILL, 1, 2), _role(Role.DECODE, 3, 3)])
    assert (columns.prefill, columns.decode) == ("1/2", "3/3")


def test_the_pods_of_a_mixed_fleet_count_once() -> None:
    columns = PodColumns.of([_role(Role.MIXED, 2, 2)])
    assert (columns.prefill, columns.decode) == ("2/2", "mixed")


def test_all_parts_of_the_resource_refuse_unknown_fields() -> None:
    def models(root: type[BaseModel]) -> Iterator[type[BaseModel]]:
        for child in root.__subclasses__():
            yield child
            yield from models(child)

    assert all(model.model_config.get("extra") == "forbid" for model in models(Model))
    assert issubclass(PrefillPolicySpec, Model)
