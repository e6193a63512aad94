"""Process trees: started as a session each, found again by a mark in their environment, killed as a whole.

Every process of the agent carries MARK_VARIABLE, a path below the agent's folder that names its container; its
children inherit it. A tree is everything that carries a mark or sits in a session led by such a process (a child
may have wiped its environment). The mark is also the proof of identity: nothing else is ever killed, whatever a
process id has come to mean since. Not found: a child that wipes its environment and starts its own session.

Only the standard library is used, since the watchdog imports this alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MARK_VARIABLE = "NODE_AGENT_MARK"

_KILL_ROUNDS = 50
_KILL_PAUSE_S = 0.02
_POLL_S = 0.05


@dataclass(frozen=True)
class Launch:
    """What to run: everything resolved, nothing left to look up."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    folder: Path

    def running(self, argv: Sequence[str]) -> Launch:
        """Another command at the same place."""
        return Launch(tuple(argv), self.environment, self.folder)


async def start(launch: Launch, output: Path) -> asyncio.subprocess.Process:
    """Starts a process as the leader of its own session, its output appended to a file; raises OSError."""
    with output.open("ab") as log:
        return await asyncio.create_subprocess_exec(
            *launch.argv,
            env=dict(launch.environment),
            cwd=launch.folder,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )


async def run_briefly(launch: Launch, timeout_s: float) -> tuple[int, str]:
    """Exit code and output of a command; it is killed, with its session, when the time is up (TimeoutError)."""
    process = await asyncio.create_subprocess_exec(
        *launch.argv,
        env=dict(launch.environment),
        cwd=launch.folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(timeout_s):
            output, _ = await process.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return exit_code(process), output.decode(errors="replace")


def exit_code(process: asyncio.subprocess.Process) -> int:
    """As a shell gives it: 128 + the signal's number for a process that a signal ended."""
    code = process.returncode
    if code is None:
        raise RuntimeError(f"process {process.pid} has not ended")
    return code if code >= 0 else 128 - code


def find_trees(mark: str) -> set[int]:
    """Processes that carry the mark or one below it, and those in sessions led by them."""
    prefix = f"{MARK_VARIABLE}={mark}".encode()
    sessions: dict[int, int | None] = {}
    marked: set[int] = set()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        pid = int(entry)
        # A process may end between any two of these lines; foreign ones may not be read.
        with contextlib.suppress(OSError):
            sessions[pid] = _live_session(pid)
            if _carries(Path(f"/proc/{pid}/environ").read_bytes(), prefix):
                marked.add(pid)
    alive = {pid for pid, session in sessions.items() if session is not None}
    return {pid for pid in alive if pid in marked or sessions[pid] in marked}


def _live_session(pid: int) -> int | None:
    """The session's id, 0 if its leader is outside the PID namespace; None for a process that is dead already."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[3])


def _carries(environment: bytes, prefix: bytes) -> bool:
    """Whether a variable is the prefix, or the prefix and a path below it."""
    return any(variable == prefix or variable.startswith(prefix + b"/") for variable in environment.split(b"\0"))


def kill_trees(mark: str) -> int:
    """SIGKILL to every process of the mark until none is left (they may fork meanwhile); how many were killed."""
    killed: set[int] = set()
    for _ in range(_KILL_ROUNDS):
        found = find_trees(mark)
        if not found:
            break
        killed |= found
        for pid in found:
            send(pid, signal.SIGKILL)
        time.sleep(_KILL_PAUSE_S)
    return len(killed)


def end_trees(mark: str, grace_s: float) -> None:
    """SIGTERM to every process of the mark, once; SIGKILL to those that are left after the grace."""
    deadline = time.monotonic() + grace_s
    for pid in find_trees(mark):
        send(pid, signal.SIGTERM)
    while find_trees(mark) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    kill_trees(mark)


def send(pid: int, number: signal.Signals) -> None:
    """A signal to a process that may be gone already."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
