"""A headless Chromium, driven by its DevTools protocol: to see what a page shows, and whether it asks for anything.

`Browser` is the process, on a loopback port that it chooses itself; `Tab` one page in it. A tab keeps all events that
came while it waited for an answer.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.waiting import eventually

NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_chromium() -> str | None:
    """The program, if there is one on PATH."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Tab:
    """One page. Each method is a DevTools command and its answer."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.events: list[dict[str, Any]] = []
        self._socket = socket
        self._numbers = count(1)

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Raises RuntimeError if the browser refuses."""
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while True:
            message: dict[str, Any] = await self._socket.receive_json()
            if message.get("id") != number:
                self.events.append(message)
            elif "error" in message:
                raise RuntimeError(f"{method}: {message['error']['message']}")
            else:
                answer: dict[str, Any] = message["result"]
                return answer

    async def open(self, url: str) -> None:
        """Load a page, once a tab, and wait until all of it is there."""
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")
        await self.call("Page.navigate", url=url)
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(await self._socket.receive_json())

    async def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; raises RuntimeError if it throws."""
        answer = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"]))
        return answer["result"].get("value")

    async def show(self, width: int, scheme: str = "light", media: str = "screen") -> None:
        """Emulate a window of that width, a colour scheme and a medium."""
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.call("Emulation.setEmulatedMedia", media=media, features=features)

    async def screenshot(self) -> bytes:
        """The whole page as PNG."""
        shot = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        return base64.b64decode(shot["data"])

    async def pdf(self) -> bytes:
        """The page as it is printed, on A4."""
        printed = await self.call("Page.printToPDF", paperWidth=8.27, paperHeight=11.69, printBackground=False)
        return base64.b64decode(printed["data"])

    def complaints(self) -> list[str]:
        """What the console would show in red: errors of the page, and what its security policy has stopped."""
        logged = [event["params"]["entry"] for event in self.events if event["method"] == "Log.entryAdded"]
        thrown = [event for event in self.events if event["method"] == "Runtime.exceptionThrown"]
        return [entry["text"] for entry in logged if entry["level"] == "error"] + [json.dumps(e) for e in thrown]

    def requests(self) -> list[str]:
        """All addresses that the page has asked for, itself included."""
        sent = [event["params"] for event in self.events if event["method"] == "Network.requestWillBeSent"]
        return [each["request"]["url"] for each in sent]


class Browser:
    """A running browser; `port` is that of its DevTools."""

    def __init__(self, port: int) -> None:
        self.port = port

    @asynccontextmanager
    async def tab(self) -> AsyncIterator[Tab]:
        """A new tab."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
            async with session.put(f"http://127.0.0.1:{self.port}/json/new") as answer:
                target = await answer.json(content_type=None)
            async with session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                yield Tab(socket)


@contextmanager
def run_browser(program: str, folder: Path) -> Iterator[Browser]:
    """Start it with a profile in `folder`; it ends with the block, and its children with it."""
    profile = folder / "profile"
    arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    arguments += ["--remote-debugging-port=0", f"--user-data-dir={profile}", "--hide-scrollbars", "about:blank"]
    with (folder / "browser.log").open("wb") as log:
        process = subprocess.Popen([program, *arguments], stdout=log, stderr=log, start_new_session=True)
    told = profile / "DevToolsActivePort"
    try:
        eventually(lambda: told.exists() and len(told.read_text().splitlines()) >= 2)
        yield Browser(int(told.read_text().splitlines()[0]))
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
