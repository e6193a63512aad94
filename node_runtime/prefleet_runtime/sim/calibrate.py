"""The cost of a step from what was measured: a CSV of steps, or the metrics of a running runtime.

    steps of a CSV -> least squares, no coefficient below 0 -> leave out what is far off -> again -> `Calibration`

All steps of a file count alike, in whatever order they come. The runtime's own fit (`stage.StepCostModel`) forgets,
since it has to follow a running engine; of a file it would keep the last 500 steps. Steps further off than `OUTLIER`
deviations (a compilation, a pause of the machine) are left out and counted.

A term of which the steps tell nothing is refused, never guessed: one that hardly varies, or only together with others.

Left out: that real steps are stairs and not lines; it is part of the noise, which is reported.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from prefleet_runtime.sim import least_squares
from prefleet_runtime.sim.cost_model import StepCost
from prefleet_runtime.sim.traces.base import BadLines, TraceError
from prefleet_runtime.sim.traces.csv_lines import fields_of, normal_names
from prefleet_runtime.stage import TERMS
from prefleet_runtime.stage.cost_model import MIN_SAMPLES, OUTLIER, TRUSTED_DEVIATION

NEEDED = ("seconds", "prefill_tokens", "decode_tokens")
OPTIONAL = ("attention_pairs", "decode_context")
HEADER = ",".join((*NEEDED, *OPTIONAL))
"""What a CSV of steps begins with; the last two columns may be missing."""

MOST_STEPS = 1_000_000
ROUNDS = 5

_TERM_OF = dict(zip((*NEEDED, *OPTIONAL), TERMS, strict=True))
"""The column `seconds` stands where the steps' constant 1 will, which is of the fixed cost."""

_COST = "prefleet_step_cost_seconds"
_ERROR = "prefleet_step_cost_error_seconds"
_NOISE = "prefleet_step_cost_noise_seconds"
_SAMPLES = "prefleet_step_cost_samples"

Step = tuple[float, ...]
"""Seconds, 1 for the fixed cost, and the columns that there are."""


class CalibrationError(ValueError):
    """What was measured does not tell what a step costs: one sentence with the fix."""


@dataclass(frozen=True)
class Calibration:
    """The cost, and how well it is known.

    `errors`: standard errors by term, of those that are not held at 0; `noise_s`: the standard deviation of a step
    around its cost; `steps` that were used, `outliers` that were not, and `malformed` lines.
    """

    cost: StepCost
    errors: Mapping[str, float]
    noise_s: float
    steps: int
    outliers: int = 0
    malformed: int = 0


def fit_steps(lines: Iterable[str], where: str = "the steps") -> Calibration:
    """The cost that a CSV of steps shows, its columns found by their names (`HEADER`).

    Raises:
        CalibrationError: it is no such CSV, over 1% of it is malformed, or it does not tell the cost.
    """
    bad = BadLines(where)
    rest = iter(lines)
    names = _columns(next(rest, ""), where)
    present = [name for name in _TERM_OF if name in names]
    try:
        measured = list(_steps(rest, names, present, bad))
        bad.judge()
    except TraceError as error:
        raise CalibrationError(str(error)) from None
    steps, fit = measured, _fitted(measured, present, where)
    for _ in range(ROUNDS):
        near = [step for step in steps if abs(fit.residual(step)) <= OUTLIER * fit.noise + 1e-9]
        if len(near) == len(steps):
            break
        steps, fit = near, _fitted(near, present, where)
    _refuse_scatter(fit.noise, sum(step[0] for step in steps) / len(steps), where)
    terms = [_TERM_OF[name] for name in present]
    return Calibration(
        cost=_cost(dict(zip(terms, fit.coefficients, strict=True)), where),
        errors={term: error for term, error in zip(terms, fit.errors, strict=True) if error is not None},
        noise_s=fit.noise,
        steps=len(steps),
        outliers=len(measured) - len(steps),
        malformed=bad.count,
    )


def cost_from_metrics(page: str, where: str = "the metrics") -> Calibration:
    """The cost that a runtime has learnt, from its /metrics page.

    Raises:
        CalibrationError: it is no such page, or the fit has seen too little to be believed.
    """
    series = _series(page, where)
    costs = {term: series[_COST, term] for term in TERMS if (_COST, term) in series}
    if len(costs) < len(TERMS):
        raise CalibrationError(f"{where}: lacks {_COST}; name the /metrics page of a Prefleet runtime")
    samples = int(series.get((_SAMPLES, ""), 0))
    if samples < MIN_SAMPLES:
        raise CalibrationError(
            f"{where}: the cost was learnt from {samples} steps, and {MIN_SAMPLES} are the least; ask after some load"
        )
    noise_s = series.get((_NOISE, ""), 0.0)
    errors = {term: series.get((_ERROR, term), 0.0) for term in TERMS}
    mean_s, tokens = _mean(series, "prefleet_step_seconds"), _mean(series, "prefleet_step_tokens")
    _refuse_scatter(noise_s, mean_s, where)
    for kind, terms in (("prefill", ("prefill_token",)), ("decode", ("decode_token", "decode_context_token"))):
        unseen = all(costs[term] <= 0 for term in terms)
        if unseen or errors[terms[0]] * tokens > TRUSTED_DEVIATION * mean_s:
            raise CalibrationError(
                f"{where}: too few steps with {kind} of different sizes were seen to tell its cost; ask a runtime that"
                " prefills and decodes, after some load"
            )
    return Calibration(_cost(costs, where), errors, noise_s, samples)


def _cost(coefficients: Mapping[str, float], where: str) -> StepCost:
    """What is below 0 counts as 0, as it does in predictions."""
    try:
        return StepCost(*(max(0.0, coefficients.get(term, 0.0)) for term in TERMS))
    except ValueError as error:
        raise CalibrationError(f"{where}: {error}") from None


def _refuse_scatter(noise_s: float, mean_s: float, where: str) -> None:
    if not noise_s <= TRUSTED_DEVIATION * mean_s:
        raise CalibrationError(
            f"{where}: steps of {mean_s:.3g} s scatter by {noise_s:.3g} s around a linear cost; measure a machine that"
            " does nothing else, after its warm-up"
        )


# A running runtime.


def _series(page: str, where: str) -> Mapping[tuple[str, str], float]:
    """Values by name and term; those without a term have the empty one."""
    try:
        return {
            (sample.name, sample.labels.get("term", "")): sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name.startswith("prefleet_step")
        }
    except ValueError as error:
        raise CalibrationError(f"{where}: is no page of metrics ({error}); name the /metrics of a runtime") from None


def _mean(series: Mapping[tuple[str, str], float], histogram: str) -> float:
    return series.get((f"{histogram}_sum", ""), 0.0) / max(1.0, series.get((f"{histogram}_count", ""), 0.0))


# A CSV of steps.


def _columns(header: str, where: str) -> list[str]:
    names = normal_names(header.removeprefix("\ufeff").strip())
    missing = [name for name in NEEDED if name not in names]
    if missing:
        raise CalibrationError(f"{where}: line 1 lacks {', '.join(missing)}; write a header such as {HEADER}")
    return names


def _steps(lines: Iterator[str], names: Sequence[str], present: Sequence[str], bad: BadLines) -> Iterator[Step]:
    places = [names.index(name) for name in present]
    for number, line in enumerate(lines, 2):
        if not line.strip():
            continue
        bad.read += 1
        if bad.read > MOST_STEPS:
            raise CalibrationError(f"{bad.where}: has over {MOST_STEPS:,} steps; some thousands are enough")
        try:
            step = _step(fields_of(line.strip()), len(names), places)
        except ValueError as error:
            bad.add(number, str(error))
        else:
            yield step


def _step(fields: Sequence[str], width: int, places: Sequence[int]) -> Step:
    if len(fields) != width:
        raise ValueError(f"has {len(fields)} fields where the header has {width}")
    seconds, *work = (float(fields[place]) for place in places)
    if not 0 < seconds < math.inf:
        raise ValueError(f"a step of {seconds} seconds")
    if not all(0 <= amount < math.inf for amount in work):
        raise ValueError("an amount below 0 or no finite number")
    return (seconds, 1.0, *work)


def _fitted(steps: Sequence[Step], present: Sequence[str], where: str) -> least_squares.Fit:
    if len(steps) < MIN_SAMPLES:
        raise CalibrationError(f"{where}: has {len(steps)} steps; measure at least {MIN_SAMPLES}")
    try:
        return least_squares.fit(steps)
    except least_squares.UndeterminedError as error:
        name = present[error.column]
        way_out = ", or leave the column out" if name in OPTIONAL else ""
        raise CalibrationError(
            f"{where}: {name} hardly varies, or only together with the columns before it, so its cost cannot be told;"
            f" measure steps of more kinds{way_out}"
        ) from None
