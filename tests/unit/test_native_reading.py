"""An engine's own series, in every spelling and in every bad state, from its /metrics to a fleet's readings."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from aiohttp import web
from prefleet_operator.adapters.metrics_source import FleetQuery, FleetReading, PodTarget
from prefleet_operator.adapters.native_reading import to_fleet_metrics, to_pod_metrics
from prefleet_operator.adapters.podscrape import PodScrape
from prefleet_operator.adapters.promql import tuning_queries
from prefleet_operator.api import LengthMeasure, Role
from prefleet_operator.core.engine_metrics import EngineMetrics
from prefleet_operator.core.observed import HistogramSnapshot, Missing, Sample, Stale
from prefleet_operator.engines import HTTP_PORT
from prefleet_operator.engines.mindie import METRICS_PORT

from tests.support.native.cases import CASES
from tests.support.plane.processes import free_ports

VLLM = CASES["VLLMAscend"].metrics
SGLANG = CASES["SGLang"].metrics
LIGHTLLM = CASES["LightLLM"].metrics
MINDIE = CASES["MindIE"].metrics
PROMPT, UNCACHED = LengthMeasure.PROMPT, LengthMeasure.UNCACHED


class Text:
    """A page of metrics that changes between scrapes."""

    def __init__(self, prefix: str = "vllm:") -> None:
        self.prefix = prefix
        self.lengths: tuple[object, ...] = (0, 0, 0)
        self.waits: tuple[object, ...] = (0, 0, 0)
        self.waiting: object = 0
        self.more = ""

    def __call__(self) -> str:
        lines = [f"{self.prefix}num_requests_waiting {self.waiting}" if self.waiting is not None else ""]
        for name, counts in (("request_prompt_tokens", self.lengths), ("request_queue_time_seconds", self.waits)):
            lines.append(f"# TYPE {self.prefix}{name} histogram")
            for bound, count in zip(("1.0", "2.0", "+Inf"), counts, strict=False):
                lines.append(f'{self.prefix}{name}_bucket{{engine="0",le="{bound}"}} {count}')
        return "\n".join([*lines, self.more]) + "\n"


@asynccontextmanager
async def serving(body: Callable[[], str], engine: EngineMetrics = VLLM) -> AsyncIterator[tuple[PodScrape, FleetQuery]]:
    """A pod scrape and a fleet of one pod that answers so."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=body())

    app = web.Application()
    app.router.add_get("/metrics", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    (port,) = free_ports(1)
    await web.TCPSite(runner, "127.0.0.1", port).start()
    source = PodScrape()
    pods = (PodTarget("p", Role.MIXED, "127.0.0.1", port),)
    yield source, FleetQuery("ns", "chat", pods, 300.0, PROMPT, engine)
    await source.close()
    await runner.cleanup()


async def scrape(source: PodScrape, fleet: FleetQuery, now: float) -> FleetReading:
    return (await source.read([fleet], now))[fleet.key]


@pytest.mark.parametrize("prefix", ["vllm:", "vllm_"], ids=["as vLLM names them", "as OpenMetrics 1.0 spells them"])
async def test_growth_between_scrapes_is_read_in_either_spelling(prefix: str) -> None:
    text = Text(prefix)
    async with serving(text) as (source, fleet):
        await scrape(source, fleet, 100.0)
        text.lengths, text.waits = (1, 3, 6), (2, 2, 5)
        metrics = (await scrape(source, fleet, 110.0)).metrics
    assert metrics.lengths == Sample(HistogramSnapshot((1.0, 2.0), (1, 2, 3)), 110.0)
    assert metrics.waits == Sample(HistogramSnapshot((1.0, 2.0), (2, 0, 3)), 110.0)


async def test_a_page_that_spells_a_series_twice_counts_it_once() -> None:
    text, other = Text("vllm:"), Text("vllm_")
    async with serving(lambda: text() + other()) as (source, fleet):
        await scrape(source, fleet, 100.0)
        text.lengths = other.lengths = (1, 3, 6)
        metrics = (await scrape(source, fleet, 110.0)).metrics
    assert metrics.lengths == Sample(HistogramSnapshot((1.0, 2.0), (1, 2, 3)), 110.0)


async def test_an_engine_that_restarts_goes_on_counting() -> None:
    text = Text()
    async with serving(text) as (source, fleet):
        text.lengths = (10, 10, 10)
        await scrape(source, fleet, 100.0)
        text.lengths = (15, 15, 15)
        await scrape(source, fleet, 110.0)
        text.lengths = (2, 2, 2)
        metrics = (await scrape(source, fleet, 120.0)).metrics
    assert metrics.lengths == Sample(HistogramSnapshot((1.0, 2.0), (7, 0, 0)), 120.0)


async def test_ranks_of_a_pod_are_added_up_and_how_full_they_are_is_their_mean() -> None:
    def page() -> str:
        ranks = [(0, 3, 0.9), (1, 5, 0.7)]
        lines = [f'sglang:num_queue_reqs{{dp_rank="{rank}"}} {queued}' for rank, queued, _ in ranks]
        return "\n".join(lines + [f'sglang:token_usage{{dp_rank="{rank}"}} {full}' for rank, _, full in ranks]) + "\n"

    async with serving(page, SGLANG) as (source, fleet):
        load = (await scrape(source, replace(fleet, sized=True), 100.0)).loads[Role.MIXED]
    assert load.waiting == Sample(8.0, 100.0)
    assert isinstance(load.kv_usage, Sample)
    assert load.kv_usage.value == pytest.approx(0.8)


async def test_parts_that_stand_beside_their_total_are_not_added_to_it() -> None:
    """SGLang shows its queue once for all, and once more for each priority, where it schedules by priorities."""

    def page() -> str:
        queue = [("", 8), ("0", 3), ("1", 5)]
        return "".join(f'sglang:num_queue_reqs{{priority="{name}"}} {queued}\n' for name, queued in queue)

    async with serving(page, SGLANG) as (source, fleet):
        load = (await scrape(source, replace(fleet, sized=True), 100.0)).loads[Role.MIXED]
    assert load.waiting == Sample(8.0, 100.0)


async def test_requests_of_every_priority_count_towards_lengths() -> None:
    counts = [0.0]

    def page() -> str:
        lengths = "sglang:prompt_tokens_histogram_bucket"
        lines = ["sglang:num_queue_reqs 0"]
        for bound in ("1.0", "+Inf"):
            lines += [f'{lengths}{{priority="{name}",le="{bound}"}} {counts[0]}' for name in ("0", "1")]
        return "\n".join(lines) + "\n"

    async with serving(page, SGLANG) as (source, fleet):
        await scrape(source, fleet, 100.0)
        counts[0] = 4.0
        metrics = (await scrape(source, fleet, 110.0)).metrics
    assert metrics.lengths == Sample(HistogramSnapshot((1.0,), (8.0, 0.0)), 110.0)


async def test_what_is_no_number_is_missing_and_the_rest_is_not() -> None:
    text = Text()
    async with serving(text) as (source, fleet):
        await scrape(source, fleet, 100.0)
        text.lengths, text.waits = (1, 3, 6), (2, "NaN", 5)
        metrics = (await scrape(source, fleet, 110.0)).metrics
    assert isinstance(metrics.lengths, Sample)
    told = "pod p shows no finite value of vllm:request_queue_time_seconds_bucket over the window yet"
    assert metrics.waits == metrics.long_waits == Missing(told)


async def test_a_page_without_the_engines_gauge_is_not_taken_for_the_engine() -> None:
    text = Text()
    async with serving(text) as (source, fleet):
        for now in (90.0, 100.0):
            await scrape(source, fleet, now)
        text.waiting, text.lengths = None, (1, 3, 6)
        metrics = (await scrape(source, fleet, 110.0)).metrics
        later = (await scrape(source, fleet, 500.0)).metrics
    assert isinstance(metrics.lengths, Stale)
    assert isinstance(later.lengths, Missing)
    assert "shows no vllm:num_requests_waiting at http" in later.lengths.reason


async def test_the_first_scrape_tells_no_growth() -> None:
    text = Text()
    text.lengths = (9, 9, 9)
    async with serving(text) as (source, fleet):
        assert isinstance((await scrape(source, fleet, 100.0)).metrics.lengths, Missing)


async def test_lightllm_doubles_the_bucket_and_nothing_else_of_it_is_read() -> None:
    base, seen = "lightllm_request_queue_duration_bucket", [0]

    def page() -> str:
        counts = f'{base}_count{{m="a"}} {seen[-1]}\n{base}_sum{{m="a"}} {seen[-1]}\n'
        buckets = "".join(f'{base}_bucket{{m="a",le="{bound}"}} {seen[-1]}\n' for bound in ("0.001", "+Inf"))
        return f"lightllm_queue_size 0\n{counts}{buckets}"

    async with serving(page, LIGHTLLM) as (source, fleet):
        await scrape(source, fleet, 100.0)
        seen.append(4)
        metrics = (await scrape(source, fleet, 110.0)).metrics
    assert metrics.waits == Sample(HistogramSnapshot((0.001,), (4, 0)), 110.0)


# --- what is read


@pytest.mark.parametrize(
    ("engine", "length", "shown", "lengths"),
    [
        pytest.param(
            SGLANG,
            UNCACHED,
            ("uncached_prompt_tokens_histogram", "prompt_tokens_histogram"),
            3,
            id="asked for and shown",
        ),
        pytest.param(SGLANG, UNCACHED, ("prompt_tokens_histogram",), 5, id="asked for and not shown"),
        pytest.param(
            SGLANG, PROMPT, ("uncached_prompt_tokens_histogram", "prompt_tokens_histogram"), 5, id="not asked for"
        ),
    ],
)
def test_uncached_lengths_are_read_where_they_are(engine, length, shown, lengths):
    counts = {"uncached_prompt_tokens_histogram": 3.0, "prompt_tokens_histogram": 5.0}
    series = {(f"sglang:{name}_bucket", bound): counts[name] for name in shown for bound in (100.0, float("inf"))}
    pod = to_pod_metrics(series, engine, length)
    assert pod.lengths == HistogramSnapshot((100.0,), (lengths, 0.0))


def test_a_bound_of_zero_becomes_part_of_the_next_bucket():
    name = "lightllm_request_input_length_bucket"
    pod = to_pod_metrics({(name, 0.0): 1.0, (name, 9.0): 4.0, (name, float("inf")): 4.0}, LIGHTLLM, PROMPT)
    assert pod.lengths == HistogramSnapshot((9.0,), (4.0, 0.0))


def test_waits_of_pods_under_another_policy_do_not_count():
    now, old = (PodTarget(name, Role.MIXED, "127.0.0.1", current=name == "now") for name in ("now", "old"))
    series = {
        (f"vllm:{name}_bucket", bound): 2.0
        for name in ("request_prompt_tokens", "request_queue_time_seconds")
        for bound in (1.0, float("inf"))
    }
    reading = Sample(to_pod_metrics(series, VLLM, PROMPT), 9.0)
    metrics = to_fleet_metrics([(now, reading), (old, reading)], VLLM, PROMPT)
    assert (metrics.lengths.value.total, metrics.waits.value.total) == (4.0, 2.0)
    metrics = to_fleet_metrics([(old, reading)], VLLM, PROMPT)
    assert metrics.waits == Missing("no ready pod was started with the policy in force")


def test_a_stale_pod_leaves_stale_waits():
    pod = PodTarget("p", Role.MIXED, "127.0.0.1")
    name = "vllm:request_queue_time_seconds_bucket"
    reading = Stale(to_pod_metrics({(name, 1.0): 2.0, (name, float("inf")): 2.0}, VLLM, PROMPT), 9.0)
    assert isinstance(to_fleet_metrics([(pod, reading)], VLLM, PROMPT).waits, Stale)


def test_prometheus_is_asked_for_every_spelling_of_the_fleets_pods_alone():
    pods = tuple(
        PodTarget(name, role, None) for name, role in (("a.b", Role.PREFILL), ("c", Role.PREFILL), ("d", Role.DECODE))
    )
    fleet = FleetQuery("ns", "chat", pods, 300.0, PROMPT, VLLM)
    (lengths, waits, age) = tuning_queries([fleet], 300.0)
    matchers = '{namespace=~"ns",pod=~"a[.]b|c"}'
    assert lengths.expression == " or on (namespace, pod) ".join(
        f"sum by (namespace, pod, le) (increase(vllm{mark}request_prompt_tokens_bucket{matchers}[300000ms]))"
        for mark in ":_"
    )
    assert all(matchers in query.expression for query in (lengths, waits, age))


def test_fleets_of_one_engine_are_asked_for_together_and_a_runtimes_beside_them():
    pods = (PodTarget("a", Role.MIXED, None),)
    fleets = [
        FleetQuery("ns", name, pods, 300.0, PROMPT, engine)
        for name, engine in (("x", MINDIE), ("y", MINDIE), ("z", None))
    ]
    asked = [query.name for query in tuning_queries(fleets, 300.0)]
    assert asked.count("request_prompt_tokens_bucket") == 1
    assert asked.count("prefleet_request_prompt_tokens_bucket") == 1
    none = [replace(fleet, pods=()) for fleet in fleets if fleet.engine]
    assert list(tuning_queries(none, 300.0)) == []


@pytest.mark.parametrize("kind", CASES)
def test_every_engine_names_what_is_needed(kind):
    metrics = CASES[kind].metrics
    assert metrics.prompt_lengths
    assert metrics.waiting
    assert bool(metrics.queue_waits) is CASES[kind].measures_waits
    assert metrics.port == (METRICS_PORT if kind == "MindIE" else HTTP_PORT)
