"""`prefleet replay --engine` beside presets: a CSV of measured steps, and the metrics of a running runtime."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from prefleet_operator.cli import engine_cost
from prefleet_operator.cli.commands import app
from typer.testing import CliRunner, Result

COST = {
    "fixed_s": 0.01,
    "per_prefill_token_s": 5e-5,
    "per_decode_token_s": 1e-4,
    "per_attention_pair_s": 2e-9,
    "per_decode_context_token_s": 1e-8,
}
PAGE = "".join(
    f'prefleet_step_cost_seconds{{term="{term}"}} {value}\nprefleet_step_cost_error_seconds{{term="{term}"}} 0\n'
    for term, value in zip(
        ("fixed", "prefill_token", "decode_token", "attention_pair", "decode_context_token"), COST.values(), strict=True
    )
) + (
    "prefleet_step_cost_samples 500\nprefleet_step_cost_noise_seconds 0.001\n"
    "prefleet_step_seconds_sum 20\nprefleet_step_seconds_count 500\n"
    "prefleet_step_tokens_sum 200000\nprefleet_step_tokens_count 500\n"
)


def run(engine: str) -> Result:
    arguments = ["bimodal:seed=3,requests=200", "--policy", "srf", "--no-bound", "--threshold", "1000"]
    return CliRunner().invoke(app, ["replay", *arguments, "--engine", engine, "--json", "-"])


def replayed(engine: str) -> dict[str, Any]:
    result = run(engine)
    assert result.exit_code == 0, result.output
    figures: dict[str, Any] = json.loads(result.stdout)
    return figures


@contextmanager
def served(body: bytes, pause: Event | None = None) -> Iterator[str]:
    """A server that answers anything with `body`, after `pause`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if pause is not None:
                pause.wait()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            try:
                self.wfile.write(body)
            except OSError:
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/metrics"
        finally:
            if pause is not None:
                pause.set()
            server.shutdown()
            thread.join()


def test_measured_steps_are_replayed_as_their_cost_in_json_would_be(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    rows = [(n * 37 % 2048, n % 5) for n in range(200)]
    lines = [f"{0.01 + 5e-5 * prefill + 1e-4 * decode},{prefill},{decode}" for prefill, decode in rows]
    path.write_text("\n".join(["seconds,prefill_tokens,decode_tokens", *lines]))
    result = run(str(path))
    assert "step cost of 200 steps" in result.stderr
    told = result.stderr.partition("--engine '")[2].partition("'")[0]
    assert replayed(str(path)) == replayed(told)


def test_the_metrics_of_a_runtime_are_replayed_as_their_cost_in_json_would_be() -> None:
    with served(PAGE.encode()) as address:
        assert replayed(address) == replayed(json.dumps(COST))


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        pytest.param(b"", "lacks prefleet_step_cost_seconds", id="another program's metrics"),
        pytest.param(b"# " + bytes(engine_cost.MOST_BYTES), "is over 1 MiB", id="a page without end"),
    ],
)
def test_a_page_that_tells_no_cost_is_refused_with_a_sentence(body: bytes, sentence: str) -> None:
    with served(body) as address:
        result = run(address)
    assert result.exit_code == 2
    assert f"--engine: {address}" in result.output
    assert sentence in result.output


def test_a_server_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine_cost.FETCH_S == 5
    monkeypatch.setattr(engine_cost, "FETCH_S", 0.05)
    with served(b"", pause=Event()) as address:
        result = run(address)
    assert result.exit_code == 2
    assert "cannot be had" in result.output


@pytest.mark.parametrize(
    ("engine", "sentence"),
    [
        ("missing.csv", "missing.csv: cannot be read"),
        ("http://127.0.0.1:1/metrics", "cannot be had"),
        ("http://[::1/metrics", "cannot be had"),
    ],
)
def test_what_cannot_be_had_is_said(engine: str, sentence: str) -> None:
    result = run(engine)
    assert result.exit_code == 2
    assert sentence in result.output
    assert "Traceback" not in result.output
