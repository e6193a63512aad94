"""Engines that schedule by themselves: how each is told, what is refused, and what a user is warned of."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from prefleet_operator.api import CAPABILITIES, EngineType, InvalidSpecError, SchedulingPolicy, Told, parse_spec
from prefleet_operator.core.native_policy import NATIVE_POLICY_FILE, LatencyTargets, NativePolicy, TptTimes
from prefleet_operator.engines import engine_for

from tests.support.bad_specs import engine_document
from tests.support.rendering import engine, option, render, template

NATIVES = [kind.value for kind in EngineType if CAPABILITIES[kind].told is Told.START]
SHORT_FIRST = NativePolicy(
    generation=7, policy=SchedulingPolicy.SHORT_REQUEST_FIRST, threshold=512, long_max_wait_ms=4000
)
FCFS = NativePolicy(generation=7)


def spec_of(kind: str, **change: Any) -> dict[str, Any]:
    """A spec for the engine, with what is changed by dotted path (`__` for a dot)."""
    changes = {f"spec.{path.replace('__', '.')}": value for path, value in change.items()}
    return dict(engine_document(kind, changes)["spec"])


def first_role(spec: dict[str, Any]) -> str:
    return "mixed" if "mixed" in spec else "prefill"


@pytest.mark.parametrize("kind", NATIVES)
def test_a_pod_carries_the_generation_that_its_engine_is_told_and_mounts_no_policy(kind: str) -> None:
    spec = spec_of(kind)
    rendered = template(spec, first_role(spec), FCFS)
    assert rendered["metadata"]["annotations"] == {"prefleet.dev/policy-generation": "7"}
    assert "prefleet-policy" not in [volume["name"] for volume in rendered["spec"]["volumes"]]
    assert "initContainers" not in rendered["spec"]


HRRN = NativePolicy(generation=8, policy=SchedulingPolicy.HRRN)


@pytest.mark.parametrize(("kind", "policy"), [("VLLMAscend", SHORT_FIRST), ("SGLang", HRRN)])
def test_a_decode_pod_is_told_nothing_so_no_policy_changes_it(kind: str, policy: NativePolicy) -> None:
    spec = spec_of(kind)
    before, after = template(spec, "decode", FCFS), template(spec, "decode", policy)
    assert before == after
    assert "annotations" not in before["metadata"]


@pytest.mark.parametrize("kind", NATIVES)
def test_the_config_map_remembers_the_policy_in_a_file_that_no_pod_reads(kind: str) -> None:
    data = render(spec_of(kind), FCFS)["ConfigMap/chat-policy"]["data"]
    assert list(data) == [NATIVE_POLICY_FILE]
    assert NativePolicy.from_json(data[NATIVE_POLICY_FILE]) == FCFS


@pytest.mark.parametrize("kind", NATIVES)
def test_the_users_arguments_come_first(kind: str) -> None:
    given = ['{"LogConfig": {}}'] if kind == "MindIE" else ["--chat-template", "mine"]
    spec = spec_of(kind)
    role = first_role(spec)
    spec[role] = {"args": given}
    assert engine(spec, role, FCFS)["args"][: len(given)] == given


@pytest.mark.parametrize("kind", [kind.value for kind in EngineType])
def test_an_engine_names_its_metrics_where_no_exporter_of_ours_runs(kind: str) -> None:
    names = engine_for(parse_spec(spec_of(kind))).metrics
    assert (names is not None) is (kind in NATIVES)
    assert names is None or (names.prompt_lengths and names.waiting and names.first_token)


# VLLMAscend


def additional(spec: dict[str, Any], role: str, policy: NativePolicy) -> dict[str, Any]:
    args = engine(spec, role, policy)["args"]
    return dict(json.loads(option(args, "--additional-config"))) if "--additional-config" in args else {}


SETTING = {"enabled": True, "threshold": 512, "long_max_wait_ms": 4000}


def test_from_0_25_1_on_the_setting_is_nested() -> None:
    given = '{"scheduler_config": {"enable_balance_scheduling": true}, "a": 1}'
    spec = spec_of("VLLMAscend", prefill__args=["--additional-config", given])
    assert additional(spec, "prefill", SHORT_FIRST) == {
        "a": 1,
        "scheduler_config": {"enable_balance_scheduling": True, "short_request_first_config": SETTING},
    }


def test_an_abbreviated_setting_of_the_users_is_merged_too() -> None:
    """The last one counts: beside the operator's it would be lost without a word."""
    spec = spec_of("VLLMAscend", prefill__args=["--additional-conf", '{"a": 1}'])
    assert additional(spec, "prefill", SHORT_FIRST)["a"] == 1
    assert "--additional-conf" not in engine(spec, "prefill", SHORT_FIRST)["args"]


def test_0_24_0rc1_has_a_key_of_its_own_and_needs_the_recompute_scheduler() -> None:
    spec = spec_of("VLLMAscend", engine__version="0.24.0rc1", prefill=None, decode=None, mixed={})
    assert additional(spec, "mixed", SHORT_FIRST) == {
        "short_request_first_config": SETTING,
        "recompute_scheduler_enable": True,
    }


def test_under_fcfs_and_on_decode_pods_nothing_is_said() -> None:
    spec = spec_of("VLLMAscend")
    assert additional(spec, "prefill", FCFS) == additional(spec, "decode", SHORT_FIRST) == {}


def test_both_sides_of_a_handover_know_each_others_parallelism() -> None:
    spec = spec_of("VLLMAscend", prefill__args=["-tp", "4"], decode__args=["--tensor_parallel=2"])
    for role, kv_role in (("prefill", "kv_producer"), ("decode", "kv_consumer")):
        config = json.loads(option(engine(spec, role, FCFS)["args"], "--kv-transfer-config"))
        sizes = {side: config["kv_connector_extra_config"][side]["tp_size"] for side in ("prefill", "decode")}
        assert (config["kv_role"], sizes) == (kv_role, {"prefill": 4, "decode": 2})


CONTRADICTIONS = (
    ({"scheduler_config": {"short_request_first_config": {"enabled": False}}}, "remove short_request_first_config"),
    ({"short_request_first_config": {"enabled": "false"}}, "remove short_request_first_config"),
    ({"scheduler_config": {"batch_job_sched_config": {}}}, "remove batch_job_sched_config"),
    ({"scheduler_config": {"profiling_chunk_config": {}}}, "profiling_chunk_config .*--no-async-scheduling"),
    ({"scheduler_config": True}, "scheduler_config in --additional-config is no JSON object"),
)


@pytest.mark.parametrize(("config", "sentence"), CONTRADICTIONS, ids=lambda value: str(value)[:40])
def test_what_contradicts_the_setting_or_ends_the_engine_is_refused(config: dict[str, Any], sentence: str) -> None:
    spec = spec_of("VLLMAscend", prefill__args=["--additional-config", json.dumps(config)])
    with pytest.raises(InvalidSpecError, match=sentence):
        render(spec, SHORT_FIRST)


def test_profiling_chunks_go_with_synchronous_scheduling() -> None:
    config = '{"scheduler_config": {"profiling_chunk_config": {"enabled": true}}}'
    spec = spec_of("VLLMAscend", prefill__args=["--no-async-scheduling", "--additional-config", config])
    assert "profiling_chunk_config" in additional(spec, "prefill", SHORT_FIRST)["scheduler_config"]


# LightLLM

STRATEGIES = (
    (SchedulingPolicy.FCFS, "default"),
    (SchedulingPolicy.PROMOTE_SHORTEST, "promote_shortest"),
    (SchedulingPolicy.HRRN, "hrrn"),
)


@pytest.mark.parametrize(("policy", "word"), STRATEGIES)
def test_lightllm_is_told_a_strategy(policy: SchedulingPolicy, word: str) -> None:
    args = engine(spec_of("LightLLM"), "mixed", NativePolicy(generation=1, policy=policy))["args"]
    assert option(args, "--prefill_queue_strategy") == word
    assert option(args, "--model_dir") == "/models"


CHUNKS = (
    (["--batch_max_tokens", "8192", "--chunked_prefill_size=8192"], True),
    (["--chunked_prefill_size", "16384"], True),
    (["--dp", "2", "--chunked_prefill_size", "8192"], True),
    (["--batch_max_tokens", "8192", "--chunked_prefill_size", "4096"], False),
    (["--batch_max_tokens", "8192"], False),
    ([], False),
)


@pytest.mark.parametrize(("args", "warned"), CHUNKS, ids=str)
def test_a_chunk_as_large_as_the_batch_is_warned_of(args: list[str], warned: bool) -> None:
    spec = parse_spec(spec_of("LightLLM", mixed__args=args))
    assert bool(engine_for(spec).warnings(spec)) is warned
    first_come = parse_spec(spec_of("LightLLM", mixed__args=args, scheduling__policy="FCFS"))
    assert engine_for(first_come).warnings(first_come) == ()


# SGLang

POLICIES = (
    (SchedulingPolicy.FCFS, "fcfs"),
    (SchedulingPolicy.HRRN, "hrrn"),
    (SchedulingPolicy.SHORTEST_PREFILL_FIRST, "shortest-prefill-first"),
)


@pytest.mark.parametrize(("policy", "word"), POLICIES)
def test_sglang_is_told_a_schedule_policy_and_its_decode_pods_none(policy: SchedulingPolicy, word: str) -> None:
    spec, told = spec_of("SGLang"), NativePolicy(generation=1, policy=policy)
    assert option(engine(spec, "prefill", told)["args"], "--schedule-policy") == word
    assert option(engine(spec, "decode", told)["args"], "--schedule-policy") == "fcfs"
    assert option(engine(spec, "prefill", told)["args"], "--disaggregation-mode") == "prefill"
    mixed = spec_of("SGLang", prefill=None, decode=None, mixed={})
    assert "--disaggregation-mode" not in engine(mixed, "mixed", told)["args"]


def test_the_silent_limit_of_sglangs_hrrn_is_warned_of() -> None:
    spec = parse_spec(spec_of("SGLang"))
    (warning,) = engine_for(spec).warnings(spec)
    assert "silently runs HRRN as FCFS on a pod while more than 128 requests wait" in warning
    other = parse_spec(spec_of("SGLang", scheduling__policy="ShortestPrefillFirst"))
    assert engine_for(other).warnings(other) == ()


@pytest.mark.parametrize("flag", ["--disable-radix-cache", "--disable-radix"])
@pytest.mark.parametrize("policy", [SchedulingPolicy.HRRN, SchedulingPolicy.SHORTEST_PREFILL_FIRST])
def test_what_needs_the_radix_cache_is_refused_without_it(policy: SchedulingPolicy, flag: str) -> None:
    """Its parser takes abbreviations, too."""
    told = NativePolicy(generation=1, policy=policy)
    with pytest.raises(InvalidSpecError, match="remove --disable-radix-cache"):
        render(spec_of("SGLang", prefill__args=[flag]), told)


# MindIE

TPT = NativePolicy(generation=3, stage=TptTimes(prefill_ms=991, decode_ms=10, max_batch=200))
LATENCY = NativePolicy(generation=3, stage=LatencyTargets(first_token_ms=500, token_gap_ms=200))


def start(container: dict[str, Any], home: Path, config: Path) -> dict[str, Any]:
    """Run the container's start in a folder that looks like MindIE's; the configuration that the server would read."""
    (home / "conf").mkdir(parents=True)
    (home / "bin").mkdir()
    image = {
        "ServerConfig": {"ipAddress": "127.0.0.1", "port": 1025, "httpsEnabled": True},
        "BackendConfig": {
            "ModelDeployConfig": {"maxSeqLen": 2560, "ModelConfig": [{"modelName": "llama", "cpuMemSize": 5}]},
            "ScheduleConfig": {"supportSelectBatch": False, "maxPrefillTokens": 8192},
        },
    }
    (home / "conf" / "config.json").write_text(json.dumps(image))
    server = home / "bin" / "mindieservice_daemon"
    server.write_text('#!/bin/bash\ncat "$MIES_CONFIG_JSON_PATH"\n')
    server.chmod(0o755)
    environment = {"PATH": "/usr/bin:/bin", "MIES_INSTALL_PATH": str(home), "MIES_CONFIG_JSON_PATH": str(config)}
    command = [*container["command"], *container["args"]]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=30)
    return dict(json.loads(result.stdout))


def test_the_start_command_lays_the_policy_over_the_images_own_configuration(tmp_path: Path) -> None:
    spec = spec_of(
        "MindIE",
        scheduling__stage={"type": "TPT"},
        mixed={
            "accelerator": {"resource": "huawei.com/Ascend910", "count": 2},
            "args": ['{"BackendConfig": {"ModelDeployConfig": {"maxSeqLen": 8192}}}'],
        },
    )
    config = tmp_path / "config.json"
    merged = start(engine(spec, "mixed", TPT), tmp_path / "mindie", config)
    backend = merged["BackendConfig"]
    assert backend["ScheduleConfig"] == {
        "supportSelectBatch": True,
        "prefillTimeMsPerReq": 991,
        "decodeTimeMsPerReq": 10,
        "maxBatchSize": 200,
        "maxPrefillBatchSize": 50,
        "maxPrefillTokens": 8192,
    }
    assert backend["ModelDeployConfig"]["maxSeqLen"] == 8192
    (model,) = backend["ModelDeployConfig"]["ModelConfig"]
    assert model == {"modelName": "chat", "modelWeightPath": "/models", "worldSize": 2, "cpuMemSize": 5}
    assert backend["npuDeviceIds"] == [[0, 1]]
    assert merged["ServerConfig"]["ipAddress"] == "127.0.0.1"
    assert (merged["ServerConfig"]["port"], merged["ServerConfig"]["httpsEnabled"]) == (8000, False)
    assert config.stat().st_mode & 0o777 == 0o640


def test_the_latency_stage_aims_at_the_slos_and_mixed_leaves_the_image_alone(tmp_path: Path) -> None:
    spec = spec_of("MindIE", scheduling__stage={"type": "Latency"})
    merged = start(engine(spec, "mixed", LATENCY), tmp_path / "a", tmp_path / "a.json")
    assert merged["BackendConfig"]["ScheduleConfig"] == {
        "supportSelectBatch": False,
        "stageSelectPolicy": 2,
        "prefillExpectedTime": 500,
        "decodeExpectedTime": 200,
        "maxPrefillTokens": 8192,
    }
    plain = start(engine(spec_of("MindIE"), "mixed", FCFS), tmp_path / "b", tmp_path / "b.json")
    assert plain["BackendConfig"]["ScheduleConfig"] == {"supportSelectBatch": False, "maxPrefillTokens": 8192}


def test_mindies_probes_ask_its_management_port() -> None:
    container = engine(spec_of("MindIE"), "mixed", FCFS)
    assert container["readinessProbe"]["httpGet"] == {"path": "/v2/health/ready", "port": "management"}
    assert container["livenessProbe"]["httpGet"] == {"path": "/v2/health/live", "port": "management"}


PARTS = (
    ("--max-len", "is '--max-len': write JSON objects"),
    ("[1]", "write JSON objects, each a part of MindIE's config.json"),
    ('{"ServerConfig": {"port": 1025}}', "remove ServerConfig.port: the operator writes it"),
    (
        '{"BackendConfig": {"ModelDeployConfig": {"ModelConfig": [{"modelName": "x"}]}}}',
        "remove BackendConfig.ModelDeployConfig.ModelConfig.modelName: the operator writes it",
    ),
    (
        '{"ServerConfig": {"port": 1, "managementPort": 2, "metricsPort": 3, "httpsEnabled": 1}, "BackendConfig": 1}',
        "remove BackendConfig: the operator writes it",
    ),
    (
        '{"ServerConfig": {"port": 1, "managementPort": 2, "metricsPort": 3, "httpsEnabled": true}}',
        "remove ServerConfig.httpsEnabled: the operator writes it",
    ),
    ('{"BackendConfig": {"ScheduleConfig": 3}}', "remove BackendConfig.ScheduleConfig: the operator writes it"),
    ('{"BackendConfig": {"ScheduleConfig": {"templateType": "Mix"}}}', "remove split-fuse"),
    (
        '{"BackendConfig": {"ModelDeployConfig": {"plugin_params": "{\\"plugin_type\\": \\"splitfuse\\"}"}}}',
        "split-fuse",
    ),
)


@pytest.mark.parametrize(("part", "sentence"), PARTS, ids=[part[:40] for part, _ in PARTS])
def test_a_part_that_mindie_must_not_get_is_refused(part: str, sentence: str) -> None:
    with pytest.raises(InvalidSpecError, match=sentence.replace("[", r"\[")):
        render(spec_of("MindIE", mixed__args=[part], scheduling__stage={"type": "TPT"}), TPT)


def pair(prefill: str, decode: str) -> dict[str, Any]:
    return {"type": "TPT", "prefillPerRequest": prefill, "decodePerRequest": decode, "maxBatch": 200}


WARNED = (
    ({"type": "TPT"}, "200ms", None),
    (pair("1000ms", "1ms"), "200ms", None),
    (pair("1ms", "1000ms"), "200ms", "up to 199 prefills may come before a decode step"),
    (pair("150ms", "50ms"), "200ms", "up to 50 prefills may come before a decode step"),
    (pair("150ms", "0ms"), "200ms", "never prefills while it decodes: raise decodePerRequest"),
    ({"type": "TPT"}, "100ms", "slo.interTokenGap 100ms has no room for one prefill before a decode step: write 200ms"),
    ({"type": "TPT", "maxBatch": 5000}, "200ms", "up to 4 prefills may come before a decode step"),
)


@pytest.mark.parametrize(("stage", "gap", "sentence"), WARNED, ids=lambda value: str(value)[:70])
def test_pairs_that_put_prefill_first_are_warned_of(stage: dict[str, Any], gap: str, sentence: str | None) -> None:
    spec = parse_spec(spec_of("MindIE", scheduling__stage=stage, slo={"interTokenGap": gap}))
    warnings = engine_for(spec).warnings(spec)
    assert warnings == () if sentence is None else sentence in warnings[0]
