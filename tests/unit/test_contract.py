"""The policy document: what is taken, and what is refused with which sentence."""

from __future__ import annotations

import json
from typing import Any

import pytest
from prefleet_runtime.contract import (
    DEFAULT_EXPORTER_PORT,
    InvalidPolicyError,
    LengthKind,
    LongChunk,
    MixedStage,
    PolicyName,
    RuntimePolicy,
    RuntimeSettings,
)

SHORT_FIRST = {"generation": 3, "policy": "short_request_first", "threshold": 2048, "long_max_wait_ms": 5000}


def test_a_document_survives_the_round_trip() -> None:
    policy = RuntimePolicy.from_json(json.dumps(SHORT_FIRST))
    assert policy.policy is PolicyName.SHORT_REQUEST_FIRST
    assert policy.length is LengthKind.UNCACHED
    assert RuntimePolicy.from_json(policy.to_json()) == policy


def test_a_document_from_before_the_step_budget_yields_and_leaves_the_stage_to_the_engine() -> None:
    policy = RuntimePolicy.from_json(json.dumps(SHORT_FIRST))
    assert (policy.long_chunk, policy.long_chunk_tokens, policy.stage) == (LongChunk.YIELD, None, MixedStage())


@pytest.mark.parametrize(
    "stage",
    [
        {"type": "tpt", "prefill_ms_per_request": 80, "decode_ms_per_request": 0.5, "max_batch": 64},
        {"type": "stall_budget", "max_stall_ms": 40.5},
    ],
    ids=lambda stage: stage["type"],
)
def test_a_stage_survives_the_round_trip(stage: dict[str, Any]) -> None:
    policy = RuntimePolicy.from_json(json.dumps(SHORT_FIRST | {"stage": stage, "long_chunk": "cap"}))
    assert policy.stage.model_dump() == stage
    assert RuntimePolicy.from_json(policy.to_json()) == policy


def test_equal_policies_are_equal_text() -> None:
    shuffled = dict(reversed(SHORT_FIRST.items()))
    texts = {RuntimePolicy.from_json(json.dumps(document)).to_json() for document in (SHORT_FIRST, shuffled)}
    assert len(texts) == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param({"generation": None}, "generation", id="a generation is needed"),
        pytest.param({"generation": -1}, "generation", id="a generation is not negative"),
        pytest.param({"generation": "3"}, "generation", id="a generation is a number, not text"),
        pytest.param({"policy": "random"}, "policy", id="an unknown policy is refused"),
        pytest.param({"threshold": 0}, "threshold", id="a threshold is at least one token"),
        pytest.param({"threshold": None}, "threshold is required", id="short_request_first needs a threshold"),
        pytest.param({"threshold": 10.5}, "threshold", id="a threshold is a whole number"),
        pytest.param({"long_max_wait_ms": -1}, "long_max_wait_ms", id="a wait is not negative"),
        # Each would raise OverflowError where it becomes a float: in the engine's thread, or at every scrape.
        pytest.param({"generation": 10**400}, "generation", id="a generation is a number that a metric can show"),
        pytest.param({"threshold": 10**400}, "threshold", id="a threshold is a number that a metric can show"),
        pytest.param({"long_max_wait_ms": 10**400}, "long_max_wait_ms", id="a wait is a time that a clock can reach"),
        pytest.param({"aged_share": 0}, "aged_share", id="a share of nothing would starve longs"),
        pytest.param({"aged_share": 1.5}, "aged_share", id="a share is at most the whole"),
        pytest.param({"length": "bytes"}, "length", id="a length is uncached or prompt"),
        pytest.param({"long_chunk": "half"}, "long_chunk", id="a long chunk is yield, cap or off"),
        pytest.param({"long_chunk_tokens": 0}, "long_chunk_tokens", id="a chunk is at least one token"),
        pytest.param({"stage": {"type": "other"}}, "stage", id="an unknown stage is refused"),
        pytest.param({"stage": {"type": "tpt"}}, "stage.tpt.max_batch", id="tpt needs its three numbers"),
        pytest.param({"stage": {"type": "stall_budget", "max_stall_ms": 0}}, "max_stall_ms", id="no stall is no limit"),
        pytest.param({"stage": {"type": "mixed", "max_stall_ms": 5}}, "max_stall_ms", id="mixed has no settings"),
        pytest.param({"treshold": 5}, "treshold", id="a misspelt key is refused, not ignored"),
        pytest.param({"api_version": "prefleet.dev/runtime/v9"}, "api_version", id="another version is refused"),
    ],
)
def test_a_wrong_document_is_refused_with_the_field_named(change: dict[str, Any], said: str) -> None:
    document = {key: value for key, value in {**SHORT_FIRST, **change}.items() if value is not None}
    with pytest.raises(InvalidPolicyError, match=said) as caught:
        RuntimePolicy.from_json(json.dumps(document))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("cut", [0, 1, 40, -3], ids=lambda cut: f"cut at {cut}")
def test_a_torn_document_is_refused(cut: int) -> None:
    with pytest.raises(InvalidPolicyError, match="JSON"):
        RuntimePolicy.from_json(RuntimePolicy(generation=1).to_json()[:cut])


def test_settings_have_the_default_port_and_refuse_unknown_keys() -> None:
    assert RuntimeSettings.parse({"policy_file": "/p"}).exporter_port == DEFAULT_EXPORTER_PORT
    for wrong in ({}, {"policy_file": "/p", "port": 1}, {"policy_file": "/p", "exporter_port": 70000}, None):
        with pytest.raises(InvalidPolicyError):
            RuntimeSettings.parse(wrong)
