"""Synthetic mixes: exactly repeatable, as long, as fast and as mixed as asked, and clear about what they refuse."""

from __future__ import annotations

import statistics
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prefleet_runtime.sim.traces.base import TraceError, TraceRequest
from prefleet_runtime.sim.traces.mixes import MIXES, MixTrace, parse_mix


def mix(spec: str) -> list[TraceRequest]:
    return list(parse_mix(spec))


def arrivals_in(requests: list[TraceRequest], width_s: float) -> list[int]:
    counts = [0] * (int(requests[-1].at_s / width_s) + 1)
    for request in requests:
        counts[int(request.at_s / width_s)] += 1
    return counts[:-1]


def dispersion(counts: list[int]) -> float:
    """Variance over mean: 1 for a Poisson process."""
    return statistics.variance(counts) / statistics.mean(counts)


@pytest.mark.parametrize("name", MIXES)
def test_every_mix_is_a_sound_trace(name: str) -> None:
    requests = mix(f"{name}:requests=2000")
    assert len(requests) == 2000
    assert requests[0].at_s == 0
    assert all(before.at_s <= after.at_s for before, after in pairwise(requests))
    assert all(request.prompt_tokens >= 1 and request.output_tokens >= 1 for request in requests)


@pytest.mark.parametrize("name", MIXES)
def test_the_same_seed_gives_the_same_requests_and_another_does_not(name: str) -> None:
    trace = MixTrace(name, parse_mix(f"{name}:seed=7,requests=200"))
    assert list(trace) == list(trace) == mix(f"{name}:requests=200,seed=7")
    assert list(trace) != mix(f"{name}:requests=200,seed=8")


def test_a_seed_means_the_same_on_every_machine() -> None:
    requests = mix("bimodal:seed=7,requests=4")
    assert [(request.prompt_tokens, request.output_tokens) for request in requests] == [
        (316, 328),
        (388, 175),
        (8100, 87),
        (74, 380),
    ]
    assert [request.at_s for request in requests] == pytest.approx(
        [0.0, 0.106361961, 0.283733004, 0.459218926], abs=1e-8
    )


def test_more_requests_continue_the_same_trace() -> None:
    assert mix("bursty:requests=500")[:100] == mix("bursty:requests=100")


def test_other_arrivals_leave_the_lengths_alone() -> None:
    def lengths(spec: str) -> list[tuple[int, int]]:
        return [(request.prompt_tokens, request.output_tokens) for request in mix(spec)]

    assert lengths("bimodal:requests=300") == lengths("bursty:requests=300") == lengths("diurnal:requests=300,rate=9")


@pytest.mark.parametrize(
    ("spec", "tolerance"),
    # The mean of n exponential gaps is off by 1/sqrt(n) = 0.7% at n = 20,000; bursts and days add their own.
    [
        ("bimodal", 0.03),
        ("heavy-tail", 0.03),
        ("uniform", 0.03),
        ("bursty:burst_s=1,calm_s=3", 0.08),
        ("diurnal", 0.05),
    ],
)
def test_the_mean_rate_is_the_one_asked_for(spec: str, tolerance: float) -> None:
    requests = mix(f"{spec}{',' if ':' in spec else ':'}requests=20000,rate=10")
    assert len(requests) / requests[-1].at_s == pytest.approx(10, rel=tolerance)


def test_a_quarter_of_the_bimodal_mix_is_long() -> None:
    lengths = [request.prompt_tokens for request in mix("bimodal")]
    assert sum(length > 1_100 for length in lengths) / len(lengths) == pytest.approx(0.25, abs=0.02)
    assert statistics.median(length for length in lengths if length <= 1_100) == pytest.approx(200, rel=0.05)
    assert statistics.median(length for length in lengths if length > 1_100) == pytest.approx(6_000, rel=0.05)


def test_the_heavy_tail_follows_its_power_law_within_its_bounds() -> None:
    lengths = [request.prompt_tokens for request in mix("heavy-tail:least=100,most=50000,alpha=1")]
    assert min(lengths) >= 100
    assert max(lengths) <= 50_000
    # Pareto: the share above x is least/x, a little less for the cut (100/50,000).
    assert sum(length >= 1_000 for length in lengths) / len(lengths) == pytest.approx(0.098, abs=0.01)


def test_uniform_lengths_have_neither_centre_nor_valley() -> None:
    lengths = [request.prompt_tokens for request in mix("uniform:least=100,most=200")]
    assert (min(lengths), max(lengths)) == (100, 200)
    assert statistics.mean(lengths) == pytest.approx(150, rel=0.02)


def test_poisson_arrivals_have_a_dispersion_of_one_and_bursts_a_high_one() -> None:
    assert dispersion(arrivals_in(mix("bimodal"), 5)) == pytest.approx(1, abs=0.25)
    assert dispersion(arrivals_in(mix("bursty"), 5)) > 3


def test_the_day_of_the_diurnal_mix_has_a_busy_and_a_quiet_half() -> None:
    requests = mix("diurnal:requests=20000,swing=0.8,period_s=1000")
    busy = sum(request.at_s % 1_000 < 500 for request in requests)
    # The busy half's mean rate is 1 + 0.8 x 2/pi = 1.51 times the mean: three quarters of the requests.
    assert busy / len(requests) == pytest.approx(0.755, abs=0.03)


def test_the_trace_knows_its_length_and_its_position() -> None:
    trace = MixTrace("uniform", parse_mix("uniform:requests=4"))
    assert (trace.requests, trace.fraction_read, trace.block_tokens, trace.bad.count) == (4, 0.0, 0, 0)
    requests = iter(trace)
    next(requests)
    assert trace.fraction_read == 0.25
    assert len(list(requests)) == 3
    assert trace.fraction_read == 1.0


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("trimodal", "no mix 'trimodal'; take one of bimodal, heavy-tail, uniform, bursty, diurnal"),
        ("uniform:depth=3", "no parameter 'depth'; it has seed, requests, rate, output, least, most"),
        ("uniform:seed", "seed is ''; give a whole number"),
        ("uniform:seed=x", "seed is 'x'; give a whole number"),
        ("uniform:requests=0", "requests is '0'; give a whole number from 1 to"),
        ("uniform:rate=nan", "rate is 'nan'; give a number from 1e-06"),
        ("uniform:rate=-1", "rate is '-1'; give a number"),
        ("uniform:least=9,most=3", "least is 9 and most is 3; give a least of at most 3"),
    ],
)
def test_what_is_wrong_with_a_mix_is_said_with_what_exists(spec: str, message: str) -> None:
    with pytest.raises(TraceError) as refused:
        parse_mix(spec)
    assert message in str(refused.value)
    assert str(refused.value).startswith(f"{spec}: ")


@given(st.sampled_from(sorted(MIXES)), st.text())
def test_any_text_as_parameters_makes_a_mix_or_one_sentence(name: str, parameters: str) -> None:
    spec = f"{name}:{parameters}"
    try:
        parse_mix(spec)
    except TraceError as refused:
        complaint = str(refused)
    else:
        complaint = ""
    assert "\n" not in complaint.removeprefix(spec)
