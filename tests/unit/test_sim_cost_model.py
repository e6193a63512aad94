"""The cost model: derived from what its sources say, and close to what was measured elsewhere."""

import json
import math

import pytest
from prefleet_runtime.sim.cost_model import (
    DEFAULT_PROFILE,
    LLAMA_ON_A100,
    PRESETS,
    VIDUR_CHUNK_TOKENS,
    VIDUR_LAYER_S,
    StepCost,
    parse_profile,
)
from prefleet_runtime.sim.hardware import A100_80GB_SXM, LLAMA_2_7B, LLAMA_3_1_8B, QWEN_2_5_7B, Transformer
from prefleet_runtime.stage import chunk_pairs

COST = DEFAULT_PROFILE.cost


@pytest.mark.parametrize("model", [LLAMA_3_1_8B, LLAMA_2_7B, QWEN_2_5_7B], ids=lambda model: model.name)
def test_architecture_adds_up_to_the_published_parameter_count(model: Transformer) -> None:
    # Layers, plus input embedding and output projection (not tied), plus norms (negligible).
    matrices = model.layers * model.layer_parameters
    embeddings = 2 * model.hidden * model.vocabulary
    assert matrices + embeddings == pytest.approx(model.parameters, rel=1e-3)


@pytest.mark.parametrize(
    ("preset", "measured_tokens_s"),
    [("llama-3.1-8b-a100-40gb-sxm", 75), ("qwen2.5-7b-a100-80gb-sxm", 84.28)],
)
def test_a_lone_request_decodes_as_fast_as_was_measured(preset: str, measured_tokens_s: float) -> None:
    # Both measurements had about a thousand tokens of context.
    assert 1 / PRESETS[preset].cost.step_s(0, 1, 0, 1000) == pytest.approx(measured_tokens_s, rel=0.03)


def test_an_h100_prefills_about_three_times_as_fast_as_an_a100() -> None:
    a100, h100 = (
        PRESETS[name].cost.step_s(4096, 0, chunk_pairs(0, 4096))
        for name in ("llama-3.1-8b-a100-80gb-sxm", "llama-3.1-8b-h100-80gb-sxm")
    )
    assert 2.5 < a100 / h100 < 3.5


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_found_by_its_name_and_holds_long_prompts(name: str) -> None:
    profile = parse_profile(name)
    assert profile.name == name
    assert profile.kv_cache_tokens > 100_000


def test_kv_of_a_token_is_128_kib() -> None:
    assert LLAMA_3_1_8B.kv_bytes_per_token == 128 * 1024


def test_a_full_chunk_costs_the_measured_layers() -> None:
    assert COST.step_s(VIDUR_CHUNK_TOKENS, 0) == pytest.approx(LLAMA_3_1_8B.layers * VIDUR_LAYER_S)


def test_measured_efficiency_is_a_plausible_share_of_peak() -> None:
    assert LLAMA_ON_A100.linear == pytest.approx(0.642, abs=0.001)


def test_one_decode_reads_the_weights_once() -> None:
    seconds = LLAMA_3_1_8B.weight_bytes / (A100_80GB_SXM.memory_bytes_s * 0.77)
    assert COST.step_s(0, 1) == pytest.approx(seconds, rel=0.01)


def test_a_decode_batch_stays_in_the_range_of_real_engines() -> None:
    assert 0.010 < COST.step_s(0, 1, 0, 1000) < 0.015
    assert 0.015 < COST.step_s(0, 64, 0, 64 * 1000) < 0.030


def test_a_6000_token_prompt_prefills_at_about_12000_tokens_a_second() -> None:
    sizes = [(0, 2048), (2048, 2048), (4096, 1904)]
    seconds = sum(COST.step_s(chunk, 0, chunk_pairs(done, chunk)) for done, chunk in sizes)
    assert 11_000 < 6000 / seconds < 14_000


def test_chunking_looks_at_the_same_pairs_as_the_whole() -> None:
    whole = chunk_pairs(0, 1000)
    assert whole == 1000 * 1001 / 2
    assert chunk_pairs(0, 300) + chunk_pairs(300, 700) == whole


def test_the_cache_holds_about_400000_tokens() -> None:
    # (0.92 x 80 GB - 16.06 GB of weights - 4 GB of activations) / 128 KiB
    assert DEFAULT_PROFILE.kv_cache_tokens == 408_477


def test_own_numbers_may_be_given_as_json() -> None:
    own = parse_profile(json.dumps({"fixed_s": 0.01, "per_prefill_token_s": 1e-4, "per_decode_token_s": 2e-4}))
    assert own.cost == StepCost(0.01, 1e-4, 2e-4)
    assert own.cost.step_s(100, 10) == pytest.approx(0.01 + 0.01 + 0.002)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        pytest.param("llama-9", "no cost model is named 'llama-9': write one of llama-3.1-8b", id="an unknown name"),
        pytest.param("{", "no JSON object", id="torn JSON"),
        pytest.param('{"fixed_s": 1}', "lacks per_prefill_token_s and lacks per_decode_token_s", id="too few numbers"),
        pytest.param(
            '{"fixed_s": 1, "per_prefill_token_s": 1, "per_decode_token_s": 1, "x": 1}',
            "the cost model has an unknown x: write some of fixed_s",
            id="an unknown field",
        ),
        pytest.param(
            '{"fixed_s": "a", "per_prefill_token_s": 1, "per_decode_token_s": 1}',
            "fixed_s is 'a': give a number",
            id="a text for a number",
        ),
        pytest.param(
            '{"fixed_s": -1, "per_prefill_token_s": 1, "per_decode_token_s": 1}',
            "fixed_s is -1.0: give a finite number",
            id="a negative cost",
        ),
        pytest.param(
            '{"fixed_s": 0, "per_prefill_token_s": 0, "per_decode_token_s": 1}',
            "costs nothing",
            id="steps that cost nothing",
        ),
    ],
)
def test_a_wrong_cost_model_is_refused_with_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ValueError) as error:
        parse_profile(text)
    assert sentence in str(error.value)


def test_not_a_number_is_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        StepCost(math.nan, 1.0, 1.0)
