"""What pydantic finds wrong with a spec, in this project's words: the field, what stands there, and what to write.

A value of a wrong type, or out of its bounds, is told by what the field is to hold; where the field has a rule of its
own, in the rule's sentence. A number where text belongs is told to be written in quotes, if that alone mends it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from prefleet_operator.api.rule import Rule
from prefleet_operator.api.spec import PrefillPolicySpec

_SHOWN_CHARACTERS = 40

_BOUNDS = {
    "greater_than": ("gt", "a number greater than {}"),
    "greater_than_equal": ("ge", "a number greater than or equal to {}"),
    "less_than": ("lt", "a number less than {}"),
    "less_than_equal": ("le", "a number less than or equal to {}"),
    "string_too_long": ("max_length", "at most {} characters"),
    "too_long": ("max_length", "at most {} items"),
}
"""By pydantic's name of a fault: where its context has the bound, and what to write."""

_TYPES = {
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "a boolean, true or false",
    "string_type": "text",
    "string_too_short": "text that is not empty",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
}


def tell_faults(faults: Sequence[ErrorDetails]) -> str:
    """One sentence for each field that is wrong."""
    return "; ".join(dict.fromkeys(_sentence(fault) for fault in faults))


def tell_value(value: Any) -> str:
    """A value as it stands in a document, cut where it is long."""
    told = json.dumps(value, default=str, ensure_ascii=False)
    return told if len(told) <= _SHOWN_CHARACTERS else f"{told[: _SHOWN_CHARACTERS - 3]}..."


def _sentence(fault: ErrorDetails) -> str:
    kind, loc = fault["type"], _place(fault["loc"])
    path = ".".join(["spec", *map(str, loc)])
    if kind == "extra_forbidden":
        return f"{path}: no such field in this release: remove it, or write one of {_siblings(loc)}"
    if kind == "missing":
        return f"{path}: is required: write it"
    if kind == "value_error":
        return f"{path}: {fault['msg'].removeprefix('Value error, ')}"
    wanted = _wanted(fault, loc)
    return f"{path}: is {tell_value(fault['input'])}: {wanted if wanted.startswith('write ') else f'write {wanted}'}"


def _wanted(fault: ErrorDetails, loc: tuple[int | str, ...]) -> str:
    kind, value = fault["type"], fault["input"]
    context: dict[str, Any] = fault.get("ctx", {})
    if kind in _BOUNDS:
        key, told = _BOUNDS[kind]
        bound = context[key]
        return told.format(bound if isinstance(bound, int) else f"{bound:g}")
    if kind in ("enum", "literal_error"):
        bare = ", in quotes, since YAML reads a bare On or Off as true or false" if isinstance(value, bool) else ""
        return f"{context['expected']}{bare}".replace("'", "")
    if kind == "string_type" or loc != fault["loc"]:
        return _wanted_text(value, [part for part in _parts_at(loc) if isinstance(part, Rule)])
    if kind in ("int_type", "float_type", "bool_type") and _is_quoted(value):
        return "it without quotes"
    return _TYPES.get(kind, fault["msg"])


def _wanted_text(value: Any, rules: Sequence[Rule]) -> str:
    """Quotes, where they alone make it what its rules ask for."""
    quotes_mend = isinstance(value, bool | int | float) and all(rule.holds(json.dumps(value)) for rule in rules)
    return "it in quotes" if quotes_mend else rules[0].message if rules else "text"


def _is_quoted(value: Any) -> bool:
    """Whether it is a number, true or false, as text."""
    return isinstance(value, str) and re.fullmatch(r"-?\d+(\.\d+)?|true|false", value) is not None


def _place(loc: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """Where a fault is, without the name by which pydantic tells which of a field's two types it has tried."""
    either = loc[-1:] in (("int",), ("str",)) and all(each in _parts_at(loc[:-1]) for each in (int, str))
    return loc[:-1] if either else loc


def _siblings(loc: tuple[int | str, ...]) -> str:
    """The fields that may stand where `loc` points at an unknown one."""
    model: type[BaseModel] = PrefillPolicySpec
    for part in loc[:-1]:
        if isinstance(part, str):
            model = next(found for found in _parts(_field(model, part)) if _is_model(found))
    return ", ".join(sorted(str(field.alias) for field in model.model_fields.values()))


def _parts_at(loc: tuple[int | str, ...]) -> list[Any]:
    """The types and rules of the field at `loc`; none of an item in a list, or of what is in no model."""
    model: type[BaseModel] | None = PrefillPolicySpec
    parts: list[Any] = []
    for part in loc:
        if model is None or not isinstance(part, str):
            parts = []
            continue
        parts = list(_parts(_field(model, part)))
        model = next((found for found in parts if _is_model(found)), None)
    return parts


def _is_model(part: Any) -> bool:
    return isinstance(part, type) and issubclass(part, BaseModel)


def _field(model: type[BaseModel], alias: str) -> FieldInfo:
    return next(field for field in model.model_fields.values() if field.alias == alias)


def _parts(field: FieldInfo) -> Iterator[Any]:
    """The types inside `X | None` and `list[X]`, outermost first, and what is annotated to them."""
    return _flatten(field.annotation, *field.metadata)


def _flatten(*parts: Any) -> Iterator[Any]:
    for part in parts:
        yield part
        yield from _flatten(*get_args(part))
