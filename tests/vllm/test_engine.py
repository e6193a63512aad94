"""The real engine under our scheduler, beside the stock one.

A burst is 6 prompts of 2,000 tokens and right behind them 20 of 64. Both engines get the same prompts in turn, so
that what else the machine does falls on both; their figures go to build/test/vllm_burst.json.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import statistics
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.tiny_model import FIRST_WORD, VOCABULARY
from tests.support.vllm_server import Answer, VllmServer, burst, complete, read_metrics
from tests.vllm.conftest import Governed, wait_until

pytestmark = pytest.mark.vllm

FIGURES = Path(__file__).resolve().parents[2] / "build" / "test" / "vllm_burst.json"
REPETITIONS = 3
LONGS, LONG_TOKENS = 6, 2000
SHORTS, SHORT_TOKENS = 20, 64
OUTPUT_TOKENS = 8
REQUIRED_RATIO = 2.5
SHORT_FIRST = {"policy": "short_request_first", "threshold": 256}
ANSWER_TIMEOUT_S = 60


def make_prompts(seed: int, count: int, tokens: int) -> list[list[int]]:
    """Random prompts: nothing is shared, so no prefix cache helps one engine more than the other."""
    draw = random.Random(seed)
    return [[draw.randrange(FIRST_WORD, VOCABULARY) for _ in range(tokens)] for _ in range(count)]


def make_burst(seed: int, longs: int = LONGS, shorts: int = SHORTS) -> list[list[int]]:
    return make_prompts(seed, longs, LONG_TOKENS) + make_prompts(seed + 1000, shorts, SHORT_TOKENS)


def median_ttft(answers: list[Answer]) -> float:
    return statistics.median(answer.ttft_s for answer in answers)


@dataclass(frozen=True)
class Pair:
    """One burst on both engines."""

    stock: list[Answer]
    ours: list[Answer]


@pytest.fixture(scope="module")
def pairs(stock: VllmServer, governed: Governed) -> list[Pair]:
    governed.set_policy(**SHORT_FIRST)
    for server in (stock, governed.server):
        asyncio.run(burst(server, make_burst(99, longs=1, shorts=2), OUTPUT_TOKENS))
    return [_run_pair(stock, governed.server, seed) for seed in range(REPETITIONS)]


def _run_pair(stock: VllmServer, ours: VllmServer, seed: int) -> Pair:
    prompts = make_burst(seed)
    of_stock = asyncio.run(burst(stock, prompts, OUTPUT_TOKENS))
    return Pair(of_stock, asyncio.run(burst(ours, prompts, OUTPUT_TOKENS)))


def test_shorts_behind_longs_get_their_first_token_sooner_than_in_the_stock_engine(pairs: list[Pair]) -> None:
    stock = median_ttft([answer for pair in pairs for answer in pair.stock[LONGS:]])
    ours = median_ttft([answer for pair in pairs for answer in pair.ours[LONGS:]])
    figures = {
        "repetitions": REPETITIONS,
        "short_ttft_p50_s": {"stock": stock, "ours": ours, "ratio": stock / ours},
        "short_ttft_p50_ratios": [median_ttft(p.stock[LONGS:]) / median_ttft(p.ours[LONGS:]) for p in pairs],
        "long_ttft_p50_ratios": [median_ttft(p.stock[:LONGS]) / median_ttft(p.ours[:LONGS]) for p in pairs],
        "burst_seconds": {"stock": [_duration(p.stock) for p in pairs], "ours": [_duration(p.ours) for p in pairs]},
    }
    FIGURES.parent.mkdir(parents=True, exist_ok=True)
    FIGURES.write_text(json.dumps(figures, indent=2) + "\n")
    print(f"\nmedian TTFT of shorts: stock {stock:.3f} s, ours {ours:.3f} s, {stock / ours:.2f} times lower")
    assert stock / ours >= REQUIRED_RATIO, figures


def _duration(answers: list[Answer]) -> float:
    return max(a.last_token_s for a in answers) - min(a.sent_s for a in answers)


def test_outputs_are_those_of_the_stock_engine(pairs: list[Pair]) -> None:
    for pair in pairs:
        assert [answer.tokens for answer in pair.ours] == [answer.tokens for answer in pair.stock]
        assert all(len(answer.tokens) == len(answer.times_s) == OUTPUT_TOKENS for answer in pair.ours)


def test_a_policy_changed_in_mid_burst_takes_effect_without_a_restart(governed: Governed) -> None:
    governed.set_policy(policy="fcfs")
    before = governed.dispatches()
    longs, shorts = 12, 20
    answers = asyncio.run(_burst_with_change(governed, make_burst(7, longs, shorts)))
    after = governed.dispatches()
    change = {lane: after[lane] - before.get(lane, 0) for lane in after}
    last_short = max(answer.first_token_s for answer in answers[longs:])
    overtaken = sum(answer.first_token_s > last_short for answer in answers[:longs])
    print(f"\ndispatches by lane {change}; {overtaken} of {longs} longs got their first token after all shorts")
    assert overtaken >= longs // 3
    assert change["all"] >= 1
    assert change["short"] == shorts
    assert change["all"] + change["long"] + change["short"] == longs + shorts


async def _burst_with_change(governed: Governed, prompts: list[list[int]]) -> list[Answer]:
    """Send a burst under the present policy, and change to short-first once its first request is running."""
    before = governed.dispatches()["all"]
    sending = asyncio.create_task(burst(governed.server, prompts, OUTPUT_TOKENS))
    await asyncio.to_thread(wait_until, lambda: governed.dispatches()["all"] > before)
    governed.write(governed.next_policy(**SHORT_FIRST).to_json())
    return await sending


@pytest.mark.parametrize("policy", ["promote_shortest", "hrrn"])
def test_a_policy_without_a_threshold_answers_like_the_stock_engine(
    stock: VllmServer, governed: Governed, policy: str
) -> None:
    governed.set_policy(policy=policy)
    before = governed.dispatches()["all"]
    pair = _run_pair(stock, governed.server, 11)
    assert [answer.tokens for answer in pair.ours] == [answer.tokens for answer in pair.stock]
    assert governed.dispatches()["all"] == before + LONGS + SHORTS
    ratio = median_ttft(pair.stock[LONGS:]) / median_ttft(pair.ours[LONGS:])
    print(f"\n{policy}: median TTFT of shorts {ratio:.2f} times lower than in the stock engine")


@pytest.mark.parametrize(
    ("trusted", "lane"),
    [
        pytest.param(False, "all", id="is accepted and ignored"),
        pytest.param(True, "immediate", id="puts a request first where clients are trusted"),
    ],
)
@pytest.mark.parametrize(
    "asked",
    [{"priority": -3}, {"headers": {"X-Vllm-Priority": "-3"}}],
    ids=["in the body", "in the header"],
)
def test_a_priority_that_a_client_sets(governed: Governed, asked: dict[str, Any], trusted: bool, lane: str) -> None:
    """vLLM's own help says that it refuses one under its policy fcfs: the code of this release does not."""
    governed.set_policy(policy="fcfs", trust_client_priority=trusted)
    before = governed.dispatches()

    async def ask() -> Answer:
        async with aiohttp.ClientSession() as session:
            return await complete(session, governed.server, make_prompts(12, 1, SHORT_TOKENS)[0], 1, **asked)

    assert len(asyncio.run(ask()).tokens) == 1
    wait_until(lambda: governed.dispatches().get(lane, 0) == before.get(lane, 0) + 1)


async def together(*requests: Coroutine[Any, Any, Answer]) -> list[Answer]:
    return list(await asyncio.wait_for(asyncio.gather(*requests), ANSWER_TIMEOUT_S))


def test_a_request_for_several_answers_gets_all_tokens_of_each(governed: Governed) -> None:
    """The engine's front end makes as many requests of it, which the queue sees."""
    governed.set_policy(**SHORT_FIRST)
    before = governed.dispatches()
    prompts = make_burst(13, longs=3, shorts=4)
    several = {"n": 3, "temperature": 1.0}  # of greedy ones, which are all alike, vLLM refuses more than one

    async def ask() -> list[Answer]:
        async with aiohttp.ClientSession() as session:
            return await together(
                *(complete(session, governed.server, prompt, OUTPUT_TOKENS, **several) for prompt in prompts)
            )

    assert [len(answer.tokens) for answer in asyncio.run(ask())] == [3 * OUTPUT_TOKENS] * len(prompts)
    wait_until(lambda: sum(governed.dispatches().values()) - sum(before.values()) == 3 * len(prompts))
    assert governed.dispatches()["short"] - before["short"] >= 3 * 4  # of the longs, those whose prompt was cached


# Words of one digit: after `w1`, a word itself, no word of this tokenizer could go on to `w10`.
PATTERN = "(w1|w2)(w3|w4|w5){3}"
CHOICES = ["w7", "w8", "w9"]


def test_structured_output_obeys_its_grammar_among_longs_and_plain_shorts(governed: Governed) -> None:
    """Grammars are compiled by the engine's own backend (xgrammar) while their requests wait in the queue."""
    governed.set_policy(**SHORT_FIRST)
    prompts = make_prompts(14, 8, SHORT_TOKENS)
    burst_prompts = make_burst(15, longs=4, shorts=8)

    async def ask() -> list[Answer]:
        async with aiohttp.ClientSession() as session:

            def structured(prompt: list[int], grammar: dict[str, Any]) -> Coroutine[Any, Any, Answer]:
                return complete(
                    session, governed.server, prompt, OUTPUT_TOKENS, structured_outputs=grammar, ignore_eos=False
                )

            return await together(
                *(structured(prompt, {"regex": PATTERN}) for prompt in prompts[:4]),
                *(structured(prompt, {"choice": CHOICES}) for prompt in prompts[4:]),
                *(complete(session, governed.server, prompt, OUTPUT_TOKENS) for prompt in burst_prompts),
            )

    answers = asyncio.run(ask())
    for answer in answers[:4]:
        assert re.fullmatch(PATTERN, _text(answer)), answer.tokens
    for answer in answers[4:8]:
        assert _text(answer) in CHOICES, answer.tokens
    assert all(len(answer.tokens) == OUTPUT_TOKENS for answer in answers[8:])


def _text(answer: Answer) -> str:
    """The words of an answer, without the token that ends it."""
    return "".join(f"w{token - FIRST_WORD}" for token in answer.tokens if token >= FIRST_WORD)


def test_an_idle_engine_reports_a_new_policy_within_a_second(governed: Governed) -> None:
    seconds = governed.set_policy(policy="fcfs")
    print(f"\nan idle engine reported the new generation after {seconds:.2f} s")
    assert seconds < 1


def test_a_torn_policy_file_changes_nothing(governed: Governed) -> None:
    governed.set_policy(**SHORT_FIRST)
    running, refused = governed.generation, governed.metric("prefleet_policy_refused_total")
    torn = governed.next_policy(policy="fcfs").to_json()
    governed.write(torn[: len(torn) // 2])
    governed.wait_for("prefleet_policy_refused_total", refused + 1)
    assert governed.metric("prefleet_policy_generation") == running
    before = governed.dispatches()["short"]
    asyncio.run(burst(governed.server, make_prompts(8, 1, SHORT_TOKENS), 1))
    assert governed.dispatches()["short"] == before + 1
    governed.write(torn)
    governed.wait_for("prefleet_policy_generation", governed.generation)


def test_requests_aborted_while_they_wait_leave_nothing_behind(governed: Governed) -> None:
    governed.set_policy(**SHORT_FIRST)
    before = governed.dispatches()
    waited = asyncio.run(_send_and_abort(governed, make_burst(9, longs=8, shorts=4)))
    governed_metrics = f"{governed.server.url}/metrics"
    wait_until(lambda: governed.waiting() == _engine_load(governed_metrics) == 0)
    dispatched = sum(governed.dispatches().values()) - sum(before.values())
    print(f"\n{waited:.0f} requests waited when all 12 were aborted; {dispatched:.0f} had been dispatched")
    assert dispatched < 12
    asyncio.run(burst(governed.server, make_prompts(10, 2, SHORT_TOKENS), 1))


async def _send_and_abort(governed: Governed, prompts: list[list[int]]) -> float:
    """Send requests, cut all connections once half of them wait; how many waited then."""
    async with aiohttp.ClientSession() as session:
        sent = [asyncio.create_task(complete(session, governed.server, p, OUTPUT_TOKENS)) for p in prompts]
        await asyncio.to_thread(wait_until, lambda: governed.waiting() >= len(prompts) / 2)
        waiting = await asyncio.to_thread(governed.waiting)
        for request in sent:
            request.cancel()
        await asyncio.gather(*sent, return_exceptions=True)
    return waiting


def _engine_load(url: str) -> float:
    """What vLLM itself says of requests running and waiting and of the KV cache in use."""
    metrics = read_metrics(url)
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
    return sum(value for name, value in metrics.items() if name.split("{")[0] in names)
