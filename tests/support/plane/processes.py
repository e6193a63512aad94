"""Child processes for tests: logged to a file, waited for in bounded time, stopped by pid, never left behind.

Every process runs under guard.py, which says how it is made to end with this one.
"""

import os
import random
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

GUARD = Path(__file__).with_name("guard.py")
POLL_S = 0.05


class ProcessFailed(RuntimeError):
    """A process ended, or did not become ready, when it should have served."""


class Process:
    """One running command with its log file."""

    def __init__(self, name: str, guard: subprocess.Popen[bytes], log: Path, grace_s: float) -> None:
        self.name = name
        self.log = log
        self._guard = guard
        self._grace_s = grace_s

    @classmethod
    def start(
        cls,
        name: str,
        argv: Sequence[str | Path],
        log: Path,
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        grace_s: float = 10.0,
    ) -> "Process":
        """Start `argv`; both of its outputs are appended to `log`. `env` replaces the environment."""
        command = [sys.executable, "-I", "-S", str(GUARD), str(os.getpid()), str(grace_s), *map(str, argv)]
        with log.open("ab") as output:
            guard = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env=env,
                start_new_session=True,
            )
        return cls(name, guard, log, grace_s)

    @property
    def pid(self) -> int:
        """The guard's pid: a signal to it reaches the command."""
        return self._guard.pid

    @property
    def exit_status(self) -> int | None:
        """None while it runs."""
        return self._guard.poll()

    def check(self) -> None:
        """Raise if the process has ended."""
        if self.exit_status is not None:
            raise ProcessFailed(f"{self.name} ended with status {self.exit_status}; {self.log_end()}")

    def wait_ready(self, is_ready: Callable[[], bool], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not is_ready():
            self.check()
            if time.monotonic() > deadline:
                raise ProcessFailed(f"{self.name} was not ready in {timeout_s:.0f} s; {self.log_end()}")
            time.sleep(POLL_S)

    def stop(self) -> None:
        """SIGTERM, then SIGKILL after the grace; returns when it is gone. Stopping twice is harmless."""
        if self.exit_status is not None:
            return
        self._guard.terminate()
        try:
            self._guard.wait(self._grace_s + 5)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """SIGKILL at once: the command gets the same from the kernel."""
        self._guard.send_signal(signal.SIGKILL)
        self._guard.wait()

    def log_end(self, lines: int = 20) -> str:
        tail = self.log.read_text(errors="replace").splitlines()[-lines:]
        return "\n".join([f"its log {self.log} ends:", *tail])


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on.

    Taken from below the kernel's range for outgoing connections, so that none of those takes a port between
    this answer and its use, and at random, so that two planes that start together differ.
    """
    held: list[socket.socket] = []
    try:
        while len(held) < count:
            candidate = socket.socket()
            try:
                candidate.bind(("127.0.0.1", random.randrange(10_000, 32_000)))
                held.append(candidate)
            except OSError:
                candidate.close()
        return [each.getsockname()[1] for each in held]
    finally:
        for each in held:
            each.close()


def direct_opener(context: ssl.SSLContext | None = None) -> urllib.request.OpenerDirector:
    """Opens URLs without any proxy that the environment names: all that these tests ask is on this machine."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))


def answers(url: str, context: ssl.SSLContext | None = None) -> Callable[[], bool]:
    """A probe: does a GET of `url` answer 2xx within two seconds?"""
    opener = direct_opener(context)

    def probe() -> bool:
        try:
            with opener.open(url, timeout=2):
                return True
        except (urllib.error.URLError, OSError):
            return False

    return probe
