"""The real vLLM scheduler without an engine: steps are driven by hand and the model's answers are made up.

Time stands still and every step answers with the same token, so a test sees exactly the order that the queue
and the scheduler agree on. With speculative decoding every answer is drafted on, by none to all of the tokens that the
drafter may propose, and of what was scheduled none to all is accepted, in turn. `check_empty` is the leak check that
ends every test.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from prefleet_runtime.contract import RuntimePolicy
from prefleet_runtime.queueing import Counters, Lane, PolicyQueue
from prefleet_runtime.vllm.scheduler import GovernedScheduler, make_scheduler
from vllm.config import CacheConfig, ModelConfig, ParallelConfig, SchedulerConfig, SpeculativeConfig, VllmConfig
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from tests.support.vllm_server import read_metrics

BLOCK = 16
TOKEN = 7
PIPELINE_DEPTH = 2

init_none_hash(sha256)
_block_hasher = get_request_block_hasher(BLOCK, sha256)


@dataclass
class Setup:
    """How the scheduler under test is configured; `blocks` of KV cache, `budget` tokens per step."""

    model: Path
    policy_file: Path
    asynchronous: bool = False
    blocks: int = 1000
    budget: int = 512
    max_seqs: int = 16
    rank: int = 0
    exporter_port: int = 0
    scheduling_policy: str = "fcfs"
    additional: dict[str, Any] | None = None
    window: int | None = None  # tokens: the model also has layers with a sliding window
    chunk_tokens: int = 0  # the engine's own limit on any one prefill in a step
    speculation: dict[str, Any] | None = None  # fields of vLLM's SpeculativeConfig
    kv_tokens: int | None = None  # what the engine says that its KV cache holds

    def config(self) -> VllmConfig:
        settings = {
            "policy_file": str(self.policy_file),
            "exporter_host": "127.0.0.1",
            "exporter_port": self.exporter_port,
        }
        model = ModelConfig(model=str(self.model), dtype="float32", seed=0, max_model_len=8192)
        config = VllmConfig(
            model_config=model,
            scheduler_config=SchedulerConfig(
                max_num_seqs=self.max_seqs,
                max_num_batched_tokens=self.budget,
                max_model_len=8192,
                enable_chunked_prefill=True,
                is_encoder_decoder=False,
                async_scheduling=self.asynchronous,
                policy=self.scheduling_policy,
                long_prefill_token_threshold=self.chunk_tokens,
            ),
            cache_config=CacheConfig(block_size=BLOCK, enable_prefix_caching=True),
            speculative_config=self._drafter(model),
            additional_config={"prefleet": settings} if self.additional is None else self.additional,
        )
        config.cache_config.num_gpu_blocks = self.blocks
        config.cache_config.kv_cache_size_tokens = self.kv_tokens
        # The CPU platform forces synchronous scheduling; the scheduler itself does not care where it runs.
        config.scheduler_config.async_scheduling = self.asynchronous
        config.parallel_config.data_parallel_index = self.rank
        return config

    def scheduler(self, **more: Any) -> GovernedScheduler:
        """Ours."""
        scheduler: GovernedScheduler = make_scheduler(**self._arguments(), **more)
        return scheduler

    def stock(self) -> Scheduler:
        """The engine's own."""
        return Scheduler(**self._arguments())

    def _arguments(self) -> dict[str, Any]:
        config = self.config()
        return {
            "vllm_config": config,
            "kv_cache_config": KVCacheConfig(self.blocks, [], self._groups()),
            "structured_output_manager": StructuredOutputManager(config),
            "block_size": BLOCK,
            "hash_block_size": BLOCK,
            "log_stats": True,
        }

    def _drafter(self, target: ModelConfig) -> SpeculativeConfig | None:
        if self.speculation is None:
            return None
        return SpeculativeConfig(
            target_model_config=target, target_parallel_config=ParallelConfig(), **self.speculation
        )

    def _groups(self) -> list[KVCacheGroupSpec]:
        shape = {"block_size": BLOCK, "num_kv_heads": 1, "head_size": 64, "dtype": torch.float32}
        groups = [KVCacheGroupSpec(["layer"], FullAttentionSpec(**shape))]
        if self.window is not None:
            groups.append(KVCacheGroupSpec(["local"], SlidingWindowSpec(**shape, sliding_window=self.window)))
        return groups


def make_request(name: str, prompt: list[int], max_tokens: int = 2, **kwargs: Any) -> Request:
    """A greedy request; `grammar` gives it structured output whose grammar is not compiled yet."""
    grammar = StructuredOutputsParams(regex="a+") if kwargs.pop("grammar", False) else None
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, temperature=0, structured_outputs=grammar)
    params.update_from_generation_config({}, 2)
    return Request(name, prompt, params, None, block_hasher=_block_hasher, **kwargs)


@dataclass
class Engine:
    """Drives a scheduler as EngineCore does: in lockstep, or two steps deep when it is asynchronous."""

    scheduler: GovernedScheduler
    policy_file: Path
    asynchronous: bool = False
    first_scheduled: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    tokens: dict[str, int] = field(default_factory=dict)  # what the last step scheduled
    drafts: dict[str, int] = field(default_factory=dict)  # how much of that was speculative
    expects_faults: bool = False  # elsewhere one that the engine survived fails the test
    _in_flight: deque[tuple[SchedulerOutput, dict[str, list[int]]]] = field(default_factory=deque)
    _names: int = 0
    _answers: int = 0

    @property
    def _depth(self) -> int:
        return PIPELINE_DEPTH if self.asynchronous else 1

    @property
    def steps_in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def queue(self) -> PolicyQueue[Request]:
        queue: PolicyQueue[Request] = self.scheduler.prefleet.governor.queue
        return queue

    @property
    def counters(self) -> Counters:
        return self.queue.counters

    @property
    def waiting(self) -> int:
        return len(self.scheduler.waiting)

    @property
    def holding_blocks(self) -> int:
        """Requests that hold KV blocks and wait, aside from the queue."""
        newer = hasattr(self.scheduler, "kv_holding_waiting")
        return len(self.scheduler.kv_holding_waiting if newer else self.scheduler.skipped_waiting)

    def add(
        self, name: str, tokens: int, max_tokens: int = 2, prefix: list[int] | None = None, **kwargs: Any
    ) -> Request:
        """Add a request of `tokens` prompt tokens that shares nothing with others beyond `prefix`."""
        self._names += 1
        own = [100_000 * self._names + position for position in range(tokens - len(prefix or ()))]
        request = make_request(name, [*(prefix or ()), *own], max_tokens, **kwargs)
        self.scheduler.add_request(request)
        return request

    def abort(self, *names: str) -> None:
        self.scheduler.finish_requests(names, RequestStatus.FINISHED_ABORTED)

    def step(self) -> list[str]:
        """One engine step; the names of the requests that it scheduled, in order."""
        output = self.scheduler.schedule()
        self.tokens = dict(output.num_scheduled_tokens)
        self.drafts = {name: len(drafts) for name, drafts in output.scheduled_spec_decode_tokens.items()}
        names = list(self.tokens)
        self.first_scheduled += [name for name in names if name not in self.first_scheduled]
        if names:
            self._in_flight.append((output, {name: self._answer(name) for name in names}))
        if self._in_flight and (not names or len(self._in_flight) >= self._depth):
            self._complete()
        return names

    def run(self, steps: int = 500) -> None:
        """Step until nothing is left."""
        for _ in range(steps):
            if not self.scheduler.has_unfinished_requests() and not self._in_flight:
                return
            self.step()
        raise AssertionError(f"not done after {steps} steps: {list(self.scheduler.requests)}")

    def take_policy(self, generation: int, **fields: Any) -> None:
        """Change the policy file and let the watcher see it at once."""
        self.policy_file.write_text(policy_text(generation, **fields))
        self.scheduler.prefleet.governor._watcher.check()

    def metrics(self) -> dict[str, float]:
        """What the exporter serves."""
        return read_metrics(f"http://127.0.0.1:{self.scheduler.prefleet.governor.exporter_port}/metrics")

    def lanes(self) -> dict[str, int]:
        """Dispatches by lane, lanes without any left out."""
        return {lane.value: count for lane, count in self.counters.dispatches.items() if count}

    def waiting_in(self, lane: Lane) -> int:
        return self.queue.gauges()[lane].requests

    def check_empty(self) -> None:
        """Nothing waits, runs or holds a KV block, the queue's invariants hold, and nothing of ours has failed."""
        scheduler = self.scheduler
        self.queue._check()
        assert self.expects_faults or not scheduler.prefleet.faults.seen
        assert not scheduler.requests
        assert not scheduler.running
        assert not list(getattr(scheduler, "deferred_waiting", scheduler.prefleet.skipped_waiting.deferred()))
        assert not scheduler.waiting.no_room
        assert self.waiting == self.holding_blocks == 0
        assert all(gauge.requests == 0 for gauge in self.queue.gauges().values())
        pool = scheduler.kv_cache_manager.block_pool
        assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1  # one is the null block

    def _answer(self, name: str) -> list[int]:
        request = self.scheduler.requests[name]
        if request.is_prefill_chunk:
            return []
        self._answers += 1
        return [TOKEN] * (1 + self._answers % (1 + self.drafts.get(name, 0)))

    def _complete(self) -> None:
        output, answers = self._in_flight.popleft()
        names = list(answers)
        before = set(self.scheduler.requests)
        result = ModelRunnerOutput(names, {name: index for index, name in enumerate(names)}, list(answers.values()))
        self.scheduler.update_from_output(output, result)
        if (
            self.scheduler.num_spec_tokens and not self.asynchronous
        ):  # there the scheduler leaves room for drafts itself
            most = self.scheduler.num_spec_tokens
            drafts = [[TOKEN] * ((self._answers + number) % (1 + most)) for number in range(len(names))]
            self.scheduler.update_draft_token_ids(DraftTokenIds(names, drafts))
        self.finished += sorted(before - set(self.scheduler.requests))


def policy_text(generation: int = 1, **fields: Any) -> str:
    """A policy document."""
    return RuntimePolicy(generation=generation, **fields).to_json()
