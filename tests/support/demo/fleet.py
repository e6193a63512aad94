"""The fleet that the demo serves, as its user sees it: one PrefillPolicy, applied and read with kubectl.

Two fleets are known: two simulated prefill pods with one decode pod, and two real vLLM pods that do both on
the CPU. Each is applied twice, first under FCFS and then under the policy that is to be shown, with everything that
it leaves open tuned; nothing else of the resource changes.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefleet_operator.api import SchedulingPolicy

from tests.support.demo.client import Target
from tests.support.plane.plane import ControlPlane

NAMESPACE = "demo"
NAME = "chat"
MODEL = "demo-model"
SOURCE = "demo"
VLLM_IMAGE = "demo/vllm-cpu:0.32.0"
POLL_S = 0.2

# Bursts of 2.4 times the capacity leave a backlog of twelve seconds and more: a promise that can be kept.
SLO = {"shortTTFT": "1s", "longQueueWait": "30s"}
FCFS: dict[str, Any] = {"scheduling": {"policy": "FCFS"}, "tuning": {"mode": "Off"}}


@dataclass(frozen=True, slots=True)
class Engine:
    """What differs between the engines: the resource, the prefill pods and the longest request (tokens)."""

    name: str
    spec: Mapping[str, Any]
    prefill_role: str
    decode_role: str | None
    longest: int
    min_samples: int
    wait_quantile: str
    ready_timeout_s: float

    def shown(self, policy: SchedulingPolicy) -> dict[str, Any]:
        """The second half of the demo: everything left to the tuner, at a pace that a demo can show."""
        return {"scheduling": {"policy": policy.value}, "tuning": self._tuning()}

    def edited(self, policy: SchedulingPolicy) -> dict[str, Any]:
        """A small edit of what is shown, which every pod must follow."""
        return {"scheduling": {"policy": policy.value, "trustClientPriority": True}, "tuning": self._tuning()}

    def _tuning(self) -> dict[str, Any]:
        return {
            "mode": "Auto",
            "window": "150s",
            "minSamples": self.min_samples,
            "waitQuantile": self.wait_quantile,
            "cooldown": "30s",
        }


def simulator() -> Engine:
    """Two prefill pods and one decode pod, each of which claims an accelerator of its node."""
    accelerator = {"resource": "nvidia.com/gpu", "count": 1}
    spec = {
        "model": {"servedName": MODEL},
        "engine": {"type": "Simulator"},
        "prefill": {"replicas": 2, "accelerator": accelerator},
        "decode": {"replicas": 1, "accelerator": accelerator},
    }
    return Engine("simulated prefill and decode pods", spec, "prefill", "decode", 32_768, 300, "P95", 60)


def vllm(model: Path) -> Engine:
    """Two mixed pods of real vLLM on the CPU with the tiny model in the folder `model`."""
    args = [
        *("--load-format", "dummy", "--seed", "0", "--enforce-eager", "--dtype", "bfloat16"),
        *("--kv-cache-memory-bytes", str(512 * 2**20), "--max-model-len", "16384"),
        *("--max-num-batched-tokens", "1024", "--no-enable-prefix-caching"),
    ]
    env = {
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_HOST_IP": "127.0.0.1",
    }
    spec = {
        "model": {"source": {"hostPath": str(model)}, "servedName": MODEL},
        "engine": {"type": "VLLM", "version": "0.32.0", "image": VLLM_IMAGE},
        "mixed": {
            "replicas": 2,
            "args": args,
            "env": [{"name": name, "value": value} for name, value in env.items()],
        },
    }
    return Engine("two real vLLM pods on the CPU", spec, "mixed", None, 16_384, 100, "P90", 300)


class Fleet:
    """The applied resource and the pods that came of it."""

    def __init__(self, plane: ControlPlane, engine: Engine) -> None:
        self.plane = plane
        self.engine = engine

    def apply(self, phase: Mapping[str, Any]) -> None:
        """kubectl apply of the whole resource with `phase` merged into its spec."""
        resource = {
            "apiVersion": "prefleet.dev/v1alpha1",
            "kind": "PrefillPolicy",
            "metadata": {"name": NAME, "namespace": NAMESPACE},
            "spec": {**self.engine.spec, "slo": SLO, "metricsSource": SOURCE, **phase},
        }
        self.plane.kubectl("apply", "-f", "-", stdin=json.dumps(resource))

    def status(self) -> dict[str, Any]:
        """`.status`, empty until the operator has written one."""
        found = json.loads(self.plane.kubectl("get", "pp", NAME, "-n", NAMESPACE, "-o", "json"))
        status: dict[str, Any] = found.get("status", {})
        return status

    def condition(self, kind: str) -> dict[str, Any]:
        """One condition; Unknown if it is not there yet."""
        conditions = self.status().get("conditions", [])
        return next((c for c in conditions if c["type"] == kind), {"status": "Unknown", "message": "not reported yet"})

    def wait_for(self, kind: str, timeout_s: float, tick: Callable[[str], None]) -> None:
        """Wait until a condition is True.

        Raises:
            TimeoutError: it was not, with what the operator said last.
        """
        deadline = time.monotonic() + timeout_s
        while (found := self.condition(kind))["status"] != "True":
            if time.monotonic() > deadline:
                raise TimeoutError(f"{kind} is {found['status']} after {timeout_s:.0f} s: {found['message']}")
            tick(f"{kind}: {found['message']}")
            time.sleep(1)

    def target(self) -> Target:
        """The Services that requests go to."""
        decode = self.engine.decode_role
        return Target(MODEL, self._service_url(self.engine.prefill_role), self._service_url(decode) if decode else None)

    def _service_url(self, role: str) -> str:
        service = json.loads(self.plane.kubectl("get", "service", f"{NAME}-{role}", "-n", NAMESPACE, "-o", "json"))
        return f"http://{service['spec']['clusterIP']}:{service['spec']['ports'][0]['port']}"

    def pod_addresses(self) -> dict[str, str]:
        """Pod name to address, of the pods that are there and not on their way out."""
        selector = f"prefleet.dev/fleet={NAME}"
        pods = json.loads(self.plane.kubectl("get", "pods", "-n", NAMESPACE, "-l", selector, "-o", "json"))["items"]
        return {
            pod["metadata"]["name"]: pod["status"]["podIP"]
            for pod in pods
            if "deletionTimestamp" not in pod["metadata"] and pod["status"].get("podIP")
        }

    def wait_for_generation_after(self, generation: int, timeout_s: float) -> int:
        """Wait until every pod's own exporter reports one generation above `generation`, and return it.

        Raises:
            TimeoutError: some pod did not, with what each reported last.
        """
        addresses = self.pod_addresses()
        deadline = time.monotonic() + timeout_s
        while True:
            reported = {name: reported_generation(address) for name, address in addresses.items()}
            values = set(reported.values())
            if len(values) == 1 and (value := values.pop()) is not None and value > generation:
                return value
            if time.monotonic() > deadline:
                raise TimeoutError(f"no common generation above {generation} in {timeout_s:.0f} s: {reported}")
            time.sleep(POLL_S)


def reported_generation(address: str, port: int = 9400) -> int | None:
    """The policy generation that a pod's exporter reports, None while it does not answer."""
    try:
        with urllib.request.urlopen(f"http://{address}:{port}/metrics", timeout=2) as answer:
            lines = answer.read().decode().splitlines()
    except (urllib.error.URLError, OSError):
        return None
    found = [line.split()[1] for line in lines if line.startswith("prefleet_policy_generation ")]
    return int(float(found[0])) if found else None
