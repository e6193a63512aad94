"""What a step costs, learnt while the engine runs: recursive least squares with forgetting.

    seconds = fixed + prefill_token x prefill tokens + decode_token x decode tokens
            + attention_pair x attention pairs + decode_context x context of the decodes

Attention pairs are the (query, key) pairs of the step's prefill. What the decodes look at is a term of its own:
an accelerator computes the former and reads the latter from memory, at costs that differ twentyfold
(`sim.cost_model`). Each step is one sample and old ones
lose their weight (`FORGETTING`: about the last 500 steps count), so that the fit follows a change of load or of
clock speed. A sample far off (a compilation, a pause of the machine) is taken as one of `OUTLIER` deviations.

The model says how sure it is: `predict` gives a standard deviation made of the noise of the steps and of what is
not known of the coefficients, which grows for a kind of step that was not seen, or not for long. What is not seen
is forgotten without end by the plain recursion; here its variance stops growing at that of the start.

The covariance is kept as a square root (Potter's form): rounding cannot make it negative, however exact the steps.

A step cannot cost less for doing more: coefficients below 0, which causes that always come together may yield, count
as 0 in predictions and are reported as they are. Decodes and their context nearly always come together, so it is
their sum that counts as at least 0: taken one by one, the negative half of a pair that cancels would be lost.

Left out: everything that makes real steps stairs and not lines (padding, graph sizes); it is part of the noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from operator import mul

FORGETTING = 0.998
OUTLIER = 5.0
MIN_SAMPLES = 24
"""Fewer are no model."""

TRUSTED_DEVIATION = 0.5
"""A prediction is trusted if its standard deviation is at most this part of it."""

TERMS = ("fixed", "prefill_token", "decode_token", "attention_pair", "decode_context_token")
_SCALE = (1.0, 1e-3, 1e-2, 1e-6, 1e-5)
"""Units in which a usual step's features are near 1: the recursion is then well conditioned."""

_START_VARIANCE = 1e4
_GROWTH = 1 / sqrt(FORGETTING)


@dataclass(frozen=True, slots=True)
class StepWork:
    """What a step computes: prefill tokens, decode tokens, (query, key) pairs of the former, keys of the latter."""

    prefill_tokens: int = 0
    decode_tokens: int = 0
    attention_pairs: float = 0.0
    decode_context: int = 0


@dataclass(frozen=True, slots=True)
class Prediction:
    """Seconds of a step, the standard deviation of that, and whether there is reason to believe it."""

    seconds: float
    deviation: float
    trusted: bool

    @property
    def upper(self) -> float:
        """Seconds that the step will hardly exceed: two deviations more."""
        return self.seconds + 2 * self.deviation


@dataclass(frozen=True, slots=True)
class Fit:
    """Coefficients and their standard errors by term (seconds per unit), the noise of a step, samples so far."""

    coefficients: Sequence[float] = (0.0,) * len(TERMS)
    errors: Sequence[float] = (0.0,) * len(TERMS)
    noise_s: float = 0.0
    samples: int = 0


def chunk_pairs(context: int, tokens: int) -> float:
    """(query, key) pairs of a causal chunk of `tokens` that follows `context` computed ones."""
    return tokens * context + tokens * (tokens + 1) / 2


class StepCostModel:
    """The recursion; see the module. 5 x 5 numbers, some microseconds a step."""

    __slots__ = ("_root", "_theta", "_variance", "samples")

    def __init__(self) -> None:
        size = range(len(TERMS))
        self.samples = 0
        self._theta = [0.0 for _ in size]
        self._root = [[sqrt(_START_VARIANCE) if i == j else 0.0 for j in size] for i in size]
        self._variance = 0.0

    def observe(self, work: StepWork, seconds: float) -> None:
        """A step that computed `work` lasted `seconds`."""
        x = _features(work)
        projected = self._project(x)
        spread = _dot(projected, projected)
        error = self._clipped(seconds - _dot(self._theta, x), spread)
        self.samples += 1
        weight = max(1 / self.samples, 1 - FORGETTING)
        self._variance += weight * (error * error / (1 + spread / FORGETTING) - self._variance)
        gain = [_dot(row, projected) for row in self._root]
        total = FORGETTING + spread
        self._theta = [theta + value * error / total for theta, value in zip(self._theta, gain, strict=True)]
        self._update(gain, projected, 1 / (total + sqrt(FORGETTING * total)))

    def predict(self, work: StepWork) -> Prediction:
        """What a step of `work` will cost."""
        x = _features(work)
        fixed, token, decode, pair, key = (theta * value for theta, value in zip(self._theta, x, strict=True))
        seconds = max(0.0, fixed) + max(0.0, token) + max(0.0, pair) + max(0.0, decode + key)
        projected = self._project(x)
        deviation = sqrt(self._variance * (1 + _dot(projected, projected)))
        trusted = self.samples >= MIN_SAMPLES and seconds > 0 and deviation <= TRUSTED_DEVIATION * seconds
        return Prediction(seconds, deviation, trusted)

    def fit(self) -> Fit:
        """The present coefficients, in seconds per unit."""
        variances = [self._variance * _dot(row, row) for row in self._root]
        return Fit(
            coefficients=[theta * scale for theta, scale in zip(self._theta, _SCALE, strict=True)],
            errors=[sqrt(variance) * scale for variance, scale in zip(variances, _SCALE, strict=True)],
            noise_s=sqrt(self._variance),
            samples=self.samples,
        )

    def _clipped(self, error: float, spread: float) -> float:
        if self.samples < MIN_SAMPLES:
            return error
        limit = OUTLIER * sqrt(self._variance * (1 + spread)) + 1e-9
        return max(-limit, min(limit, error))

    def _project(self, x: Sequence[float]) -> list[float]:
        return [_dot(column, x) for column in zip(*self._root, strict=True)]

    def _update(self, gain: Sequence[float], projected: Sequence[float], factor: float) -> None:
        """Take from the covariance what was learnt, then forget a little, each direction up to where it began."""
        for row, value in zip(self._root, gain, strict=True):
            row[:] = [old - factor * value * along for old, along in zip(row, projected, strict=True)]
            if _dot(row, row) < _START_VARIANCE:
                row[:] = [old * _GROWTH for old in row]


def _features(work: StepWork) -> tuple[float, ...]:
    raw = (1.0, work.prefill_tokens, work.decode_tokens, work.attention_pairs, work.decode_context)
    return tuple(value * scale for value, scale in zip(raw, _SCALE, strict=True))


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    product: float = sum(map(mul, left, right))
    return product
