"""What the simulated engine handles: requests with their progress, its limits, and the plan of one step.

Values only; `engine` moves them. Units: tokens, KV blocks, seconds on the caller's axis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from prefleet_runtime.queueing.base import Dispatch, RequestFacts
from prefleet_runtime.stage import UNLIMITED, StepBudget, StepWork, chunk_pairs

BLOCK_TOKENS = 16
"""KV entries per block: vLLM's default."""

DEFAULT_MAX_NUM_BATCHED_TOKENS = 2048
"""vLLM's default for its OpenAI server on an A100 (EngineArgs.get_batch_defaults; 8,192 on H100 and H200)."""

DEFAULT_MAX_NUM_SEQS = 256
"""vLLM's default for its OpenAI server on an A100."""

DEFAULT_KV_LEASE_S = 30.0
"""How long KV is kept for a decode pod that does not fetch it: NixlConnector's `kv_lease_duration`."""


class RequestState(Enum):
    """Where a request is."""

    WAITING = auto()
    LOADING = auto()
    RUNNING = auto()
    FINISHED = auto()
    ABORTED = auto()


@dataclass(slots=True, eq=False)
class SimRequest:
    """One request and its progress.

    `remote_kv`: the prompt's KV is fetched from another pod; `keep_kv`: it is kept for one at the end;
    `client_priority`: what the client asked for.
    `computed`: tokens whose KV exists; `prefill_until`: the count at which prefill is complete (a preempted
    request recomputes its prompt and its own output); from there on it lacks the KV of its last token alone.
    `long`: it left the queue's long lane. `prefix`: hashes of the prompt's leading full blocks; `shared`: those of them
    that are the prefix cache's; `cached_tokens`: what was cached of the prompt as it was queued, then as it started.
    """

    request_id: str
    prompt_tokens: int
    max_tokens: int
    arrival_s: float
    remote_kv: bool = False
    keep_kv: bool = False
    client_priority: int = 0
    prefix: Sequence[int] = ()
    shared: list[int] = field(default_factory=list)
    cached_tokens: int = 0
    computed: int = 0
    generated: int = 0
    preemptions: int = 0
    blocks: int = 0
    state: RequestState = RequestState.WAITING
    long: bool = False
    first_scheduled_s: float | None = None
    first_token_s: float | None = None
    prefill_until: int = field(init=False)

    def __post_init__(self) -> None:
        self.prefill_until = self.prompt_tokens

    @property
    def known_tokens(self) -> int:
        """Prompt and output so far."""
        return self.prompt_tokens + self.generated

    @property
    def prefills(self) -> bool:
        """Whether prefill is not complete."""
        return self.computed < self.prefill_until

    @property
    def facts(self) -> RequestFacts:
        """What the queue may know of it."""
        return RequestFacts(
            request_id=self.request_id,
            arrival_s=self.arrival_s,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.prompt_tokens - 1 if self.remote_kv else self.cached_tokens,
            client_priority=self.client_priority,
            started=self.preemptions > 0,
        )


@dataclass(frozen=True, slots=True)
class Limits:
    """The engine's sizes: tokens per step, seats, KV entries, and seconds that KV is kept for another pod.

    `prefix_block_tokens`: tokens of a block that the prefix cache knows, a multiple of a KV block's; 0: no cache.
    `whole_chunks`: tokens of a chunk under LightLLM's batching rule (`StepPlan`); None: vLLM's.
    """

    max_num_batched_tokens: int = DEFAULT_MAX_NUM_BATCHED_TOKENS
    max_num_seqs: int = DEFAULT_MAX_NUM_SEQS
    kv_cache_tokens: int = 400_000
    kv_lease_s: float = DEFAULT_KV_LEASE_S
    prefix_block_tokens: int = 0
    whole_chunks: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_num_batched_tokens", "max_num_seqs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: give 1 or more")
        if self.kv_cache_tokens < BLOCK_TOKENS:
            raise ValueError(f"kv_cache_tokens is {self.kv_cache_tokens}: one block is {BLOCK_TOKENS} tokens")
        if not (math.isfinite(self.kv_lease_s) and self.kv_lease_s > 0):
            raise ValueError(f"kv_lease_s is {self.kv_lease_s}: give a finite number of seconds above 0")
        if self.prefix_block_tokens < 0 or self.prefix_block_tokens % BLOCK_TOKENS:
            raise ValueError(f"prefix_block_tokens is {self.prefix_block_tokens}: give a multiple of {BLOCK_TOKENS}")
        if self.whole_chunks is not None and not 1 <= self.whole_chunks <= self.max_num_batched_tokens:
            most = self.max_num_batched_tokens
            raise ValueError(f"whole_chunks is {self.whole_chunks}: give 1 to max_num_batched_tokens ({most})")

    @property
    def blocks(self) -> int:
        return self.kv_cache_tokens // BLOCK_TOKENS


def blocks_for(tokens: int) -> int:
    """KV blocks that hold `tokens`."""
    return -(-tokens // BLOCK_TOKENS)


@dataclass(slots=True)
class StepPlan:
    """What one step computes and what that costs: filled by `schedule`, read-only afterwards.

    `items`: each scheduled request with its tokens; `admitted`: those that start in this step, with all the
    prefill tokens that this sets in motion, and `dispatches` what the queue says of those; `budget`: tokens that are
    left; `limits`: how they are to be shared.

    `whole_chunks` is LightLLM's batching rule, as it is described: a prefill gets a chunk of so many tokens or what is
    left of it, and where that does not fit whole in what is left of the step it is passed over, never shrunk. Decodes
    go first and take nothing of the budget.
    """

    budget: int
    limits: StepBudget = UNLIMITED
    whole_chunks: int | None = None
    items: list[tuple[SimRequest, int]] = field(default_factory=list)
    admitted: list[tuple[SimRequest, int]] = field(default_factory=list)
    dispatches: list[tuple[SimRequest, Dispatch]] = field(default_factory=list)
    prefill_tokens: int = 0
    decode_tokens: int = 0
    pairs: float = 0.0
    decode_context: int = 0
    cost_s: float = 0.0

    @property
    def work(self) -> StepWork:
        """What the cost of a step is learnt from."""
        return StepWork(self.prefill_tokens, self.decode_tokens, self.pairs, self.decode_context)

    @property
    def in_order(self) -> bool:
        """Whether decodes go before prefills, whichever started first."""
        return self.limits.in_order or self.whole_chunks is not None

    @property
    def passes_over(self) -> bool:
        """Whether a waiting request that may have nothing now leaves its place in this step to the next."""
        return self.whole_chunks is not None

    def grant(self, request: SimRequest) -> int:
        """The tokens that a request may have now; KV from another pod makes its one token no prefill."""
        if request.computed >= request.prefill_until:
            return 1 if self.budget else 0
        tokens = request.prefill_until - request.computed
        if request.remote_kv:
            return min(tokens, self.budget)
        if self.whole_chunks is not None:
            tokens = min(tokens, self.whole_chunks)
            if tokens > self.budget:
                return 0
        tokens = min(tokens, self.budget)
        limits = self.limits
        if limits.chunk_tokens is not None:
            tokens = min(tokens, limits.chunk_tokens)
        if limits.prefill_tokens is not None:
            tokens = min(tokens, max(0, limits.prefill_tokens - self.prefill_tokens))
        return tokens

    def include(self, request: SimRequest, tokens: int) -> None:
        self.items.append((request, tokens))
        prefills = request.computed < request.prefill_until
        if prefills or self.whole_chunks is None:
            self.budget -= tokens
        if prefills:
            self.prefill_tokens += tokens
            self.pairs += chunk_pairs(request.computed, tokens)
        else:
            self.decode_tokens += tokens
            self.decode_context += request.computed


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a finished step gave: requests that got one more token, and those of them that are done."""

    emitted: list[SimRequest]
    finished: list[SimRequest]


@dataclass(frozen=True, slots=True)
class Held:
    """KV of a finished request, its own and what it shares, kept until another pod fetches it or the lease ends."""

    blocks: int
    expires_s: float
    shared: Sequence[int] = ()
