"""What the demo shows while it runs: a live table in a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from tests.support.demo.client import Replay
from tests.support.demo.workload import quantile

PLAIN_EVERY_S = 10.0
RECENT_S = 10.0


class Show:
    """Progress of the demo. `line` is one sentence; `replay` is the state of a replay and of the fleet."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live: Live | None = None
        self._last_plain_s = 0.0

    def line(self, text: str, *, keep: bool = False) -> None:
        """Show a sentence: in place in a terminal, now and then elsewhere; `keep` prints it for good."""
        if keep:
            self.console.print(text, highlight=False)
        elif self.console.is_terminal:
            self._show(text)
        else:
            self._plain(text)

    def replay(self, title: str, replay: Replay, status: Mapping[str, Any]) -> None:
        """Show how a replay goes and what the fleet runs."""
        row = _row(title, replay, status)
        if self.console.is_terminal:
            table = Table(title=f"{row['phase']}: replaying")
            for name in row:
                table.add_column(name, justify="right")
            table.add_row(*row.values())
            self._show(table)
        else:
            self._plain("  ".join(f"{name} {value}" for name, value in row.items()))

    def close(self) -> None:
        """Leave the terminal as it was found; harmless twice."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _show(self, what: str | Table) -> None:
        if self._live is None:
            self._live = Live(console=self.console, transient=True, auto_refresh=False)
            self._live.start()
        self._live.update(what, refresh=True)

    def _plain(self, text: str) -> None:
        now_s = time.monotonic()
        if now_s - self._last_plain_s >= PLAIN_EVERY_S:
            self._last_plain_s = now_s
            self.console.print(text, highlight=False, soft_wrap=True)


def _row(title: str, replay: Replay, status: Mapping[str, Any]) -> dict[str, str]:
    now_s = replay.now_s
    recent = [o.ttft_s for o in replay.outcomes if o.error is None and (o.done_s or 0.0) > now_s - RECENT_S]
    effective = status.get("effective", {})
    return {
        "phase": title,
        "time": f"{now_s:.0f} s",
        "sent": f"{replay.started}/{len(replay.requests)}",
        "done": str(len(replay.outcomes)),
        "failed": str(replay.failed.total()),
        f"TTFT P95 of the last {RECENT_S:.0f} s": f"{quantile(recent, 0.95):.2f} s" if recent else "-",
        "policy": str(effective.get("policy", "-")),
        "threshold": str(effective.get("threshold", "-")),
        "wait limit": str(effective.get("longMaxWait", "-")),
        "generation": str(effective.get("generation", "-")),
    }
