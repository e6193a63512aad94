"""The least number of pods that keeps waits, gaps and memory: what steps cost and how requests come decide.

- Waits: by replay of the recorded requests where there is one. Else an approximation of the queue before n servers
  (Sakasegawa, "An approximation formula Lq = a rho^b / (1 - rho)", 1977, for M/G/n): with the load rho of each, a
  request waits with probability p = rho^(sqrt(2 (n + 1)) - 1), and those that do wait m = S (1 + v) / (2 n (1 - rho))
  on average, S being a request's work and v its squared coefficient of variation. Such waits are taken as exponential,
  so the wait at quantile q is m ln(p / (1 - q)). Several pods show less of it with the long tail of real prompts:
  simulated fleets of 2, 4 and 8 pods at loads of 0.5 to 0.8 waited 0.63 to 0.85 of it at P95 (Mooncake's lengths, the
  router of least tokens); `SEEN` of it is taken.
- Gaps, where pods decode beside prefill: a pod is in full steps of s seconds rho of its time and in decode steps of d
  seconds otherwise, so its sequences get (1 - rho) / d + rho / s tokens per second. That bounds rho.
- Memory: the KV that is in use, and where caches are full what waits too, at `KV_SHARE` of what pods hold. What
  sequences hold follows from how many run, so more pods hold it with less in each.

Left out: that a router which does not see queues spreads requests unevenly.
"""

from __future__ import annotations

import math
from collections.abc import Callable

KV_SHARE = 0.85
SEEN = 0.75
LOAD_MOST = 0.98
"""A load beyond this is not kept, whatever a formula says of waits."""


def wait_at(quantile: float, pods: int, load: float, request_s: float, variation: float) -> float:
    """Seconds that a request waits at this quantile before `pods` pods at `load` each; infinite from 1 on."""
    if load >= 1:
        return math.inf
    waits = load ** (math.sqrt(2 * (pods + 1)) - 1)
    if waits <= 1 - quantile:
        return 0.0
    mean = request_s * (1 + variation) / (2 * pods * (1 - load))
    return (SEEN if pods > 1 else 1.0) * mean * math.log(waits / (1 - quantile))


def load_by_gap(gap_s: float, full_step_s: float, decode_step_s: float) -> float:
    """The most load at which sequences still get a token each `gap_s`; 0 where decode alone takes longer."""
    if full_step_s <= gap_s:
        return 1.0
    if decode_step_s <= 0:
        return 1.0
    fastest, slowest = 1 / decode_step_s, 1 / full_step_s
    if fastest <= slowest:
        return 0.0
    return min(1.0, max(0.0, (fastest - 1 / gap_s) / (fastest - slowest)))


def pods_by_gap(gap_s: float, seen_s: float, running: float, pods: float, fixed_s: float) -> float:
    """Decode pods, whose gap is a fixed part and one that grows with what runs on each: as many as keep `gap_s`."""
    if seen_s <= gap_s or running <= 0:
        return 0.0
    grows = seen_s - min(fixed_s, seen_s)
    return pods * grows / (gap_s - fixed_s) if gap_s > fixed_s else math.inf


def pods_by_kv(usage: float, pods: int, waiting_tokens: float, kv_tokens: float) -> float:
    """Pods whose KV caches hold what is in use, `KV_SHARE` of each used; what waits counts where they are full."""
    waits = waiting_tokens / kv_tokens if kv_tokens > 0 and usage >= KV_SHARE else 0.0
    return (usage * pods + waits) / KV_SHARE


def smallest(keeps: Callable[[int], bool], least: int, most: int) -> int | None:
    """The least number of pods in [least, most] that keeps what is asked, if more pods never keep less; else None."""
    if least > most or not keeps(most):
        return None
    while least < most:
        middle = (least + most) // 2
        least, most = (least, middle) if keeps(middle) else (middle + 1, most)
    return least
