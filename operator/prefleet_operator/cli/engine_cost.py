"""What `--engine` may say beside a preset and a JSON object: a CSV of measured steps, or the metrics of a runtime.

Both become the JSON object of step costs that they show, so that it can be read, kept and given again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from http.client import HTTPException
from time import monotonic
from urllib.request import urlopen

from prefleet_runtime.sim.calibrate import Calibration, CalibrationError, cost_from_metrics, fit_steps

FETCH_S = 5.0
MOST_BYTES = 1 << 20
CHUNK_BYTES = 1 << 16


def engine_of(text: str, say: Callable[[str], None]) -> str:
    """A preset or a JSON object as it is; of a CSV or an address the costs in JSON, told with how well they are known.

    Raises:
        CalibrationError: the file or the page cannot be had, or does not tell the cost.
    """
    if text.startswith(("http://", "https://")):
        calibration = cost_from_metrics(_fetched(text), text)
    elif text.lower().endswith(".csv"):
        calibration = _fitted(text)
    else:
        return text
    engine = json.dumps(asdict(calibration.cost))
    say(f"step cost of {_told(calibration)}: --engine '{engine}'")
    return engine


def _told(calibration: Calibration) -> str:
    told = f"{calibration.steps:,} steps, which scatter by {1e3 * calibration.noise_s:.3g} ms around it"
    if calibration.outliers:
        told += f", {calibration.outliers:,} far off left out"
    if calibration.malformed:
        told += f", {calibration.malformed:,} malformed lines"
    return told


def _fitted(path: str) -> Calibration:
    try:
        with open(path, encoding="utf-8-sig", errors="replace") as lines:
            return fit_steps(lines, path)
    except OSError as error:
        raise CalibrationError(f"{path}: cannot be read ({error.strerror}); name a CSV of measured steps") from None


def _fetched(address: str) -> str:
    """The page there, if it comes within `FETCH_S` and is not over `MOST_BYTES`."""
    deadline_s, page = monotonic() + FETCH_S, b""
    try:
        with urlopen(address, timeout=FETCH_S) as answer:
            while len(page) <= MOST_BYTES and monotonic() < deadline_s and (chunk := answer.read1(CHUNK_BYTES)):
                page += chunk
    except (OSError, HTTPException, ValueError) as error:
        raise CalibrationError(f"{address}: cannot be had ({error}); name the /metrics page of a runtime") from None
    if len(page) > MOST_BYTES or monotonic() >= deadline_s:
        limits = f"{MOST_BYTES >> 20} MiB or takes over {FETCH_S:g} s"
        raise CalibrationError(f"{address}: is over {limits}; name the /metrics page of a runtime")
    return page.decode(errors="replace")
