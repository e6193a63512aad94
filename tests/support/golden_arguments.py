"""The arguments of an engine container in the golden manifests: what an engine's own parser must accept."""

from __future__ import annotations

from pathlib import Path

import yaml

GOLDEN = Path(__file__).parents[1] / "golden"


def rendered_arguments(case: str, name: str) -> list[str]:
    """The arguments in the Deployment `name` of a golden case."""
    documents = yaml.safe_load_all((GOLDEN / case / "manifests.yaml").read_text())
    deployment = next(d for d in documents if d["kind"] == "Deployment" and d["metadata"]["name"] == name)
    args: list[str] = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    return args
