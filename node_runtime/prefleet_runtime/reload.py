"""The policy file, followed while the engine runs.

A daemon thread reads the file's text every `poll_s` seconds, parses it when the text differs from what was
last seen, and publishes one immutable `RuntimePolicy` as `current`. Other threads only ever read that one
attribute; whoever owns a queue compares it by identity and swaps when it suits. The content is compared, not
a modification time: the file is small, a kubelet swaps a symbolic link above it, and an edit of equal size
within one tick of the clock must not be missed.

A wrong file is refused as a whole: the policy that ran stays, `refused` rises by one for each change to a
wrong content, and one warning says why. One that is missing, unreadable, too large or no regular file is refused
likewise. At the start there is nothing to fall back on, so there the same faults raise.

The generation is reported, not obeyed: a document whose generation is not higher than the present one's is
taken too (an operator whose memory was lost counts on from what it finds), with a warning that names both.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import threading
from pathlib import Path

from .contract import InvalidPolicyError, RuntimePolicy

logger = logging.getLogger(__name__)

POLL_S = 0.25
"""Well within the second that a change may take to be seen."""

LARGEST_BYTES = 65_536
"""A hundred policies. A file that is larger is something else, and would be read whole in every poll."""


class PolicyWatcher:
    """Follows one policy file; `current` and `refused` may be read from any thread.

    Raises:
        InvalidPolicyError: at construction, when the file cannot be read or must not run.
    """

    def __init__(self, path: str | Path, poll_s: float = POLL_S) -> None:
        self._path = Path(path)
        self._poll_s = poll_s
        self._looking = threading.Lock()
        self._seen: bytes | None = self._read()
        self.current: RuntimePolicy = self._parse(self._seen)
        self.refused = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="prefleet-policy", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Look at the file now instead of at the next poll. Safe from any thread."""
        with self._looking:
            try:
                self._look()
            except InvalidPolicyError as error:
                self.refused += 1
                logger.warning("policy refused, generation %d stays: %s", self.current.generation, error)

    def close(self) -> None:
        """Stop following the file; `current` stays readable. May be repeated."""
        self._stop.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._stop.wait(self._poll_s):
            self.check()

    def _look(self) -> None:
        try:
            text = self._read()
        except InvalidPolicyError:
            if self._seen is None:
                return
            self._seen = None
            raise
        if text != self._seen:
            self._seen = text
            self._publish(self._parse(text))

    def _publish(self, policy: RuntimePolicy) -> None:
        before = self.current
        if policy == before:
            return
        if policy.generation <= before.generation:
            logger.warning(
                "policy generation %d follows %d, which is not lower: taken all the same",
                policy.generation,
                before.generation,
            )
        self.current = policy
        logger.info("policy %s, generation %d, is in force", policy.policy, policy.generation)

    def _read(self) -> bytes:
        try:
            with open(self._path, "rb", opener=_without_waiting) as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise OSError(errno.EINVAL, "it is no regular file")
                text = file.read(LARGEST_BYTES + 1)
        except OSError as error:
            raise InvalidPolicyError(
                f"the policy file {self._path} cannot be read ({error.strerror}): mount the fleet's ConfigMap there"
            ) from error
        if len(text) > LARGEST_BYTES:
            raise InvalidPolicyError(
                f"the policy file {self._path} is larger than {LARGEST_BYTES} bytes: mount the fleet's ConfigMap there"
            )
        return text

    def _parse(self, text: bytes) -> RuntimePolicy:
        try:
            return RuntimePolicy.from_json(text)
        except InvalidPolicyError as error:
            raise InvalidPolicyError(f"the policy file {self._path} must not run: {error}") from None


def _without_waiting(path: str, flags: int) -> int:
    """Open a file; a pipe would wait for its writer."""
    return os.open(path, flags | os.O_NONBLOCK)
