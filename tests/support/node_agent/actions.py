"""What probes and lifecycle hooks do: exec, httpGet, tcpSocket, sleep. Each answers; none raises for a bad answer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import aiohttp

from tests.support.node_agent.api import Json
from tests.support.node_agent.launching import Plan
from tests.support.node_agent.processes import run_briefly
from tests.support.node_agent.settings import Host

KNOWN = ("exec", "httpGet", "tcpSocket", "sleep")


@dataclass(frozen=True)
class Outcome:
    ok: bool
    message: str


async def perform(action: Json, container: Json, plan: Plan, host: Host, timeout_s: float) -> Outcome:
    """The one action of a probe or hook. Running out of time is an outcome, not an error."""
    try:
        if "exec" in action:
            return await _exec(action["exec"]["command"], plan, timeout_s)
        async with asyncio.timeout(timeout_s):
            if "httpGet" in action:
                return await _http_get(action["httpGet"], container, plan.address, host.http)
            if "tcpSocket" in action:
                return await _tcp_socket(action["tcpSocket"], container, plan.address)
            await asyncio.sleep(action["sleep"]["seconds"])
            return Outcome(True, "slept")
    except TimeoutError:
        return Outcome(False, f"no answer within {timeout_s:g} s")


async def _exec(command: list[str], plan: Plan, timeout_s: float) -> Outcome:
    try:
        code, output = await run_briefly(plan.command(command), timeout_s)
    except OSError as error:
        return Outcome(False, f"{command[0]} could not be run: {error}")
    return Outcome(code == 0, f"exit code {code}: {output[-500:].strip()}")


async def _http_get(get: Json, container: Json, address: str, http: aiohttp.ClientSession) -> Outcome:
    scheme, path = get.get("scheme", "HTTP").lower(), get.get("path", "/")
    url = f"{scheme}://{get.get('host') or address}:{port_number(get['port'], container)}/{path.lstrip('/')}"
    headers = {header["name"]: header["value"] for header in get.get("httpHeaders", [])}
    try:
        async with http.get(url, headers=headers) as response:
            return Outcome(200 <= response.status < 400, f"HTTP status {response.status} from {url}")
    except (aiohttp.ClientError, OSError) as error:
        return Outcome(False, f"Get {url}: {error}")


async def _tcp_socket(socket: Json, container: Json, address: str) -> Outcome:
    host, port = socket.get("host") or address, port_number(socket["port"], container)
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError as error:
        return Outcome(False, f"dial {host}:{port}: {error}")
    writer.close()
    return Outcome(True, "connected")


def port_number(port: int | str, container: Json) -> int:
    """A port by number, or by its name among the container's ports (0 for a name that is not there)."""
    if isinstance(port, int) or port.isdigit():
        return int(port)
    named = (item["containerPort"] for item in container.get("ports", []) if item.get("name") == port)
    return next(named, 0)
