"""Run one command that ends whenever the process that asked for it ends, however that ends.

Usage: python guard.py PARENT_PID GRACE_S COMMAND [ARGUMENT...]

Why a process of its own, not PR_SET_PDEATHSIG set by the caller: that signal fires when the *thread* that
forked ends, so a child started from a worker thread would die early, and code run between fork and exec of
a program with threads may deadlock. The guard has one thread and lives as long as its child, so neither
applies here.

- The caller's death is seen through a pidfd: it tells of the whole process, kill -9 included, and is
  inherited by nobody, as the end of a pipe would be. The child's group then gets SIGTERM and, after the
  grace, SIGKILL.
- The guard's own death is seen by the kernel: the child asked for SIGKILL when its parent, the guard, ends.
- SIGTERM to the guard is the ordinary stop. SIGINT is ignored: Ctrl-C belongs to whoever owns the order of
  stopping.

The exit status is the child's (128 + n for a signal n). Not covered: grandchildren that leave the process
group. This file is run by path, without the project on sys.path: it imports the standard library only.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys

PR_SET_PDEATHSIG = 1


def die_with(parent_pid: int) -> None:
    """Between fork and exec: ask for SIGKILL at the parent's end, then see whether it ended before that."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)


def end(child: subprocess.Popen[bytes], grace_s: float) -> None:
    os.killpg(child.pid, signal.SIGTERM)
    try:
        child.wait(grace_s)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def main(parent_pid: int, grace_s: float, command: list[str]) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGTERM, lambda *_: None)
    parent_fd = os.pidfd_open(parent_pid)
    if os.getppid() != parent_pid:
        return 1
    guard_pid = os.getpid()
    child = subprocess.Popen(command, process_group=0, restore_signals=True, preexec_fn=lambda: die_with(guard_pid))
    child_fd = os.pidfd_open(child.pid)
    poll = select.poll()
    for fd in (wake_read, parent_fd, child_fd):
        poll.register(fd, select.POLLIN)
    ready = {fd for fd, _ in poll.poll()}
    if child_fd not in ready:
        end(child, grace_s)
    status = child.wait()
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
