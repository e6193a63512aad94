"""How much of the prefill work aged-long requests may take while short ones wait, and when that is degradation.

Under saturation every long request is aged, and the plain rule (`share` 1: aged-longs always first) turns
short-first into long-first. So the share s is kept as a debt in tokens, moved by dispatches alone:

    + (1 - s) x tokens   for an aged dispatch while a short waits
    - s x tokens         for a short dispatch, whether or not an aged-long waits; never below 0
    0                    once no short waits

and an aged-long may go ahead of waiting shorts while the debt is 0. With t_a and t_s tokens dispatched the debt
is back at 0 when t_a (1 - s) <= t_s s, that is when t_a <= s (t_a + t_s). It follows that under saturation an
aged-long can wait longer than `long_max_wait_ms`.

Degradation is the sign that the settings no longer fit the load. At share 1: three promotions in a row with no
short between them. Below 1: three aged-longs in a row held back by the share. An episode is counted once, at
the third; it ends with a short dispatched (share 1), with an aged-long that was not held (below 1), and when
no short waits any more.
"""

from __future__ import annotations

EPISODE = 3
"""So many in a row are a degradation."""


class AgedShare:
    """The debt of aged-longs towards shorts (tokens, at least 0) and the present run of promotions or holds."""

    __slots__ = ("_share", "_streak", "debt")

    def __init__(self, share: float) -> None:
        self._share = share
        self._streak = 0
        self.debt = 0.0

    def after_aged(self, debt: float, tokens: int) -> float:
        """The debt that an aged dispatch while a short waits makes of `debt`."""
        return debt + (1 - self._share) * tokens

    def after_short(self, debt: float, tokens: int) -> float:
        """The debt that a short dispatch makes of `debt`."""
        paid = self._share * tokens
        return debt - paid if debt > paid else 0.0

    def promoted(self, tokens: int, held: bool) -> bool:
        """An aged-long went while a short waits; `held`: it had been held back. True if an episode begins."""
        self.debt = self.after_aged(self.debt, tokens)
        if self._share == 1:
            return self._extend()
        if not held:
            self._streak = 0
        return False

    def held(self) -> bool:
        """One more aged-long is held back. True if an episode begins."""
        return self._extend()

    def short_dispatched(self, tokens: int) -> None:
        """A short request went."""
        self.debt = self.after_short(self.debt, tokens)
        if self._share == 1:
            self._streak = 0

    def no_short_waits(self) -> None:
        """The contest is over."""
        self.debt = 0.0
        self._streak = 0

    def _extend(self) -> bool:
        self._streak += 1
        return self._streak == EPISODE
