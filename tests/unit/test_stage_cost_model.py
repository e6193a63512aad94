"""The learnt step cost: it finds the truth, follows its changes, and knows when it does not know."""

from __future__ import annotations

from random import Random

import pytest
from prefleet_runtime.stage import StepCostModel, StepWork
from prefleet_runtime.stage.cost_model import MIN_SAMPLES, chunk_pairs

TRUTH = (0.008, 40e-6, 90e-6, 3e-9, 80e-9)


def seconds_of(work: StepWork, truth: tuple[float, ...] = TRUTH) -> float:
    fixed, prefill, decode, pair, key = truth
    tokens = prefill * work.prefill_tokens + decode * work.decode_tokens
    return fixed + tokens + pair * work.attention_pairs + key * work.decode_context


def any_step(random: Random) -> StepWork:
    prefill = random.choice([0, 0, random.randint(1, 2048)])
    decodes = random.randint(0, 128)
    return StepWork(prefill, decodes, chunk_pairs(random.randint(0, 8000), prefill), decodes * random.randint(50, 4000))


def learn(model: StepCostModel, random: Random, steps: int, noise: float = 0.0, slower: float = 1.0) -> None:
    for _ in range(steps):
        work = any_step(random)
        model.observe(work, slower * seconds_of(work) * (1 + random.gauss(0, noise)))


def test_exact_steps_give_the_exact_cost() -> None:
    model = StepCostModel()
    learn(model, Random(1), 200)
    assert model.fit().coefficients == pytest.approx(TRUTH, rel=0.02)
    assert model.fit().samples == 200


@pytest.mark.parametrize("seed", range(5))
def test_noisy_steps_give_it_within_the_errors_that_the_model_states(seed: int) -> None:
    model = StepCostModel()
    learn(model, Random(seed), 600, noise=0.05)
    fit = model.fit()
    for coefficient, error, truth in zip(fit.coefficients, fit.errors, TRUTH, strict=True):
        assert abs(coefficient - truth) <= 4 * error
        assert error < 0.5 * truth
    work = StepWork(1024, 64, chunk_pairs(0, 1024), 64_000)
    assert model.predict(work).trusted
    assert model.predict(work).seconds == pytest.approx(seconds_of(work), rel=0.05)


@pytest.mark.parametrize("seed", range(3))
def test_predictions_stay_under_their_upper_bound_nearly_always(seed: int) -> None:
    random, model = Random(seed), StepCostModel()
    learn(model, random, 300, noise=0.05)
    over = 0
    for _ in range(500):
        work = any_step(random)
        over += seconds_of(work) * (1 + random.gauss(0, 0.05)) > model.predict(work).upper
    assert over <= 0.12 * 500


def test_it_follows_a_machine_that_becomes_slower() -> None:
    random, model = Random(2), StepCostModel()
    learn(model, random, 500, noise=0.03)
    learn(model, random, 1500, noise=0.03, slower=2.0)
    work = StepWork(1024, 64, chunk_pairs(0, 1024), 64_000)
    assert model.predict(work).seconds == pytest.approx(2 * seconds_of(work), rel=0.1)


def test_one_step_that_took_for_ever_does_not_turn_it() -> None:
    random, model = Random(3), StepCostModel()
    learn(model, random, 300, noise=0.03)
    work = StepWork(1024, 64, chunk_pairs(0, 1024), 64_000)
    before = model.predict(work).seconds
    model.observe(work, 30.0)
    assert model.predict(work).seconds == pytest.approx(before, rel=0.1)


@pytest.mark.parametrize("seed", range(3))
def test_decodes_of_one_length_are_predicted_though_their_two_costs_cannot_be_told_apart(seed: int) -> None:
    random, model = Random(seed), StepCostModel()
    for _ in range(400):
        decodes = random.randint(1, 64)
        work = StepWork(random.choice([0, random.randint(1, 2048)]), decodes, 0.0, 500 * decodes)
        model.observe(work, seconds_of(work) * (1 + random.gauss(0, 0.1)))
    work = StepWork(256, 20, 0.0, 10_000)
    assert model.predict(work).seconds == pytest.approx(seconds_of(work), rel=0.1)


def test_it_is_not_trusted_at_first_nor_about_what_it_never_saw() -> None:
    model = StepCostModel()
    decode = StepWork(0, 8, 0, 4000)
    assert not model.predict(decode).trusted
    random = Random(4)
    for _ in range(10 * MIN_SAMPLES):
        model.observe(decode, seconds_of(decode) * (1 + random.gauss(0, 0.02)))
    assert model.predict(decode).trusted
    assert not model.predict(StepWork(2048, 8, chunk_pairs(0, 2048), 4000)).trusted


def test_a_hundred_thousand_equal_steps_overflow_nothing() -> None:
    model = StepCostModel()
    decode = StepWork(0, 8, 0, 4000)
    for _ in range(100_000):
        model.observe(decode, 0.01)
    assert model.predict(decode).seconds == pytest.approx(0.01, rel=0.01)
    assert all(abs(error) < 1 for error in model.fit().errors)
