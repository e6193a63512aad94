"""A rule of the resource, written once for two judges.

The API server judges `cel` at `kubectl apply`; `parse_spec` judges `holds` on a laptop and in the operator.
Both refuse with `message`, so a user meets the same sentence in both places. A rule about one value stands in
the value's annotation; a rule across fields stands in its model's `RULES`. The schema carries both along
(`x-kubernetes-validations`), which is all that the CRD generator has to know about rules.

What CEL sees: absent fields are absent (`has()`), defaults are filled in. Patterns are RE2 and Python at
once: they are searched for, not matched in full, and escape a dot as `[.]`, since CEL strings have escapes of
their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

VALIDATIONS = "x-kubernetes-validations"


@dataclass(frozen=True, slots=True)
class Rule:
    """`message` is a sentence that says what to write; `holds` gets the parsed value or model."""

    cel: str
    message: str
    holds: Callable[[Any], bool]

    def as_validation(self) -> dict[str, str]:
        """The rule as an entry of `x-kubernetes-validations`."""
        return {"rule": self.cel, "message": self.message}

    def check(self, value: Any) -> Any:
        """The value itself. Raises ValueError with the sentence if the rule is broken."""
        if not self.holds(value):
            raise ValueError(self.message)
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        rendered = handler(schema)
        return rendered | {VALIDATIONS: [*rendered.get(VALIDATIONS, []), self.as_validation()]}
