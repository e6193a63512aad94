"""Progress of something slow: a line that changes in place in a terminal, plain lines at times elsewhere."""

import shutil
import time
from typing import TextIO

PLAIN_EVERY_S = 15.0


class Progress:
    """Writes `title: text`. `show` is for what is soon outdated, `say` for what should stay to be read."""

    def __init__(self, stream: TextIO) -> None:
        self.title = ""
        self._stream = stream
        self._live = stream.isatty()
        self._last_shown_s = 0.0

    def show(self, text: str) -> None:
        now_s = time.monotonic()
        if now_s - self._last_shown_s < (0.1 if self._live else PLAIN_EVERY_S):
            return
        self._last_shown_s = now_s
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            self._write("\r\x1b[2K" + f"{self.title}: {text}"[:width])
        else:
            self._write(f"{self.title}: {text}\n")

    def say(self, text: str) -> None:
        self._write(("\r\x1b[2K" if self._live else "") + f"{self.title}: {text}\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
