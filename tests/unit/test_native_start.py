"""The stand-ins start as their engines do: what the operator renders, and nothing that the engine refuses."""

import json

import pytest
from prefleet_operator.api import Role
from prefleet_operator.engines import PodRequest, engine_for
from prefleet_runtime.contract import PolicyName

from tests.support.native.cases import CASES
from tests.support.native.start import RELEASE_VARIABLE, RefusedError, read_start

SETTING = {"enabled": True, "threshold": 300, "long_max_wait_ms": 2000.0}


def ascend(config: object, *arguments: str, release: str = "0.25.1rc1") -> PolicyName:
    given = ["--model", "m", "--additional-config", json.dumps(config), *arguments]
    return read_start("vllm-ascend", given, {RELEASE_VARIABLE: release}).policy.policy


@pytest.mark.parametrize(
    ("kind", "flavour", "name"),
    [
        ("VLLMAscend", "vllm-ascend", PolicyName.SHORT_REQUEST_FIRST),
        ("LightLLM", "lightllm", PolicyName.PROMOTE_SHORTEST),
        ("SGLang", "sglang", PolicyName.HRRN),
    ],
)
def test_what_is_rendered_starts_under_the_policy_that_was_decided(kind, flavour, name):
    case = CASES[kind]
    container = engine_for(case.spec).container(PodRequest(case.spec, Role.MIXED, "runtime", case.policy))
    start = read_start(flavour, container.args, {})
    assert (start.policy.policy, start.model, start.metrics) == (name, "chat", True)
    assert start.policy.threshold == case.policy.threshold


PRODUCER = ("--kv-transfer-config", '{"kv_role": "kv_producer"}')
CONSUMER = ("--kv-transfer-config", '{"kv_role": "kv_consumer"}')
NESTED = {"scheduler_config": {"short_request_first_config": SETTING}}
TOP = {"short_request_first_config": SETTING, "recompute_scheduler_enable": True}
SRF, FCFS = PolicyName.SHORT_REQUEST_FIRST, PolicyName.FCFS


@pytest.mark.parametrize(
    ("config", "arguments", "release", "policy"),
    [
        pytest.param({}, (), "0.25.1rc1", FCFS, id="nothing said is first come first served"),
        pytest.param(NESTED, (), "0.25.1rc1", SRF, id="nested"),
        pytest.param(TOP, (), "0.25.1rc1", SRF, id="at the top level, deprecated"),
        pytest.param(NESTED, (), "0.24.0rc1", FCFS, id="0.24.0rc1 does not know the nested key"),
        pytest.param(TOP, (), "0.24.0rc1", SRF, id="0.24.0rc1 beside recompute"),
        pytest.param(TOP, PRODUCER, "0.24.0rc1", FCFS, id="0.24.0rc1 drops it silently on a producer"),
        pytest.param(NESTED, PRODUCER, "0.25.1rc1", SRF, id="on a producer"),
    ],
)
def test_vllm_ascend_reads_its_setting_by_release(config, arguments, release, policy):
    assert ascend(config, *arguments, release=release) is policy


@pytest.mark.parametrize(
    ("config", "arguments"),
    [
        pytest.param(NESTED, CONSUMER, id="a consumer"),
        pytest.param(NESTED, ("--scheduling-policy", "priority"), id="another policy"),
        pytest.param(NESTED | {"batch_job_sched_config": {}}, (), id="batch jobs"),
        pytest.param(NESTED | {"profiling_chunk_config": {}}, (), id="profiled chunks while asynchronous"),
        pytest.param({"scheduler_config": {"short_request_first_config": SETTING | {"x": 1}}}, (), id="an unknown key"),
        pytest.param(
            {"scheduler_config": {"short_request_first_config": SETTING | {"threshold": -1}}}, (), id="below 0"
        ),
    ],
)
def test_vllm_ascend_does_not_start_with(config, arguments):
    with pytest.raises(RefusedError):
        ascend(config, *arguments)


def test_profiled_chunks_are_allowed_in_synchronous_mode():
    assert ascend(NESTED | {"profiling_chunk_config": {}}, "--no-async-scheduling") is SRF


def test_lightllm_does_not_start_with_a_chunk_beyond_its_batch():
    with pytest.raises(RefusedError):
        read_start("lightllm", ["--model_dir", "m", "--batch_max_tokens", "8", "--chunked_prefill_size", "9"], {})


@pytest.mark.parametrize(
    ("flavour", "arguments"),
    [
        ("lightllm", ["--model_dir", "m", "--prefill_queue_strategy", "shortest"]),
        ("sglang", ["--model-path", "m", "--schedule-policy", "shortest"]),
    ],
)
def test_a_policy_that_an_engine_does_not_know_ends_its_start(flavour, arguments):
    with pytest.raises(SystemExit):
        read_start(flavour, arguments, {})


def test_sglang_runs_hrrn_as_fcfs_without_its_cache_and_serves_metrics_only_if_asked():
    start = read_start("sglang", ["--model-path", "m", "--schedule-policy", "hrrn", "--disable-radix-cache"], {})
    assert (start.policy.policy, start.metrics) == (FCFS, False)


@pytest.mark.parametrize(
    ("schedule", "stage"),
    [
        pytest.param({}, "mixed", id="as the image has it"),
        pytest.param({"supportSelectBatch": True, "prefillTimeMsPerReq": 1000}, "tpt", id="TPT"),
        pytest.param({"supportSelectBatch": True, "templateType": "Mix"}, "mixed", id="split-fuse ignores it"),
        pytest.param({"supportSelectBatch": True, "prefillTimeMsPerReq": 1001}, None, id="a time out of range"),
        pytest.param({"supportSelectBatch": "true"}, None, id="a text for a boolean"),
    ],
)
def test_mindie_reads_its_configuration(tmp_path, schedule, stage):
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps(
            {
                "ServerConfig": {"port": 1025, "managementPort": 1026, "metricsPort": 1027},
                "BackendConfig": {
                    "ModelDeployConfig": {"ModelConfig": [{"modelName": "chat"}]},
                    "ScheduleConfig": schedule,
                },
            }
        )
    )
    environment = {"MIES_CONFIG_JSON_PATH": str(path), "MIES_SERVICE_MONITOR_MODE": "1"}
    if stage is None:
        with pytest.raises(RefusedError):
            read_start("mindie", [], environment)
        return
    assert read_start("mindie", [], environment).policy.stage.type == stage
