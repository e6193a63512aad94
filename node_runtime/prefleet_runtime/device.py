"""Which accelerator this process computes on, as torch tells it: CUDA, ROCm (torch calls it cuda too), NPU or CPU.

A process that only schedules has no context on the accelerator: the engine's workers have theirs, and one more would
take hundreds of MB of the first device's memory, and forbid this process to fork. So what a context is needed for is
asked only where there is one already:

| asked | its price |
|---|---|
| `device_count()` | none: NVML or AMD SMI answers; without them the driver counts, still without a context |
| `is_available()` | not asked: it says no more than the count, and goes to the driver unless told otherwise |
| `get_device_properties()` | a context, so only where `is_initialized()`; else name and memory are None |

An engine that can name its device without a context adds the name.

torch is not among the runtime's dependencies: without it the device is unknown, which is not the same as a CPU. NPUs
are those of `torch_npu`, which the engine imports; it is not imported here.

Left out: devices of different names in one process, where the first one speaks for all; accelerators of other kinds
(XPU, TPU), which read as the CPU that drives them.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

CPU_FACTS = Path("/proc/cpuinfo")


class DeviceKind(StrEnum):
    """What computes."""

    CUDA = "cuda"
    ROCM = "rocm"
    NPU = "npu"
    CPU = "cpu"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Device:
    """What computes; `count` of them are visible to the process (of a CPU its cores), each with `memory_bytes`.

    `name` and `memory_bytes` are None where they are not known; the memory of a CPU is the host's, and not asked.
    """

    kind: DeviceKind
    name: str | None = None
    count: int = 0
    memory_bytes: int | None = None

    def __str__(self) -> str:
        return f"{self.count} x {self.name or 'unnamed'} ({self.kind})" if self.count else str(self.kind)


UNKNOWN = Device(DeviceKind.UNKNOWN)


def find_device(torch: Any = None) -> Device:
    """The device of this process, as `torch` (by default the one that is installed) tells it."""
    torch = _installed_torch() if torch is None else torch
    if torch is None:
        return UNKNOWN
    if npus := _accelerators(getattr(torch, "npu", None), DeviceKind.NPU):
        return npus
    kind = DeviceKind.ROCM if getattr(torch.version, "hip", None) else DeviceKind.CUDA
    return _accelerators(torch.cuda, kind) or find_cpu()


def find_cpu(facts: Path = CPU_FACTS) -> Device:
    """The CPU, named as Linux names it, else by its architecture."""
    name = _model_name(facts) or platform.machine() or None
    return Device(DeviceKind.CPU, name, os.cpu_count() or 1)


def _installed_torch() -> Any:
    try:
        import torch
    except (ImportError, OSError):  # the latter: it is there, a library that it links is not
        return None
    return torch


def _accelerators(module: Any, kind: DeviceKind) -> Device | None:
    """The devices behind torch.cuda or torch.npu, None where there are none."""
    count = module.device_count() if module is not None else 0
    if not count:
        return None
    if not module.is_initialized():
        return Device(kind, count=count)
    properties = module.get_device_properties(0)
    return Device(kind, properties.name, count, properties.total_memory)


def _model_name(facts: Path) -> str | None:
    try:
        lines = facts.read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)
