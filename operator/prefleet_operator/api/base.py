"""What every part of the resource is made of: the model base, durations and checked strings.

Durations are strings ("500ms", "8s", "15m"); they are parsed to seconds here and nowhere else.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, WithJsonSchema, model_validator
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from prefleet_operator.api.rule import VALIDATIONS, Rule

GROUP = "prefleet.dev"
VERSION = "v1alpha1"
KIND = "PrefillPolicy"
PLURAL = "prefillpolicies"
SHORT_NAME = "pp"

POD_SCRAPE = "PodScrape"
"""The metrics source that every installation has: the operator reads each pod itself."""

# At most six digits a number: the API server counts nanoseconds in 64 bits, and two such hours still fit.
DURATION_PATTERN = "^([0-9]{1,6}([.][0-9]{1,6})?(ms|s|m|h))+$"
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_duration(text: str) -> float:
    """Seconds of a duration such as "1m30s". Raises ValueError with the fix if it is not one."""
    if not re.fullmatch(DURATION_PATTERN, text):
        raise ValueError(
            f'"{text}" is not a duration: write a number with a unit (ms, s, m, h), such as "500ms" or "8s"'
        )
    return sum(float(number) * _UNIT_SECONDS[unit] for number, unit in _DURATION_PART.findall(text))


def format_duration(seconds: float) -> str:
    """A duration string, exact to the millisecond: "350ms", "7.2s"."""
    milliseconds = round(seconds * 1000)
    if 0 < milliseconds < 1000:
        return f"{milliseconds}ms"
    return f"{milliseconds / 1000:.3f}".rstrip("0").rstrip(".") + "s"


def duration_between(least: str, most: str, example: str) -> Rule:
    """The rule of a duration field: well formed, and from `least` to `most`."""

    def holds(text: str) -> bool:
        if not re.fullmatch(DURATION_PATTERN, text):
            return False
        return parse_duration(least) <= parse_duration(text) <= parse_duration(most)

    return Rule(
        cel=f"self.matches('{DURATION_PATTERN}') && duration(self) >= duration('{least}')"
        f" && duration(self) <= duration('{most}')",
        message=f'write a duration from {least} to {most} with its unit (ms, s, m, h), such as "{example}"',
        holds=holds,
    )


def matching(pattern: str, message: str) -> Rule:
    """The rule of a string that holds `pattern`, with a sentence in place of the pattern."""
    return Rule(f"self.matches('{pattern}')", message, lambda text: re.search(pattern, text) is not None)


_DNS_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
DNS_NAME = f"{_DNS_LABEL}([.]{_DNS_LABEL})*"
"""A pattern: the name of an object, or the domain before the / of a label, an annotation or a resource."""
SHORT_NAME_PATTERN = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
"""A pattern: what stands behind that domain, or a label's value."""

DurationText = Annotated[str, Field(max_length=16)]
"""A duration's string; each field adds its own `duration_between`."""

Text = Annotated[str, Field(min_length=1, max_length=512)]
"""A string that is not empty. Bounded, as all strings and lists of the resource: the API server charges CEL
rules by the largest input that the schema admits."""


CountOrPercent = Annotated[
    int | str,
    WithJsonSchema({"x-kubernetes-int-or-string": True}),
    Rule(
        "type(self) == int ? self >= 0 && self <= 10000 : self.matches('^(100|[1-9]?[0-9])%$')",
        'write a number of replicas from 0 to 10000, or a share of them such as "25%"',
        lambda value: (
            0 <= value <= 10_000 if isinstance(value, int) else re.search("^(100|[1-9]?[0-9])%$", value) is not None
        ),
    ),
]
"""Kubernetes' IntOrString, as rollouts use it."""


class Model(BaseModel):
    """Base of every part of the resource: camelCase outside, frozen, unknown fields refused, rules kept."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
    )

    RULES: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="after")
    def _keep_rules(self) -> Self:
        broken = [rule.message for rule in self.RULES if not rule.holds(self)]
        if broken:
            raise ValueError("; ".join(broken))
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        rendered = handler.resolve_ref_schema(handler(core_schema))
        if cls.RULES:
            rendered[VALIDATIONS] = [rule.as_validation() for rule in cls.RULES]
        return rendered

    def to_resource(self) -> dict[str, Any]:
        """The value as it stands in the resource: camelCase, absent fields left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)
