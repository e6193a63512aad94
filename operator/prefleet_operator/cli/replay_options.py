"""The options that `prefleet replay` and `prefleet advise` share: the trace, the fleet, the load, the promises."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

PRESET = "llama-3.1-8b-a100-80gb-sxm"


class Router(StrEnum):
    """How requests are spread over pods."""

    ROUND_ROBIN = "round-robin"
    LEAST_TOKENS = "least-tokens"
    PREFIX_AWARE = "prefix-aware"

    @property
    def kind(self) -> str:
        """What the runtime calls it."""
        return self.value.replace("-", "_")


TraceArgument = Annotated[str, typer.Argument(help="A trace file, or a mix such as bimodal:seed=7,requests=10000.")]
AgedShare = Annotated[float, typer.Option(min=0.01, max=1, help="Of promoted longs, while shorts wait.")]
Load = Annotated[float | None, typer.Option(min=0.01, max=10, help="Part of capacity; else as recorded.")]
Pods = Annotated[int, typer.Option(min=1, max=256, help="Mixed pods, or with decode pods prefill ones.")]
DecodePods = Annotated[int, typer.Option(min=0, max=256, help="0: the pods do both.")]
PrefillOnly = Annotated[bool, typer.Option("--prefill-only", help="One output token for each request.")]
RouterOption = Annotated[Router, typer.Option(help="How requests are spread over pods.")]
Engine = Annotated[
    str, typer.Option(help="A preset, a JSON object of step costs, steps.csv, or a runtime's http://.../metrics.")
]
StepTokens = Annotated[int, typer.Option(min=1, help="max_num_batched_tokens of a pod.")]
PrefixCache = Annotated[bool, typer.Option(help="Share prefixes, where the trace tells them.")]
ShortTTFT = Annotated[str, typer.Option(help="What short requests were promised.")]
LongWait = Annotated[str, typer.Option(help="What long requests were promised.")]
JsonFile = Annotated[Path | None, typer.Option("--json", help='Write the figures here; "-": only that.')]
