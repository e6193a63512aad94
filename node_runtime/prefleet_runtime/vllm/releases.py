"""Which vLLM releases the runtime supports.

The scheduler that is extended here is no public interface of vLLM, so support is stated by minor release,
after the tests ran on it (`make test-compat`), and another release is refused at start: a pod that does not come
up is noticed, while a queue that quietly orders nothing is not. `pyproject.toml` names the same releases in the
extra `vllm`.
"""

from __future__ import annotations

import logging
import re

logger = logging.getLogger(__name__)

SUPPORTED_MINORS = ((0, 28), (0, 29), (0, 30), (0, 31), (0, 32), (0, 33))
"""Minor releases, oldest first, without gaps."""


class UnsupportedReleaseError(RuntimeError):
    """The engine is of a release that the runtime was not tested on; the message says what to do."""


def supported_range() -> str:
    """The supported releases as a version specifier: `>=0.28,<0.34`."""
    oldest, newest = SUPPORTED_MINORS[0], SUPPORTED_MINORS[-1]
    return f">={oldest[0]}.{oldest[1]},<{newest[0]}.{newest[1] + 1}"


def require_supported(version: str) -> None:
    """Check the engine's version; one without a number (a source build) is let through with a warning.

    Raises:
        UnsupportedReleaseError: it is another minor release than those supported.
    """
    number = re.match(r"(\d+)\.(\d+)", version)
    if number is None:
        logger.warning("This vLLM calls itself %r; Prefleet was tested on vLLM%s.", version, supported_range())
    elif (int(number[1]), int(number[2])) not in SUPPORTED_MINORS:
        raise UnsupportedReleaseError(
            f"Prefleet supports vLLM{supported_range()} and this is vLLM {version}: use an image of a "
            "supported release, or a Prefleet release that supports this one, or leave --scheduler-cls out "
            "to run the engine's own scheduler"
        )
