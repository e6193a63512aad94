"""Synthetic mixes: requests drawn from a seed, for when there is no trace.

A mix is a frozen dataclass: its fields are its parameters, with their bounds; `seed`, `requests` and `rate` (requests a
second on average) are common to all. Lengths and arrivals come from generators of their own, so that the
lengths of a seed stay the same when its arrivals are changed, and no draw depends on how many were made elsewhere.
The same parameters give the same requests on every machine.

Outputs are lognormal around `output` tokens in every mix. Left out: prefixes that requests share, sessions, and
lengths that depend on the time.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import Field, dataclass, field, fields
from itertools import islice
from random import Random
from typing import Any

from .base import MAX_TOKENS, Trace, TraceError, TraceRequest

OUTPUT_SPREAD = 0.7
MOST_OUTPUT = 8192


def _bounded(default: float, least: float, most: float) -> Any:
    """A parameter; whole numbers where the default is one."""
    return field(default=default, metadata={"least": least, "most": most})


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix(ABC):
    """`seed`; `requests` in all; `rate` in requests a second on average; `output`: the median output in tokens."""

    seed: int = _bounded(0, 0, 2**63)
    requests: int = _bounded(10_000, 1, 10**9)
    rate: float = _bounded(4.0, 1e-6, 1e6)
    output: int = _bounded(128, 1, MOST_OUTPUT)

    def __iter__(self) -> Iterator[TraceRequest]:
        lengths, outputs, times = (Random(f"{self.seed} {what}") for what in ("prompts", "outputs", "arrivals"))
        first_s: float | None = None
        for at_s in islice(self.arrivals(times), self.requests):
            first_s = at_s if first_s is None else first_s
            output = _lognormal(outputs, self.output, OUTPUT_SPREAD, MOST_OUTPUT)
            yield TraceRequest(at_s - first_s, self.prompt(lengths), output)

    def arrivals(self, rng: Random) -> Iterator[float]:
        """Seconds of the arrivals, without end: a Poisson process unless a mix says otherwise."""
        at_s = 0.0
        while True:
            at_s += rng.expovariate(self.rate)
            yield at_s

    @abstractmethod
    def prompt(self, rng: Random) -> int:
        """One prompt's length in tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bimodal(Mix):
    """Two kinds of prompts: lognormal around `short` and around `long` tokens, the latter a share of `long_share`.

    `spread` is the standard deviation of a kind's logarithm: at 0.5 two thirds lie within a factor of 1.65.
    """

    short: int = _bounded(200, 1, MAX_TOKENS)
    long: int = _bounded(6_000, 1, MAX_TOKENS)
    long_share: float = _bounded(0.25, 0, 1)
    spread: float = _bounded(0.5, 0, 3)

    def prompt(self, rng: Random) -> int:
        median = self.long if rng.random() < self.long_share else self.short
        return _lognormal(rng, median, self.spread, MAX_TOKENS)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeavyTail(Mix):
    """One kind of prompts whose tail is a power law: Pareto with exponent `alpha`, cut to `least` to `most` tokens.

    At an `alpha` of 1 each tenfold length carries the same work; below it most work is in the longest prompts.
    """

    least: int = _bounded(200, 1, MAX_TOKENS)
    most: int = _bounded(100_000, 1, MAX_TOKENS)
    alpha: float = _bounded(1.1, 0.1, 10)

    def prompt(self, rng: Random) -> int:
        beyond = (self.least / self.most) ** self.alpha
        length: float = self.least * (1 - rng.random() * (1 - beyond)) ** (-1 / self.alpha)
        return min(self.most, math.floor(length))


@dataclass(frozen=True, slots=True, kw_only=True)
class Uniform(Mix):
    """Prompts of `least` to `most` tokens, each length as likely: no valley that parts short from long."""

    least: int = _bounded(1, 1, MAX_TOKENS)
    most: int = _bounded(8_192, 1, MAX_TOKENS)

    def prompt(self, rng: Random) -> int:
        return rng.randint(self.least, self.most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bursty(Bimodal):
    """The prompts of `bimodal`, whose arrivals are a Poisson process with a rate that jumps between two values.

    Bursts last `burst_s` and calm spells `calm_s` seconds on average (exponential: a Markov-modulated Poisson process);
    a burst's rate is `factor` times that of a calm spell. The mean over both is `rate`.
    """

    burst_s: float = _bounded(10.0, 1e-3, 1e6)
    calm_s: float = _bounded(30.0, 1e-3, 1e6)
    factor: float = _bounded(8.0, 1, 1e6)

    def arrivals(self, rng: Random) -> Iterator[float]:
        calm_rate = self.rate * (self.burst_s + self.calm_s) / (self.factor * self.burst_s + self.calm_s)
        spells = ((self.calm_s, calm_rate), (self.burst_s, self.factor * calm_rate))
        start_s, number = 0.0, 0
        while True:
            mean_s, rate = spells[number % 2]
            end_s = start_s + rng.expovariate(1 / mean_s)
            # What is left of a gap at the end of a spell may be drawn anew: an exponential gap has no memory.
            at_s = start_s + rng.expovariate(rate)
            while at_s < end_s:
                yield at_s
                at_s += rng.expovariate(rate)
            start_s, number = end_s, number + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Diurnal(Bimodal):
    """The prompts of `bimodal`, with a rate that swings like a day's: rate x (1 + swing x sin(2 pi t / period_s)).

    The day is shortened to 1,000 seconds, so that the default trace holds two and a half of them.
    """

    swing: float = _bounded(0.8, 0, 1)
    period_s: float = _bounded(1_000.0, 1, 1e7)

    def arrivals(self, rng: Random) -> Iterator[float]:
        # Thinning (Lewis and Shedler): draw at the highest rate, keep each with the share that its moment has of it.
        highest = self.rate * (1 + self.swing)
        at_s = 0.0
        while True:
            at_s += rng.expovariate(highest)
            rate = self.rate * (1 + self.swing * math.sin(2 * math.pi * at_s / self.period_s))
            if rng.random() * highest < rate:
                yield at_s


MIXES: dict[str, type[Mix]] = {
    "bimodal": Bimodal,
    "heavy-tail": HeavyTail,
    "uniform": Uniform,
    "bursty": Bursty,
    "diurnal": Diurnal,
}


class MixTrace(Trace):
    """A mix as a trace."""

    def __init__(self, spec: str, mix: Mix) -> None:
        super().__init__(spec, "synthetic mix", 0, mix.requests)
        self.mix = mix
        self._drawn = 0

    @property
    def fraction_read(self) -> float:
        return self._drawn / self.mix.requests

    def __iter__(self) -> Iterator[TraceRequest]:
        self._drawn = 0
        return self._requests()

    def _requests(self) -> Iterator[TraceRequest]:
        for request in self.mix:
            self._drawn += 1
            yield request


def is_mix(spec: str) -> bool:
    return spec.partition(":")[0] in MIXES


def parse_mix(spec: str) -> Mix:
    """`NAME` or `NAME:parameter=value,...`.

    Raises:
        TraceError: no such mix or parameter (the message lists those that exist), or a value out of bounds.
    """
    name, _, text = spec.partition(":")
    if name not in MIXES:
        raise TraceError(f"{spec}: there is no mix {name!r}; take one of {', '.join(MIXES)}")
    known = {parameter.name: parameter for parameter in fields(MIXES[name])}
    values: dict[str, Any] = {}
    for item in filter(None, text.split(",")):
        key, _, value = item.partition("=")
        if key not in known:
            raise TraceError(f"{spec}: {name} has no parameter {key!r}; it has {', '.join(known)}")
        values[key] = _value(spec, known[key], value)
    mix = MIXES[name](**values)
    if isinstance(mix, HeavyTail | Uniform) and mix.least > mix.most:
        raise TraceError(f"{spec}: least is {mix.least} and most is {mix.most}; give a least of at most {mix.most}")
    return mix


def _value(spec: str, parameter: Field[Any], text: str) -> float:
    least, most = parameter.metadata["least"], parameter.metadata["most"]
    whole = isinstance(parameter.default, int)
    try:
        value = int(text) if whole else float(text)
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        kind = "a whole number" if whole else "a number"
        raise TraceError(f"{spec}: {parameter.name} is {text!r}; give {kind} from {least} to {most}")
    return value


def _lognormal(rng: Random, median: int, spread: float, most: int) -> int:
    return max(1, min(most, round(median * math.exp(spread * rng.gauss(0.0, 1.0)))))
