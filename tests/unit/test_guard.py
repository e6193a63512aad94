"""No process outlives the one that started it, however that one ends (tests/support/plane/guard.py)."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.plane.processes import Process, ProcessFailed, answers, free_ports
from tests.support.waiting import eventually

STUBBORN = ["sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.1; done"]


def is_alive(pid: int) -> bool:
    """A zombie that nobody reaps has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def child_of(pid: int) -> int | None:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else None


def started(tmp_path: Path, argv: list[str], grace_s: float = 5.0) -> tuple[Process, int]:
    process = Process.start("sample", argv, tmp_path / "log", grace_s=grace_s)
    child = eventually(lambda: child_of(process.pid))
    assert child is not None
    return process, child


def test_stop_ends_the_command(tmp_path: Path) -> None:
    process, child = started(tmp_path, ["sleep", "60"])
    process.stop()
    process.stop()
    assert not is_alive(child)


def test_a_command_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    process, child = started(tmp_path, STUBBORN, grace_s=0.2)
    eventually((tmp_path / "log").read_text)
    process.stop()
    assert not is_alive(child)


def test_the_command_ends_when_its_guard_is_killed(tmp_path: Path) -> None:
    process, child = started(tmp_path, STUBBORN)
    process.kill()
    eventually(lambda: not is_alive(child))


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(lambda parent: parent.kill(), id="the parent is killed with -9"),
        pytest.param(lambda parent: parent.terminate(), id="the parent is terminated"),
        pytest.param(lambda parent: parent.stdin.close(), id="the parent leaves without stopping it"),
    ],
)
def test_the_command_ends_with_its_parent(tmp_path: Path, end: Callable[[subprocess.Popen[str]], None]) -> None:
    program = f"""
import sys
from pathlib import Path
from tests.support.plane.processes import Process
print(Process.start("sample", ["sleep", "60"], Path({str(tmp_path / "log")!r})).pid, flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as parent:
        assert parent.stdout is not None
        guard = int(parent.stdout.readline())
        child = eventually(lambda: child_of(guard))
        assert child is not None
        end(parent)
    eventually(lambda: not is_alive(child) and not is_alive(guard))


def test_a_command_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    begun: list[Process] = []
    thread = threading.Thread(target=lambda: begun.append(Process.start("sample", ["sleep", "60"], tmp_path / "log")))
    thread.start()
    thread.join()
    child = eventually(lambda: child_of(begun[0].pid))
    assert child is not None
    assert is_alive(child)
    assert begun[0].exit_status is None
    begun[0].stop()


def test_ctrl_c_in_the_terminal_does_not_reach_the_command(tmp_path: Path) -> None:
    process, child = started(tmp_path, ["sleep", "60"])
    assert os.getpgid(child) not in (os.getpgid(0), os.getpgid(process.pid))
    os.kill(process.pid, signal.SIGINT)
    os.kill(child, 0)
    assert process.exit_status is None
    process.stop()


def test_a_process_that_ends_early_shows_the_end_of_its_log(tmp_path: Path) -> None:
    process = Process.start("sample", ["sh", "-c", "echo bad flag >&2; exit 7"], tmp_path / "log")
    with pytest.raises(ProcessFailed, match=r"(?s)sample ended with status 7.*bad flag"):
        process.wait_ready(answers(f"http://127.0.0.1:{free_ports(1)[0]}/"), timeout_s=30)


def test_a_process_that_is_never_ready_is_told_so_in_bounded_time(tmp_path: Path) -> None:
    process, _ = started(tmp_path, ["sleep", "60"])
    with pytest.raises(ProcessFailed, match="was not ready in 0 s"):
        process.wait_ready(lambda: False, timeout_s=0.1)
    process.stop()


def test_free_ports_differ() -> None:
    assert len(set(free_ports(20))) == 20
