"""What a pod that is to end waits for before its engine is told to stop: the preStop hook of engines with the runtime.

    python3 -m prefleet_runtime.drain --settle-s 10 --limit-s 310 --http-port 8000 --exporter-port 9400

1. The server is told (POST /prefleet/drain): with each answer from now on it closes the connection, so that a client
   that keeps connections opens its next one elsewhere.
2. For `settle_s` requests still come and are served as ever, until the pod's endpoint has left every proxy.
3. Then until nothing is unfinished: no request is open at the server, and the exporters (one for each data-parallel
   rank, on ports that follow one another) show no `prefleet_unfinished_requests`, which counts KV that is held for a
   decode pod too. Two looks have to agree, since a request is nowhere for a moment between server and engine.

All that takes `limit_s` at most; what is left then ends, or is cut off, by the engine's own shutdown. KV that nobody
fetches is no reason to wait longer than the lease that the engine gives it. A server that refuses connections serves
nobody: then there is nothing to wait for. One that does not answer in time is busy, and is asked again.

The standard library alone, since it runs by the engine image's own interpreter, beside a busy engine.
Left out: further API server processes of one engine (of those one is told; the gauge counts for all).
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Final

DRAIN_PATH: Final = "/prefleet/drain"
UNFINISHED: Final = "prefleet_unfinished_requests"
LOOK_EVERY_S: Final = 0.5
ANSWER_S: Final = 5.0
QUIET_LOOKS: Final = 2


class Pod:
    """The pod's own server and exporters, asked from its own address."""

    def __init__(self, host: str, http_port: int, exporter_port: int) -> None:
        self._host = host
        self._http_port = http_port
        self._exporter_port = exporter_port

    def open_requests(self) -> int | None:
        """Requests open at the server, which is told by that to close connections; 0 if it cannot tell, and None
        without a server. Raises OSError where it does not answer in time."""
        found = self._ask("POST", self._http_port, DRAIN_PATH)
        return None if found is None else _open_in(found)

    def unfinished(self) -> int:
        """Requests in the engine, over all ranks. Raises OSError where an exporter does not answer in time, or with a
        number."""
        total, port = 0, self._exporter_port
        while (metrics := self._ask("GET", port, "/metrics")) is not None:
            total += _gauge_in(metrics)
            port += 1
        return total

    def _ask(self, method: str, port: int, path: str) -> str | None:
        """The body of an answer, "" if there is nothing under that path; None if nobody listens."""
        connection = http.client.HTTPConnection(self._host, port, ANSWER_S, (self._host, 0))
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            body = answer.read().decode(errors="replace")
        except ConnectionRefusedError:
            return None
        except http.client.HTTPException as error:
            raise OSError(f"port {port} broke off its answer: {error!r}") from error
        finally:
            connection.close()
        if answer.status >= 500:
            raise OSError(f"port {port} answers {answer.status}")
        return body if answer.status == 200 else ""


def _open_in(body: str) -> int:
    try:
        return int(json.loads(body)["open"])
    except (ValueError, KeyError, TypeError):
        return 0


def _gauge_in(metrics: str) -> int:
    values = (
        line.split()[-1] for line in metrics.splitlines() if line.startswith((UNFINISHED + " ", UNFINISHED + "{"))
    )
    try:
        return sum(int(float(value)) for value in values)
    except (ValueError, OverflowError) as error:
        raise OSError(f"{UNFINISHED} is no number: {error}") from error


def drain(
    pod: Pod, settle_s: float, limit_s: float, clock: Callable[[], float], sleep: Callable[[float], None]
) -> bool:
    """Wait as the module says; whether everything had ended."""
    deadline_s = clock() + limit_s
    if _look(pod) is None:
        return True
    sleep(min(settle_s, limit_s))
    quiet = 0
    while clock() < deadline_s:
        left = _look(pod)
        quiet = 0 if left else quiet + 1
        if left is None or quiet == QUIET_LOOKS:
            return True
        sleep(LOOK_EVERY_S)
    return False


def _look(pod: Pod) -> int | None:
    """What is unfinished, at least 1 where that is not known; None without a server."""
    try:
        opened = pod.open_requests()
        return None if opened is None else opened + pod.unfinished()
    except OSError:
        return 1


def main(arguments: Sequence[str] | None = None) -> None:
    """The hook."""
    parser = argparse.ArgumentParser(prog="prefleet_runtime.drain", description="Wait until this pod has drained.")
    add = parser.add_argument
    add("--host", default=os.environ.get("POD_IP", "127.0.0.1"), help="the pod's address; default: POD_IP")
    add("--http-port", type=int, required=True, help="where the engine serves")
    add("--exporter-port", type=int, required=True, help="where the runtime serves its metrics, by rank upwards")
    add("--settle-s", type=float, required=True, help="how long proxies may still send new requests")
    add("--limit-s", type=float, required=True, help="the most that all this may take")
    given = parser.parse_args(arguments)
    # Looks are bounded by silence alone: an answer that trickles in for ever would hold the hook beyond its limit.
    signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
    signal.setitimer(signal.ITIMER_REAL, given.limit_s)
    pod = Pod(given.host, given.http_port, given.exporter_port)
    drain(pod, given.settle_s, given.limit_s, time.monotonic, time.sleep)


if __name__ == "__main__":
    main()
