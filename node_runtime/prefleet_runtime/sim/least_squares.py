"""Least squares with no coefficient below 0, for a handful of columns.

The best coefficients of at least 0 are the plain least squares over some of the columns, the others being 0 (at the
optimum those bind, and are as if left out). With few columns all choices are tried, which is exact and has no
iterations that could fail to end. Columns are scaled to length 1, so that units do not matter.

Left out: many columns (the work doubles with each), and a measure of how good the choice of columns is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from operator import mul

LEAST_OWN_PART = 1e-6
"""A column of which less than this is its own, and not a mixture of the columns before it, has no coefficient."""

Matrix = Sequence[Sequence[float]]


class UndeterminedError(ValueError):
    """The rows do not tell the coefficient of `column`, counted from 0."""

    def __init__(self, column: int) -> None:
        super().__init__(f"column {column} is a mixture of those before it")
        self.column = column


@dataclass(frozen=True)
class Fit:
    """Coefficients and their standard errors (None of one that is held at 0), and the deviation of a row from them."""

    coefficients: tuple[float, ...]
    errors: tuple[float | None, ...]
    noise: float

    def residual(self, row: Sequence[float]) -> float:
        fitted: float = sum(map(mul, self.coefficients, row[1:]))
        return row[0] - fitted


@dataclass(frozen=True)
class _Choice:
    """The plain least squares over some columns."""

    columns: tuple[int, ...]
    coefficients: tuple[float, ...]
    inverse: Matrix
    unexplained: float


def fit(rows: Sequence[Sequence[float]]) -> Fit:
    """Of rows of a target and its columns.

    Raises:
        UndeterminedError: a column hardly varies on its own. At least as many rows as columns have to be given.
    """
    width = len(rows[0])
    products = [[sum(row[i] * row[j] for row in rows) for j in range(width)] for i in range(width)]
    lengths = [math.sqrt(products[i][i]) or 1.0 for i in range(width)]
    cosines = [[products[i][j] / (lengths[i] * lengths[j]) for j in range(width)] for i in range(width)]
    columns = range(1, width)
    _inverse([[cosines[i][j] for j in columns] for i in columns])
    some = chain.from_iterable(combinations(columns, size) for size in columns)
    best = min(
        (choice for choice in (_plain(cosines, each) for each in some) if min(choice.coefficients) >= 0),
        key=lambda choice: choice.unexplained,
    )
    variance = max(0.0, best.unexplained) / max(1, len(rows) - len(best.columns))
    scales = {column: lengths[0] / lengths[column] for column in best.columns}
    values = {c: value * scales[c] for c, value in zip(best.columns, best.coefficients, strict=True)}
    errors = {c: math.sqrt(variance * best.inverse[place][place]) * scales[c] for place, c in enumerate(best.columns)}
    return Fit(
        tuple(values.get(column, 0.0) for column in columns),
        tuple(errors.get(column) for column in columns),
        math.sqrt(variance) * lengths[0],
    )


def _plain(cosines: Matrix, columns: tuple[int, ...]) -> _Choice:
    inverse = _inverse([[cosines[i][j] for j in columns] for i in columns])
    moments = [cosines[0][column] for column in columns]
    coefficients = tuple(sum(map(mul, row, moments)) for row in inverse)
    return _Choice(columns, coefficients, inverse, 1.0 - sum(map(mul, coefficients, moments)))


def _inverse(matrix: Matrix) -> Matrix:
    """Of a symmetric matrix with a diagonal of 1, by elimination: each pivot is the part that is a column's own."""
    size = len(matrix)
    rows = [[*row, *(float(i == j) for j in range(size))] for i, row in enumerate(matrix)]
    for column in range(size):
        pivot = rows[column][column]
        if pivot < LEAST_OWN_PART:
            raise UndeterminedError(column)
        rows[column] = [value / pivot for value in rows[column]]
        for i in range(size):
            factor = rows[i][column]
            if i != column and factor:
                rows[i] = [value - factor * along for value, along in zip(rows[i], rows[column], strict=True)]
    return [row[size:] for row in rows]
