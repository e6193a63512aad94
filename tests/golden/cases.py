"""The golden cases: a folder each, with the policy that goes in and the manifests that must come out.

After a change of rendering that is meant: `python -m tests.golden.cases` writes the manifests anew; read the
difference before it is committed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from prefleet_operator.api import parse_document
from prefleet_operator.cli.documents import to_yaml
from prefleet_operator.cli.render import render_policy

FOLDER = Path(__file__).parent
CASES = sorted(path.parent.name for path in FOLDER.glob("*/policy.yaml"))
RUNTIME_IMAGE = "example.com/prefleet:test"
METRICS_URL = "http://prometheus.monitoring:9090"


def render_case(case: str) -> list[dict[str, Any]]:
    """What the case's policy becomes now."""
    policy = yaml.safe_load((FOLDER / case / "policy.yaml").read_text())
    return render_policy(parse_document(policy), RUNTIME_IMAGE, METRICS_URL)


def golden_file(case: str) -> Path:
    """Where the manifests that must come out are kept."""
    return FOLDER / case / "manifests.yaml"


def regenerate() -> None:
    """Write all golden files anew."""
    for case in CASES:
        golden_file(case).write_text(to_yaml(render_case(case)))


if __name__ == "__main__":
    regenerate()
