"""What computes, told by stand-ins for torch: no accelerator is needed, and none may be touched."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from prefleet_runtime.device import UNKNOWN, Device, DeviceKind, find_cpu, find_device

H200 = SimpleNamespace(name="NVIDIA H200", total_memory=150_754_820_096)
MI300X = SimpleNamespace(name="AMD Instinct MI300X", total_memory=205_822_885_888)
ASCEND = SimpleNamespace(name="Ascend910B3", total_memory=65_452_113_920)


@dataclass
class Accelerators:
    """A stand-in for torch.cuda or torch.npu: `count` alike, of which `properties` may be asked in a context alone."""

    count: int
    properties: SimpleNamespace | None = None
    in_context: bool = True

    def device_count(self) -> int:
        return self.count

    def is_initialized(self) -> bool:
        return self.in_context

    def get_device_properties(self, index: int) -> SimpleNamespace:
        assert self.in_context, "this would make a context"
        assert index < self.count
        assert self.properties is not None
        return self.properties


def torch_with(cuda: Accelerators, hip: str | None = None, npu: Accelerators | None = None) -> SimpleNamespace:
    extra = {} if npu is None else {"npu": npu}  # torch_npu registers it
    return SimpleNamespace(cuda=cuda, version=SimpleNamespace(hip=hip), **extra)


NONE = Accelerators(0)


@pytest.mark.parametrize(
    ("torch", "device"),
    [
        pytest.param(
            torch_with(Accelerators(8, H200)),
            Device(DeviceKind.CUDA, "NVIDIA H200", 8, 150_754_820_096),
            id="a process that computes knows all of a GPU",
        ),
        pytest.param(
            torch_with(Accelerators(8, in_context=False)),
            Device(DeviceKind.CUDA, None, 8, None),
            id="one that only schedules makes no context to learn more than the count",
        ),
        pytest.param(
            torch_with(Accelerators(4, MI300X), hip="6.4"),
            Device(DeviceKind.ROCM, "AMD Instinct MI300X", 4, 205_822_885_888),
            id="a ROCm build is told from CUDA",
        ),
        pytest.param(
            torch_with(NONE, npu=Accelerators(2, ASCEND)),
            Device(DeviceKind.NPU, "Ascend910B3", 2, 65_452_113_920),
            id="torch_npu brings NPUs",
        ),
        pytest.param(
            torch_with(NONE, npu=Accelerators(2, in_context=False)), Device(DeviceKind.NPU, count=2), id="NPU"
        ),
        pytest.param(torch_with(NONE), find_cpu(), id="no accelerator is visible: the CPU computes"),
        pytest.param(torch_with(NONE, npu=NONE), find_cpu(), id="torch_npu without an NPU"),
    ],
)
def test_the_device_is(torch: SimpleNamespace, device: Device) -> None:
    assert find_device(torch) == device


@pytest.mark.parametrize("missing", ["None", "Broken()"], ids=["is not installed", "lacks a library"])
def test_the_device_is_unknown_where_torch(missing: str) -> None:
    program = (
        "import sys\n"
        "class Broken:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'torch': raise OSError('libcudart.so: cannot open shared object file')\n"
        f"missing = {missing}\n"
        "if missing is None: sys.modules['torch'] = None\n"
        "else: sys.meta_path.insert(0, missing)\n"
        "from prefleet_runtime.device import UNKNOWN, find_device\n"
        "assert 'torch' not in sys.modules or missing is None\n"
        "assert find_device() is UNKNOWN\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_cpu_is_named_as_linux_names_it(tmp_path: Path) -> None:
    facts = tmp_path / "cpuinfo"
    facts.write_text("processor\t: 0\nmodel name\t: AMD EPYC 9654\n\nprocessor\t: 1\nmodel name\t: AMD EPYC 9654\n")
    assert find_cpu(facts).name == "AMD EPYC 9654"
    assert find_cpu(facts).count >= 1


def test_a_cpu_that_linux_does_not_name_is_called_by_its_architecture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert find_cpu(tmp_path / "absent").name == "aarch64"
    (tmp_path / "arm").write_text("processor\t: 0\nCPU part\t: 0xd4f\n")
    assert find_cpu(tmp_path / "arm").name == "aarch64"


@pytest.mark.parametrize(
    ("device", "line"),
    [
        (Device(DeviceKind.CUDA, "NVIDIA H200", 8), "8 x NVIDIA H200 (cuda)"),
        (Device(DeviceKind.NPU, count=2), "2 x unnamed (npu)"),
        (UNKNOWN, "unknown"),
    ],
)
def test_a_log_line_names_it(device: Device, line: str) -> None:
    assert str(device) == line
