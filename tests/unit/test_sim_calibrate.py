"""Step costs from measurements: the truth is found, its uncertainty is told, and what tells nothing is refused."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from prefleet_runtime.contract import RuntimePolicy
from prefleet_runtime.sim.calibrate import (
    HEADER,
    MOST_STEPS,
    NEEDED,
    OPTIONAL,
    CalibrationError,
    cost_from_metrics,
    fit_steps,
)
from prefleet_runtime.sim.cost_model import StepCost
from prefleet_runtime.stage import StageCounters, StepCostModel, StepWork, chunk_pairs
from prefleet_runtime.telemetry import RuntimeMetrics, StageSnapshot
from prometheus_client import CollectorRegistry, generate_latest

TRUTH = StepCost(0.008, 40e-6, 90e-6, 3e-9, 80e-9)
COLUMNS = (*NEEDED, *OPTIONAL)
Work = Callable[[Random], StepWork]


def any_step(random: Random) -> StepWork:
    prefill = random.choice([0, random.randint(1, 2048)])
    decodes = random.randint(0, 128)
    return StepWork(prefill, decodes, chunk_pairs(random.randint(0, 8000), prefill), decodes * random.randint(50, 4000))


def seconds_of(work: StepWork, cost: StepCost = TRUTH) -> float:
    return cost.step_s(work.prefill_tokens, work.decode_tokens, work.attention_pairs, work.decode_context)


def csv_of(
    count: int = 400, noise: float = 0.0, cost: StepCost = TRUTH, work: Work = any_step, columns: int = 5
) -> list[str]:
    random = Random(5)
    lines = [",".join(COLUMNS[:columns])]
    for _ in range(count):
        step = work(random)
        seconds = seconds_of(step, cost) * max(0.1, 1 + random.gauss(0, noise))
        fields = (seconds, step.prefill_tokens, step.decode_tokens, step.attention_pairs, step.decode_context)
        lines.append(",".join(map(repr, fields[:columns])))
    return lines


def parts(cost: StepCost) -> tuple[float, ...]:
    return (
        cost.fixed_s,
        cost.per_prefill_token_s,
        cost.per_decode_token_s,
        cost.per_attention_pair_s,
        cost.per_decode_context_token_s,
    )


def refusal(lines: list[str]) -> str:
    with pytest.raises(CalibrationError) as error:
        fit_steps(lines, "steps.csv")
    return str(error.value)


def test_exact_steps_give_the_exact_cost() -> None:
    found = fit_steps(csv_of())
    assert parts(found.cost) == pytest.approx(parts(TRUTH), rel=1e-6)
    assert (found.steps, found.outliers, found.malformed) == (400, 0, 0)
    assert found.noise_s < 1e-6


def test_noisy_steps_give_it_within_the_errors_that_are_told() -> None:
    found = fit_steps(csv_of(2000, noise=0.05))
    assert set(found.errors) == {"fixed", "prefill_token", "decode_token", "attention_pair", "decode_context_token"}
    for coefficient, truth, error in zip(parts(found.cost), parts(TRUTH), found.errors.values(), strict=True):
        assert abs(coefficient - truth) <= 4 * error
        assert error < 0.2 * truth
    assert 0.001 < found.noise_s < 0.01


def test_the_columns_of_attention_may_be_missing() -> None:
    truth = StepCost(0.008, 40e-6, 90e-6)
    assert parts(fit_steps(csv_of(cost=truth, columns=3)).cost) == pytest.approx(parts(truth), rel=1e-6)


def test_columns_are_found_by_name_wherever_they_stand() -> None:
    lines = [
        "\ufeffStep,Decode Tokens,seconds,prefill-tokens\n",
        *(f"{n},{n % 7},{0.01 + 1e-4 * (n % 7) + 2e-5 * (n % 11)},{n % 11}\n" for n in range(100)),
        "\n",
    ]
    assert parts(fit_steps(lines).cost) == pytest.approx((0.01, 2e-5, 1e-4, 0, 0), rel=1e-6)


def test_the_order_of_the_steps_does_not_matter() -> None:
    header, *rows = csv_of(600, noise=0.05)
    assert parts(fit_steps([header, *rows[::-1]]).cost) == pytest.approx(parts(fit_steps([header, *rows]).cost))


def test_what_would_be_below_0_is_0_and_the_rest_fits_best_without_it() -> None:
    def falling(number: int) -> str:
        return f"{0.02 + 1e-5 * (number % 50) - 1e-5 * (number % 3)},{number % 50},{number % 3}"

    found = fit_steps([",".join(NEEDED), *map(falling, range(300))])
    assert found.cost.per_decode_token_s == 0
    assert "decode_token" not in found.errors
    assert found.cost.per_prefill_token_s == pytest.approx(1e-5, rel=0.02)
    assert found.cost.fixed_s == pytest.approx(0.02 - 1e-5, rel=0.001)  # the mean of what the decodes took off


def test_a_compilation_is_left_out_and_counted() -> None:
    lines = csv_of(1000, noise=0.02)
    slow = ["2.5,1024,0,524800,0", "1.5,8,3,36,900"]
    found = fit_steps([*lines, *slow])
    assert found.outliers >= 2
    assert found.steps + found.outliers == 1002
    assert parts(found.cost) == pytest.approx(parts(fit_steps(lines).cost), rel=0.02)


def test_malformed_lines_are_counted() -> None:
    lines = csv_of(400)
    lines[200] = "fast,1,2,3,4"
    lines[201] = "0.01,1"
    assert fit_steps(lines).malformed == 2


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("soon,1,1,1,1", "could not convert"),
        ("0,1,1,1,1", "a step of 0.0 seconds"),
        ("nan,1,1,1,1", "a step of nan seconds"),
        ("0.1,-1,1,1,1", "an amount below 0"),
        ("0.1,inf,1,1,1", "an amount below 0 or no finite number"),
        ("0.1,1", "has 2 fields where the header has 5"),
    ],
)
def test_too_many_malformed_lines_are_refused_with_the_first_of_them(line: str, reason: str) -> None:
    lines = csv_of(100)
    lines[3:6] = [line] * 3
    sentence = refusal(lines)
    assert "steps.csv: 3 of the first 100 lines are malformed, more than 1%" in sentence
    assert f"line 4: {reason}" in sentence


def only_prefill(random: Random) -> StepWork:
    chunk = random.randint(1, 2048)
    return StepWork(chunk, 0, chunk_pairs(random.randint(0, 8000), chunk), 0)


def one_size(random: Random) -> StepWork:
    return StepWork(2048, random.randint(0, 64), chunk_pairs(random.randint(0, 8000), 2048), 0)


def one_context(random: Random) -> StepWork:
    decodes = random.randint(0, 64)
    chunk = random.randint(1, 2048)
    return StepWork(chunk, decodes, chunk_pairs(random.randint(0, 8000), chunk), 1000 * decodes)


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        pytest.param(
            [],
            f"line 1 lacks seconds, prefill_tokens, decode_tokens; write a header such as {HEADER}",
            id="an empty file",
        ),
        pytest.param(["seconds,tokens"], "line 1 lacks prefill_tokens, decode_tokens", id="another header"),
        pytest.param(csv_of(10), "has 10 steps; measure at least 24", id="too few steps"),
        pytest.param(csv_of(work=only_prefill, columns=3), "decode_tokens hardly varies", id="never a decode"),
        pytest.param(csv_of(work=one_size, columns=3), "prefill_tokens hardly varies", id="one size of prefill"),
        pytest.param(csv_of(work=one_context), "or leave the column out", id="decodes of one context"),
        pytest.param(csv_of(400, noise=2.0), "scatter by", id="steps that follow no rule"),
    ],
)
def test_steps_that_do_not_tell_the_cost_are_refused_with_a_sentence(lines: list[str], sentence: str) -> None:
    assert sentence in refusal(lines)


def test_a_file_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST_STEPS == 1_000_000
    monkeypatch.setattr("prefleet_runtime.sim.calibrate.MOST_STEPS", 100)
    assert "has over 100 steps" in refusal(csv_of(101))


def learnt_page(steps: int = 300, noise: float = 0.02, work: Work = any_step, cost: StepCost = TRUTH) -> str:
    """What a runtime serves that has seen such steps."""
    registry, random, model = CollectorRegistry(), Random(3), StepCostModel()
    metrics = RuntimeMetrics(registry, lambda: 0.0, lambda: RuntimePolicy(generation=1), lambda: 0)
    for _ in range(steps):
        step = work(random)
        seconds = seconds_of(step, cost) * max(0.1, 1 + random.gauss(0, noise))
        model.observe(step, seconds)
        metrics.observe_step(seconds, step.prefill_tokens + step.decode_tokens)
    metrics.publish_stage(StageSnapshot(StageCounters(), model.fit()))
    return generate_latest(registry).decode()


def test_the_metrics_of_a_runtime_tell_what_it_has_learnt() -> None:
    found = cost_from_metrics(learnt_page())
    assert found.steps == 300
    for work in (StepWork(1024, 32, chunk_pairs(0, 1024), 32_000), StepWork(0, 100, 0, 100_000)):
        assert seconds_of(work, found.cost) == pytest.approx(seconds_of(work), rel=0.05)


def test_a_learnt_cost_below_0_counts_as_0() -> None:
    page = "".join(
        line if "attention_pair" not in line or line.startswith("#") else line.split(" ")[0] + " -1e-12\n"
        for line in learnt_page().splitlines(keepends=True)
    )
    assert cost_from_metrics(page).cost.per_attention_pair_s == 0


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        pytest.param("", "lacks prefleet_step_cost_seconds", id="an empty page"),
        pytest.param("<html>", "is no page of metrics", id="something else"),
        pytest.param(learnt_page(steps=10), "learnt from 10 steps, and 24 are the least", id="a young runtime"),
        pytest.param(learnt_page(work=only_prefill), "too few steps with decode", id="a prefill pod"),
        pytest.param(learnt_page(work=only_prefill, noise=0.0), "too few steps with decode", id="an exact prefill pod"),
        pytest.param(learnt_page(noise=3.0), "scatter by", id="steps that follow no rule"),
    ],
)
def test_a_fit_that_saw_too_little_is_refused_with_a_sentence(page: str, sentence: str) -> None:
    with pytest.raises(CalibrationError) as error:
        cost_from_metrics(page, "http://pod:9400/metrics")
    assert str(error.value).startswith("http://pod:9400/metrics: ")
    assert sentence in str(error.value)
