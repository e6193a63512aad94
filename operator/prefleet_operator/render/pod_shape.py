"""Whether a `podTemplate` has the types of a pod, field by field, before anything is merged or applied.

The CRD cannot tell: it keeps what stands there as it is, and the API server would refuse the pods' workload when the
operator applies it. `pod_fields.json` holds every field of a PodTemplateSpec with its type, from Kubernetes' own
OpenAPI documents (`python -m tests.support.pod_fields` writes it anew). Null is no fault anywhere: it takes a key away.

Left out: fields that the file does not know, since a newer cluster may, and what types do not say (the form of names
and quantities, what must be there, rules across fields). Those the API server judges.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterator, Mapping
from importlib.resources import files
from typing import Any, Final

from prefleet_operator.api import tell_value

Shape = str | list["Shape"] | dict[str, "Shape"]
"""The name of a type, [the shape of a list's items], or {"": the shape of a mapping's values}."""


def shape_faults(overlay: Any, where: str) -> Iterator[str]:
    """A sentence for each value of another type than a PodTemplateSpec has there, with its field and the fix."""
    return _faults(overlay, "PodTemplateSpec", where)


def _faults(value: Any, shape: Shape, where: str) -> Iterator[str]:
    if value is None:
        return
    fields = _types().get(shape) if isinstance(shape, str) else None
    if isinstance(shape, list):
        yield from _each_item(value, shape[0], where)
    elif isinstance(shape, dict) or fields is not None:
        yield from _each_field(value, fields or {}, None if isinstance(shape, str) else shape[""], where)
    else:
        wanted, fits = _LEAVES[shape]
        if not fits(value):
            yield _tell(value, _in_quotes(value) if shape == "string" else wanted, where)


def _each_item(value: Any, shape: Shape, where: str) -> Iterator[str]:
    if not isinstance(value, list):
        yield _tell(value, "a list", where)
        return
    for number, item in enumerate(value):
        yield from _faults(item, shape, f"{where}[{number}]")


def _each_field(value: Any, fields: Mapping[str, Shape], others: Shape | None, where: str) -> Iterator[str]:
    if not isinstance(value, Mapping):
        yield _tell(value, "a mapping", where)
        return
    for key, field in value.items():
        shape = fields.get(key, others)
        if shape is not None:
            yield from _faults(field, shape, f"{where}.{key}")


def _tell(value: Any, wanted: str, where: str) -> str:
    return f"{where}: is {tell_value(value)}: write {wanted}"


def _in_quotes(value: Any) -> str:
    scalar = isinstance(value, bool | int | float)
    return f'it in quotes, "{json.dumps(value)}", since it has to be text' if scalar else "text"


def _is_whole(value: Any) -> bool:
    return not isinstance(value, bool) and (isinstance(value, int) or (isinstance(value, float) and value.is_integer()))


def _is_number(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


_LEAVES: Final[Mapping[str, tuple[str, Callable[[Any], bool]]]] = {
    "string": ("text", _is_text),
    "Time": ("a time such as 2026-01-01T00:00:00Z", _is_text),
    "integer": ("a whole number, without quotes", _is_whole),
    "boolean": ("true or false, without quotes", lambda value: isinstance(value, bool)),
    "Quantity": ("a quantity such as 2, 500m or 8Gi", lambda value: _is_text(value) or _is_number(value)),
    "IntOrString": ("a whole number, or a name or share as text", lambda value: _is_text(value) or _is_whole(value)),
    "object": ("a mapping", lambda value: isinstance(value, Mapping)),
}
"""What stands in no further parts: what to write there, and what may."""


@functools.cache
def _types() -> Mapping[str, Mapping[str, Shape]]:
    found: dict[str, dict[str, Shape]] = json.loads(
        files("prefleet_operator.render").joinpath("pod_fields.json").read_text()
    )
    return found
