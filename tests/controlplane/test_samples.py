"""Every policy in docs/samples, applied as it stands: it becomes Ready, or its conditions say why it cannot.

The node offers as many accelerators as the engines ask for that have a stand-in here (tests/support/native), and none
for vLLM, whose images do not exist here; nor is there a controller of LeaderWorkerSets, or anybody's pods to attach.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.installation import Fleet
from tests.support.native.images import make_native_images
from tests.support.node_agent.launch import start_agent
from tests.support.plane.plane import ControlPlane
from tests.support.waiting import eventually

pytestmark = [pytest.mark.controlplane, pytest.mark.usefixtures("module_operator")]

Json = dict[str, Any]

SAMPLES = Path(__file__).parents[2] / "docs" / "samples"
ACCELERATORS = {"huawei.com/Ascend910": 10, "nvidia.com/gpu": 4}
READY_S = 90


@dataclass(frozen=True)
class Told:
    """A condition, and words of its sentence."""

    condition: str
    status: str
    reason: str
    words: str


RUN = {
    "simulator-prefill-decode": Told("PolicyActive", "True", "GenerationReported", "All 3 ready pods report"),
    "vllm-ascend-prefill-decode": Told("PolicyActive", "True", "StartedWithGeneration", "All 2 ready pods"),
    "lightllm-mixed": Told("PolicyActive", "True", "StartedWithGeneration", "LightLLM itself does not report"),
    "sglang-mixed": Told("PolicyActive", "True", "StartedWithGeneration", "SGLang itself does not report"),
    "mindie-mixed": Told("PolicyActive", "True", "StartedWithGeneration", "MindIE itself does not report"),
}
NO_GPU = Told("Ready", "False", "Unschedulable", "nvidia.com/gpu")
CANNOT = {
    "attach-kserve": Told("Ready", "False", "NoPodsFound", "serving.kserve.io/inferenceservice=llama"),
    "attach-vllm-deployment": Told("Ready", "False", "NoPodsFound", "app=chat"),
    "vllm-autoscaling": NO_GPU,
    "vllm-mixed-hrrn": NO_GPU,
    "vllm-mixed-pinned": NO_GPU,
    "vllm-prefill-decode": NO_GPU,
    "vllm-router": NO_GPU,
    "vllm-multi-node": Told("Accepted", "False", "KindNotServed", "LeaderWorkerSet"),
}


@pytest.fixture(scope="module", autouse=True)
def agent(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    handle = start_agent(
        plane,
        tmp_path_factory.mktemp("agent"),
        name="samples",
        default_image=Path(sys.prefix),
        images=make_native_images(tmp_path_factory.mktemp("images")),
        accelerators=ACCELERATORS,
    )
    yield
    handle.leave()


@pytest.fixture(scope="module")
def running(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Fleet]]:
    """What can run, once all of it is Ready, so that nothing else gets its accelerators."""
    fleets = {name: applied(plane, name, tmp_path_factory.mktemp("model")) for name in RUN}
    for fleet in fleets.values():
        fleet.await_condition("Ready", "True", timeout_s=READY_S)
    yield fleets
    remove(plane, RUN)


@pytest.fixture(scope="module")
def waiting(
    plane: ControlPlane, running: dict[str, Fleet], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Fleet]]:
    """What cannot."""
    yield {name: applied(plane, name, tmp_path_factory.mktemp("model")) for name in CANNOT}
    remove(plane, CANNOT)


def applied(plane: ControlPlane, sample: str, model: Path) -> Fleet:
    """A sample in a namespace of its own, with the claim that some samples take their model from."""
    plane.create_namespace(sample)
    text = (SAMPLES / f"{sample}.yaml").read_text()
    for document in claim(sample, model):
        plane.kubectl("-n", sample, "apply", "-f", "-", stdin=json.dumps(document))
    plane.kubectl("-n", sample, "apply", "-f", "-", stdin=text)
    return Fleet(plane, sample, yaml.safe_load(text)["metadata"]["name"])


def remove(plane: ControlPlane, samples: Iterable[str]) -> None:
    plane.kubectl("delete", "namespace", *samples, "--wait=false")
    plane.kubectl("delete", "persistentvolume", *(f"models-{sample}" for sample in samples), "--wait=false")


def claim(sample: str, folder: Path) -> list[Json]:
    """A volume that is a folder, and the claim on it."""
    size = {"storage": "1Gi"}
    volume = {
        "capacity": size,
        "accessModes": ["ReadOnlyMany"],
        "hostPath": {"path": str(folder)},
        "claimRef": {"namespace": sample, "name": "models"},
        "persistentVolumeReclaimPolicy": "Retain",
        "storageClassName": "",
    }
    wanted = {
        "accessModes": ["ReadOnlyMany"],
        "resources": {"requests": size},
        "storageClassName": "",
        "volumeName": f"models-{sample}",
    }
    return [
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": f"models-{sample}"}, "spec": volume},
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "models"}, "spec": wanted},
    ]


def test_every_sample_is_tried() -> None:
    assert {path.stem for path in SAMPLES.glob("*.yaml")} == {*RUN, *CANNOT}
    assert len({*RUN, *CANNOT}) == 13


@pytest.mark.parametrize("sample", RUN)
def test_a_sample_runs_what_it_asks_for(running: dict[str, Fleet], sample: str) -> None:
    says(running[sample], RUN[sample])
    is_as_its_file_says(running[sample], sample)


@pytest.mark.parametrize("sample", CANNOT)
def test_a_sample_says_why_it_cannot(waiting: dict[str, Fleet], sample: str) -> None:
    says(waiting[sample], CANNOT[sample])
    if CANNOT[sample].reason != "KindNotServed":
        is_as_its_file_says(waiting[sample], sample)
        return
    code, _, errors = waiting[sample].diff((SAMPLES / f"{sample}.yaml").read_text())
    assert (code, "install LeaderWorkerSet" in errors) == (2, True)


def is_as_its_file_says(fleet: Fleet, sample: str) -> None:
    """`prefleet diff` of what has been applied finds nothing, whatever the engine."""
    code, output, errors = fleet.diff((SAMPLES / f"{sample}.yaml").read_text())
    assert (code, output) == (0, f"PrefillPolicy {sample}/{fleet.name}: nothing changes.\n"), errors


def says(fleet: Fleet, told: Told) -> None:
    fleet.await_condition(told.condition, told.status, told.reason)
    eventually(lambda: told.words in fleet.condition(told.condition)["message"], 10)
