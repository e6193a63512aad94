"""Leader election by a Lease, written for one rule: the old leader's last write comes before the new one's first.

    leader     renews every `retry_s`. A renewal that succeeded, counted from before it was sent, allows writes
               for `renew_s`; after that the fence (`check`) raises, and the process must end.
    candidate  takes the Lease when it is free, or when it has watched the same version of it for the whole
               duration that its holder wrote into it, on its own clock, counted from when the answer was in.

    write allowed until  t_sent + renew_s        (+ the bound of one write, `WRITE_TIMEOUT_S`)
    taken no earlier     t_seen + lease_s        and t_seen > t_sent

so that the rule holds as long as renew_s + WRITE_TIMEOUT_S < lease_s, whatever is said by clocks on other
machines, and after any stop of the process (SIGSTOP, a frozen node). The clock is monotonic. An identity may take
back its own Lease at once: a restarted container has the name of its pod, and its predecessor is dead. A Lease that
somebody has deleted under its holder counts, to a candidate that has seen it held, as held for that duration more.

Left out: what to do with leadership, and how to end the process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Protocol

from prefleet_operator.adapters.kube import WRITE_TIMEOUT_S, ConflictError, KubeError

logger = logging.getLogger(__name__)


COMPLAIN_EVERY_S = 60.0
DELETED = "deleted"
"""Stands for the version of a Lease that is not there any more."""


class LeadershipLostError(Exception):
    """This process may no longer write."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds: the Lease's duration, how long a renewal allows writes, between tries, and for one try."""

    lease_s: float = 10.0
    renew_s: float = 7.0
    retry_s: float = 2.0
    request_s: float = 2.0

    def __post_init__(self) -> None:
        if self.renew_s + WRITE_TIMEOUT_S >= self.lease_s:
            raise ValueError(f"renew_s {self.renew_s} + {WRITE_TIMEOUT_S} for a write must stay under {self.lease_s}")


@dataclass(frozen=True, slots=True)
class Lease:
    """What the Lease says. `holder` is "" when it is free; `version` is "" before it exists."""

    holder: str
    duration_s: float
    transitions: int
    version: str = ""


class Leases(Protocol):
    """Where the Lease is kept."""

    async def read(self) -> Lease | None:
        """The Lease, or None if there is none."""

    async def write(self, lease: Lease) -> Lease:
        """Write over the version that `lease` carries, or create it; raises ConflictError if it has changed."""


class Election:
    """One candidate. `clock` is monotonic, in seconds."""

    def __init__(
        self,
        leases: Leases,
        identity: str,
        clock: Callable[[], float],
        timing: Timing | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._leases = leases
        self._identity = identity
        self._clock = clock
        self._timing = timing or Timing()
        self._sleep = sleep
        self._seen_version = ""
        self._seen_at = 0.0
        self._others: Lease | None = None
        self._fault = ""
        self._told_at = float("-inf")
        self._valid_until = float("-inf")
        self._held: Lease | None = None

    @property
    def leads(self) -> bool:
        """Whether this process may write now."""
        return self._clock() < self._valid_until

    def check(self) -> None:
        """The fence: raises LeadershipLostError unless this process may write now."""
        if not self.leads:
            raise LeadershipLostError(f"{self._identity} does not hold the lease")

    async def acquire(self) -> None:
        """Wait until this process leads."""
        while not await self._attempt():
            await self._sleep(self._timing.retry_s)
        logger.info("%s leads", self._identity)

    async def hold(self) -> None:
        """Renew for ever. Raises LeadershipLostError when renewing has failed for too long or another leads."""
        while True:
            await self._sleep(self._timing.retry_s)
            if not await self._attempt() and self._seen_version:
                raise LeadershipLostError("another holds the lease")
            if not self.leads:
                raise LeadershipLostError(f"the lease was not renewed for {self._timing.renew_s:g} s: {self._fault}")

    async def release(self) -> None:
        """Give the Lease up, so that another may lead at once. Call it after the last write."""
        held, self._held, self._valid_until = self._held, None, float("-inf")
        if held is None:
            return
        try:
            async with asyncio.timeout(self._timing.request_s):
                await self._leases.write(replace(held, holder=""))
        except (KubeError, TimeoutError) as error:
            logger.warning("the lease could not be released and runs out by itself: %s", error)

    async def _attempt(self) -> bool:
        """Take or renew the Lease once; an API server that does not answer is a failed try."""
        try:
            async with asyncio.timeout(self._timing.request_s):
                lease = await self._leases.read()
                if self._held_by_another(lease):
                    return False
                sent_at = self._clock()
                self._held = await self._leases.write(self._ours(lease))
        except ConflictError as error:
            logger.debug("no lease this time: %s", error)
            self._fault = str(error)
            return False
        except KubeError as error:
            self._complain(str(error))
            return False
        except TimeoutError:
            self._complain(f"the API server did not answer within {self._timing.request_s:g} s")
            return False
        self._valid_until = sent_at + self._timing.renew_s
        self._seen_version, self._others = "", None
        return True

    def _complain(self, fault: str) -> None:
        """Say why there is no lease: at once, and again each minute while there is none."""
        self._fault = fault
        now = self._clock()
        if now - self._told_at >= COMPLAIN_EVERY_S:
            self._told_at = now
            logger.warning("the lease cannot be taken or renewed, trying again: %s", fault)

    def _held_by_another(self, found: Lease | None) -> bool:
        lease = found
        if lease is None and self._others is not None:
            lease = replace(self._others, version=DELETED)
        if lease is None or lease.holder in ("", self._identity):
            self._others = None
            return False
        self._others = lease
        if lease.version != self._seen_version:
            self._seen_version, self._seen_at = lease.version, self._clock()
        return self._clock() - self._seen_at < lease.duration_s

    def _ours(self, lease: Lease | None) -> Lease:
        if lease is None:
            return Lease(self._identity, self._timing.lease_s, 0)
        taken = lease.holder != self._identity
        return Lease(self._identity, self._timing.lease_s, lease.transitions + taken, lease.version)
