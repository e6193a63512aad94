"""Which arguments and environment variables of an engine belong to the operator, and the rules that keep them
so.

The list is one for all engines of this release: no engine has a use of its own for another's names. Engines
take underscores for dashes and `--name.key` for a part of a JSON value, so both spellings are refused.
Abbreviations need no rule: the operator's arguments come last on the command line, and the last one counts; those of
what it only merges or looks at are known in `engines/user_arguments.py`.
MindIE takes no arguments but parts of its config.json, whose keys `engines/mindie.py` guards.
"""

from __future__ import annotations

import re
from typing import Final

from prefleet_operator.api.rule import Rule

OPERATOR_ARGUMENTS: Final = (
    "--host",
    "--port",
    "--uds",
    "--model",
    "--revision",
    "--served-model-name",
    "--scheduler-cls",
    "--scheduling-policy",
    "--kv-transfer-config",
    "--shutdown-timeout",
    "--policy-file",
    "--exporter-port",
    "--role",
)
"""Rendered by the operator from the rest of the spec."""

NATIVE_OPERATOR_ARGUMENTS: Final = (
    "--disaggregation-bootstrap-port",
    "--disaggregation-mode",
    "--enable-metrics",
    "--model-dir",
    "--model-name",
    "--model-path",
    "--prefill-queue-strategy",
    "--run-mode",
    "--schedule-policy",
)
"""The same, of engines that schedule by themselves. A list of its own: the API server charges a rule by its length."""

MERGED_ARGUMENT: Final = "--additional-config"
"""vLLM's JSON of out-of-tree settings: the user's keys are kept and the runtime's key is added."""

RUNTIME_SETTINGS_KEY: Final = "prefleet"

OPERATOR_ENV: Final = (
    "POD_NAME",
    "POD_IP",
    "PYTHONPATH",
    "VLLM_NIXL_SIDE_CHANNEL_HOST",
    "VLLM_NIXL_SIDE_CHANNEL_PORT",
    "MIES_CONFIG_JSON_PATH",
    "MIES_CONTAINER_IP",
    "MIES_CONTAINER_MANAGEMENT_IP",
    "MIES_SERVICE_MONITOR_MODE",
)
"""Set by the operator."""


def _spellings(name: str) -> str:
    return name.removeprefix("--").replace("-", "[-_]")


def _any_of(names: tuple[str, ...]) -> str:
    return "|".join(_spellings(name) for name in names)


_REFUSED: Final = f"^--({_any_of(OPERATOR_ARGUMENTS)})([=.]|$)|^--{_spellings(MERGED_ARGUMENT)}[.]"
_REFUSED_OF_NATIVES: Final = f"^--({_any_of(NATIVE_OPERATOR_ARGUMENTS)})(=|$)"

NO_OPERATOR_ARGUMENTS: Final = Rule(
    cel=f"self.args.all(arg, !arg.matches('{_REFUSED}'))",
    message=f"args: remove what the operator writes itself ({', '.join(OPERATOR_ARGUMENTS)}); "
    f"{MERGED_ARGUMENT} may be given as one JSON value, which is merged",
    holds=lambda role: not any(re.search(_REFUSED, arg) for arg in role.args),
)

NO_NATIVE_OPERATOR_ARGUMENTS: Final = Rule(
    cel=f"self.args.all(arg, !arg.matches('{_REFUSED_OF_NATIVES}'))",
    message=f"args: remove what the operator writes itself ({', '.join(NATIVE_OPERATOR_ARGUMENTS)})",
    holds=lambda role: not any(re.search(_REFUSED_OF_NATIVES, arg) for arg in role.args),
)

_DATA_PARALLEL: Final = "^(--data[-_]parallel|-dp)"

# Each rank has a queue and an exporter port of its own, of which the operator would see only the first.
NO_DATA_PARALLEL: Final = Rule(
    cel=f"self.args.all(arg, !arg.matches('{_DATA_PARALLEL}'))",
    message="args: remove --data-parallel-size and its kin and raise replicas instead: "
    "data parallelism inside a pod is not supported yet",
    holds=lambda role: not any(re.search(_DATA_PARALLEL, arg) for arg in role.args),
)

_NODES: Final = "^(--(nnodes|node[-_]rank|master[-_]addr|headless|dist[-_]init[-_]addr)([=.]|$)|-[nr]([=0-9]|$))"

NO_NODE_ARGUMENTS: Final = Rule(
    cel=f"self.args.all(arg, !arg.matches('{_NODES}'))",
    message="args: remove --nnodes and its kin and write nodesPerReplica instead: "
    "the operator tells each pod of a group its place",
    holds=lambda role: not any(re.search(_NODES, arg) for arg in role.args),
)

NO_RUNTIME_SETTINGS: Final = Rule(
    cel=f"self.args.all(arg, !arg.contains('\"{RUNTIME_SETTINGS_KEY}\"'))",
    message=f'args: remove "{RUNTIME_SETTINGS_KEY}" from {MERGED_ARGUMENT}: the operator adds this key',
    holds=lambda role: not any(f'"{RUNTIME_SETTINGS_KEY}"' in arg for arg in role.args),
)

NO_OPERATOR_ENV: Final = Rule(
    cel=f"self.env.all(variable, !(variable.name in [{', '.join(repr(name) for name in OPERATOR_ENV)}]))",
    message=f"env: remove the variables that the operator sets itself ({', '.join(OPERATOR_ENV)})",
    holds=lambda role: not any(variable.name in OPERATOR_ENV for variable in role.env),
)
