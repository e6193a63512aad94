"""The times that MindIE's TPT is told: the published formula, and its inverse."""

import pytest
from prefleet_operator.core.stage_times import StageTimes, pinned_times, times_for_gap

# Of M = 200, from the formula by hand: ceil(p r / (d (M - r))) - 1 at r = 50, 100, 150, 190, 199.
BETWEEN = (
    (StageTimes(150, 50, 200), [0, 2, 8, 56, 596]),
    (StageTimes(1000, 1, 200), [333, 999, 2999, 18999, 198999]),
    (StageTimes(1, 1000, 200), [0, 0, 0, 0, 0]),
)


@pytest.mark.parametrize(("times", "expected"), BETWEEN, ids=["MindIE's defaults", "decode first", "prefill first"])
def test_decode_steps_between_two_prefills(times: StageTimes, expected: list[int]) -> None:
    assert [times.decode_steps_between(running) for running in (50, 100, 150, 190, 199)] == expected


def test_a_full_node_and_a_decode_that_costs_nothing_never_prefill() -> None:
    assert StageTimes(150, 50, 200).decode_steps_between(200) is None
    assert StageTimes(150, 0, 200).decode_steps_between(1) is None


def prefills_by_steps(times: StageTimes) -> int:
    """The longest run of prefills, by walking the formula: one decodes, and each prefill adds one more."""
    running = 1
    while running < times.max_batch and times.prefill_ms * running <= times.decode_ms * (times.max_batch - running):
        running += 1
    return max(1, running - 1)


PAIRS = ((150, 50), (1, 1000), (1000, 1), (991, 10), (50, 150), (7, 3), (150, 0), (0, 50))


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_prefills_in_a_row_are_those_of_the_formula_step_by_step(pair: tuple[int, int]) -> None:
    for max_batch in (1, 2, 3, 40, 200):
        times = StageTimes(*pair, max_batch)
        assert times.prefills_in_a_row == max(1, min(max_batch - 1, prefills_by_steps(times)))


GAPS = (  # of a prefill of 150 ms and a decode step of 50 ms: (gap, prefills that fit)
    (200, 1),
    (349, 1),
    (350, 2),
    (1000, 6),
    (2000, 13),
)


@pytest.mark.parametrize(("gap_ms", "fit"), GAPS)
@pytest.mark.parametrize("max_batch", [40, 200, 1000])
def test_the_promised_gap_is_kept_with_the_least_ratio(gap_ms: int, fit: int, max_batch: int) -> None:
    times = times_for_gap(gap_ms, 150, 50, max_batch)
    assert times.prefills_in_a_row <= fit
    assert times.longest_gap_ms() <= gap_ms
    if (times.prefill_ms, times.decode_ms) != (150, 50):
        assert StageTimes(times.prefill_ms - 1, times.decode_ms, max_batch).prefills_in_a_row > fit


def test_the_costs_themselves_are_told_where_they_keep_the_promise() -> None:
    assert times_for_gap(10_000, 150, 50, 200) == StageTimes(150, 50, 200)
    assert times_for_gap(200, 150, 50, 4) == StageTimes(150, 50, 4)


def test_a_promise_that_no_pair_can_keep_gets_the_nearest_pair() -> None:
    assert times_for_gap(100, 150, 50, 200) == times_for_gap(200, 150, 50, 200)
    assert times_for_gap(200, 150, 50, 5000) == StageTimes(1000, 1, 5000)


PINNED = (
    ((150.0, 50.0), (150, 50)),
    ((80.0, 0.5), (160, 1)),
    ((0.5, 80.0), (1, 160)),
    ((3000.0, 1000.0), (3, 1)),
    ((0.001, 3000.0), (1, 1000)),
    ((150.0, 0.0), (150, 0)),
    ((0.5, 0.0), (1, 0)),
)


@pytest.mark.parametrize(("given", "told"), PINNED, ids=str)
def test_a_pinned_pair_is_told_in_whole_milliseconds_of_the_same_ratio(
    given: tuple[float, float], told: tuple[int, int]
) -> None:
    assert pinned_times(*given, 64) == StageTimes(*told, 64)
