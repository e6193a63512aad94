"""A Prometheus that is down, slow or talks nonsense: the answer is Missing or Stale, with a sentence."""

import json
import ssl
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from urllib.parse import parse_qs

import pytest
from prefleet_operator.adapters import prometheus
from prefleet_operator.adapters.metrics_source import FleetQuery, FleetReading, PodTarget
from prefleet_operator.adapters.prometheus import PrometheusSource
from prefleet_operator.api import LengthMeasure, Role
from prefleet_operator.core.observed import Missing, Sample, Stale
from prefleet_operator.core.sizing.values import RoleLoad

from tests.support.exporter import reply
from tests.support.plane.certs import Authority, Pair
from tests.support.plane.processes import free_ports

NOW = 1_800_000_000.0
POD = PodTarget("pod-0", Role.PREFILL, "127.0.0.1")


def query(name: str = "chat", window_s: float = 300.0, length: LengthMeasure = LengthMeasure.UNCACHED) -> FleetQuery:
    return FleetQuery("ns", name, (POD,), window_s, length)


def vector(*rows: tuple[dict[str, str], str]) -> bytes:
    labels = {"namespace": "ns", "pod": "pod-0"}
    result = [{"metric": labels | more, "value": [NOW, text]} for more, text in rows]
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()


class Stub:
    """A server on a free port. `answers`: from a query to (status, body); what was asked is kept."""

    def __init__(self, pair: Pair | None = None) -> None:
        self.answers: Callable[[str], tuple[int, bytes]] = healthy
        self.delay_s = 0.0
        self.asked: list[str] = []
        self.authorizations: set[str | None] = set()
        self.closed = Event()
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                stub.asked.append(form["query"][0])
                stub.authorizations.add(self.headers["Authorization"])
                stub.closed.wait(stub.delay_s)
                status, body = stub.answers(form["query"][0])
                reply(self, status, body, "application/json")

            def log_message(self, *_: object) -> None:
                """Say nothing: pytest shows what matters."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"{'https' if pair else 'http'}://127.0.0.1:{self.server.server_address[1]}"
        if pair:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(pair.cert, pair.key)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.thread = Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.closed.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def healthy(asked: str) -> tuple[int, bytes]:
    """100 requests of 100 tokens or less, seen ten seconds ago."""
    if "timestamp(" in asked:
        return 200, vector(({}, f"{NOW - 10}"))
    if "le" in asked.split("(")[1]:
        return 200, vector(({"le": "100.0"}, "100"), ({"le": "+Inf"}, "100"))
    return 200, vector(({"lane": "long"} if "lane" in asked else {}, "3"))


@pytest.fixture
def stub() -> Iterator[Stub]:
    stub = Stub()
    yield stub
    stub.close()


@pytest.fixture
async def source(stub: Stub) -> AsyncIterator[PrometheusSource]:
    source = PrometheusSource("main", stub.url, timeout_s=20.0)
    yield source
    await source.close()


async def read(source: PrometheusSource, fleet: FleetQuery | None = None) -> FleetReading:
    fleet = fleet or query()
    return (await source.read([fleet], NOW))[fleet.key]


async def test_a_healthy_server_gives_samples_of_the_time_they_were_taken(source):
    reading = await read(source)
    assert reading.metrics.lengths == Sample(reading.metrics.lengths.value, NOW - 10)
    assert reading.metrics.lengths.value.counts == (100.0, 0.0)
    assert reading.generations == {"pod-0": Sample(3, NOW - 10)}


async def test_all_fleets_of_a_window_are_asked_for_at_once(source, stub):
    fleets = [query("a"), query("b"), query("c", length=LengthMeasure.PROMPT)]
    assert len(await source.read(fleets, NOW)) == 3
    assert len(stub.asked) == len(set(stub.asked)) == 11
    await source.read([*fleets, query("d", window_s=60.0)], NOW)
    assert len(stub.asked) == 11 + 11 + 10
    assert sum("[60000ms]" in asked for asked in stub.asked) == 6


def always(status: int, body: bytes) -> Callable[[str], tuple[int, bytes]]:
    return lambda _: (status, body)


ANSWERS = [
    ("a server error", always(503, b"unavailable"), "answered 503"),
    ("a refusal", always(401, b"{}"), "check its URL and its credentials"),
    ("a bad query", always(400, json.dumps({"status": "error", "error": "parse error"}).encode()), "parse error"),
    ("a redirect", always(302, b""), "answered 302"),
    ("a web page", always(200, b"<html>sign in</html>"), "no Prometheus answer"),
    ("half an answer", always(200, vector(({}, "1"))[:-20]), "no Prometheus answer"),
    ("a list", always(200, b"[]"), "no Prometheus answer"),
    ("a scalar", always(200, b'{"status":"success","data":{"resultType":"scalar","result":[1,"1"]}}'), "answered 200"),
    (
        "rows that are no rows",
        always(200, b'{"status":"success","data":{"resultType":"vector","result":[7]}}'),
        "vector",
    ),
    ("values that are no numbers", always(200, vector(({"le": "1"}, "many"))), "no Prometheus vector"),
    ("no rows at all", always(200, vector()), "has no prefleet_policy_generation of pod ns/pod-0"),
    ("rows without labels", lambda asked: (200, vector(({}, "1")).replace(b'"pod"', b'"kubernetes_pod"')), "labels"),
]


@pytest.mark.parametrize(("answers", "told"), [pytest.param(*row[1:], id=row[0]) for row in ANSWERS])
async def test_everything_is_missing_after(source, stub, answers, told):
    stub.answers = answers
    reading = await read(source)
    metrics = reading.metrics
    for found in (metrics.lengths, metrics.long_waits, metrics.promotions, reading.generations["pod-0"]):
        assert isinstance(found, Missing)
        assert told in found.reason
        assert "Prometheus main at http://127.0.0.1" in found.reason


async def test_one_query_that_fails_is_enough(source, stub):
    stub.answers = lambda asked: (500, b"") if "degradations" in asked else healthy(asked)
    assert isinstance((await read(source)).metrics.lengths, Missing)


async def test_a_server_that_is_down_is_named():
    source = PrometheusSource("main", f"http://user:secret@127.0.0.1:{free_ports(1)[0]}", timeout_s=2.0)
    found = (await read(source)).metrics.lengths
    assert "check its URL, and that it runs" in found.reason
    assert "secret" not in found.reason
    await source.close()


async def test_a_slow_server_is_given_up_in_time(stub):
    stub.delay_s = 30.0
    source = PrometheusSource("main", stub.url, timeout_s=0.2)
    assert "did not answer within 0.2 s" in (await read(source)).metrics.lengths.reason
    await source.close()


async def test_a_server_that_recovers_is_believed_again(source, stub):
    stub.answers = always(500, b"")
    assert isinstance((await read(source)).metrics.lengths, Missing)
    stub.answers = healthy
    assert isinstance((await read(source)).metrics.lengths, Sample)


async def test_an_answer_without_end_is_given_up(source, stub, monkeypatch):
    monkeypatch.setattr(prometheus, "MAX_ANSWER_BYTES", 1000)
    stub.answers = always(200, b"x" * 5000)
    assert "more than 1,000 bytes" in (await read(source)).metrics.lengths.reason


async def test_of_long_answers_only_one_at_a_time_is_held_as_it_was_parsed(source, stub):
    """All of a cluster's together would not fit into the memory that the operator has."""
    rows = [({"pod": f"pod-{pod}", "le": f"{le}"}, "1") for pod in range(400) for le in range(20)]
    stub.answers = always(200, vector(*rows))
    tracemalloc.start()
    try:
        json.loads(vector(*rows))
        _, once = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        await read(source)
        _, together = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(stub.asked) == 10
    assert together < 4 * once


async def test_series_that_no_longer_move_are_stale(source, stub):
    stub.answers = lambda asked: (200, vector(({}, f"{NOW - 151}"))) if "timestamp(" in asked else healthy(asked)
    reading = await read(source)
    assert isinstance(reading.metrics.lengths, Stale)
    assert reading.generations["pod-0"] == Stale(3, NOW - 151)


@pytest.mark.parametrize("number", ["NaN", "+Inf", "-Inf"])
async def test_a_histogram_with_a_count_that_is_no_number_is_missing(source, stub, number):
    bad = vector(({"le": "100"}, number), ({"le": "200"}, "50"), ({"le": "+Inf"}, "100"))
    stub.answers = lambda asked: (200, bad) if "uncached" in asked else healthy(asked)
    metrics = (await read(source)).metrics
    assert "no finite value of prefleet_request_uncached_tokens" in metrics.lengths.reason
    assert isinstance(metrics.promotions, Sample)


async def test_a_bound_spelt_in_two_ways_is_one_bound(source, stub):
    both = vector(({"le": "100"}, "30"), ({"le": "100.0"}, "70"), ({"le": "+Inf"}, "100"))
    stub.answers = lambda asked: (200, both) if "uncached" in asked else healthy(asked)
    assert (await read(source)).metrics.lengths.value.counts == (100.0, 0.0)


@pytest.mark.parametrize("bound", [{"le": "NaN"}, {"le": "many"}, {}])
async def test_a_bucket_without_a_bound_spoils_the_histogram_of_its_own_pod_alone(source, stub, bound):
    """Any pod of the cluster may show one, and all fleets are asked for at once."""
    rows = vector((bound | {"pod": "strange"}, "-1"), ({"le": "100"}, "30"), ({"le": "+Inf"}, "100"))
    stub.answers = lambda asked: (200, rows) if "uncached" in asked else healthy(asked)
    strange = replace(query("strange"), pods=(replace(POD, name="strange"),))
    readings = await source.read([query(), strange], NOW)
    assert readings["ns/chat"].metrics.lengths.value.counts == (30.0, 70.0)
    assert isinstance(readings["ns/strange"].metrics.lengths, Missing)


def loads_of(reading: FleetReading) -> RoleLoad:
    return reading.loads[Role.PREFILL]


def loaded(asked: str) -> tuple[int, bytes]:
    """A pod that has done something and holds something, seen ten seconds ago."""
    if "__name__" not in asked:
        return healthy(asked)
    names = ("running_requests", "waiting_requests", "waiting_tokens") if "lane" in asked else ("kv_usage_ratio",)
    return 200, vector(*(({"__name__": f"prefleet_{name}"}, "0.5") for name in names))


SIZED = replace(query(), sized=True)


async def test_loads_are_samples_of_the_time_the_pod_was_read(source, stub):
    stub.answers = loaded
    load = loads_of(await read(source, SIZED))
    assert load.running == Sample(0.5, NOW - 10)
    # The increase of the pod's uptime says that it was watched for 3 s.
    assert "have been watched for 3 s" in load.arrivals.reason
    asked = [expression for expression in stub.asked if "pod-0" in expression]
    assert len(asked) == len(set(asked)) == 14


async def test_loads_of_a_pod_that_is_no_longer_read_are_stale(source, stub):
    stub.answers = lambda asked: (200, vector(({}, f"{NOW - 151}"))) if "timestamp(" in asked else loaded(asked)
    assert loads_of(await read(source, SIZED)).running == Stale(0.5, NOW - 151)


@pytest.mark.parametrize(
    ("failing", "lengths", "running"),
    [
        pytest.param("uptime", Sample, Missing, id="one query of loads leaves what tuning reads"),
        pytest.param("degradations", Missing, Sample, id="one query of tuning leaves the loads"),
    ],
)
async def test_what_fails_takes_its_own_group_with_it(source, stub, failing, lengths, running):
    stub.answers = lambda asked: (500, b"") if failing in asked else loaded(asked)
    reading = await read(source, SIZED)
    assert isinstance(reading.metrics.lengths, lengths)
    assert isinstance(loads_of(reading).running, running)


async def test_a_server_that_is_down_leaves_no_load(source, stub):
    stub.answers = always(503, b"unavailable")
    reading = await read(source, SIZED)
    assert "answered 503" in loads_of(reading).arrivals.reason
    assert "answered 503" in reading.pod_loads["pod-0"].reason


async def test_the_token_is_read_anew_for_each_cycle(stub, tmp_path: Path):
    token = tmp_path / "token"
    source = PrometheusSource("main", stub.url, bearer_token_file=str(token))
    for text in ("first", "second\n"):
        token.write_text(text)
        await read(source)
    assert stub.authorizations == {"Bearer first", "Bearer second"}
    token.unlink()
    assert "token or CA file cannot be read" in (await read(source)).metrics.lengths.reason
    await source.close()


async def test_a_ca_file_that_is_none_is_said(stub, tmp_path: Path):
    ca = tmp_path / "ca.crt"
    ca.write_text("no certificate")
    source = PrometheusSource("main", stub.url, ca_file=str(ca))
    assert "check the mounted Secret" in (await read(source)).metrics.lengths.reason
    await source.close()


async def test_a_server_with_its_own_ca_is_trusted_by_the_ca_file_alone(tmp_path: Path):
    authority = Authority.open(tmp_path, "ca")
    stub = Stub(authority.issue("server", "prometheus", hosts=["127.0.0.1"]))
    stranger = PrometheusSource("main", stub.url, timeout_s=5.0)
    friend = PrometheusSource("main", stub.url, ca_file=str(authority.pair.cert), timeout_s=5.0)
    try:
        assert "certificate" in (await read(stranger)).metrics.lengths.reason
        assert isinstance((await read(friend)).metrics.lengths, Sample)
    finally:
        await stranger.close()
        await friend.close()
        stub.close()
