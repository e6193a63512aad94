"""YAML as Kubernetes reads it, where PyYAML by itself would take it for something else, or end in a traceback.

Keys are text, whatever they look like, and a key that is set twice is refused, as `kubectl apply` does. Dates and
numbers to the base of 60 (12:30) are text: Kubernetes knows neither.
"""

from __future__ import annotations

from typing import Any

import yaml

_TEXT = "tag:yaml.org,2002:str"
_MERGE = "tag:yaml.org,2002:merge"


class YamlError(ValueError):
    """What stands there is no YAML that Kubernetes would read; the message says where and why."""


class _Loader(yaml.SafeLoader):
    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"{key.value} is set twice", problem_mark=key.start_mark)
            seen.add(key.value)
            key.tag = _TEXT
        return node

    def construct_as_written(self, node: yaml.ScalarNode) -> str:
        return str(node.value)

    def construct_number(self, node: yaml.ScalarNode) -> Any:
        if ":" in node.value:
            return node.value
        return self.construct_yaml_int(node) if node.tag.endswith(":int") else self.construct_yaml_float(node)


for _kind in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _Loader.construct_number)
_Loader.add_constructor("tag:yaml.org,2002:timestamp", _Loader.construct_as_written)


def parse_yaml(raw: bytes) -> list[Any]:
    """The documents of a stream in UTF-8; empty ones are left out.

    Raises:
        YamlError: it is not UTF-8, not YAML, or YAML that Kubernetes refuses.
    """
    try:
        documents = yaml.load_all(raw.decode("utf-8-sig"), Loader=_Loader)
        return [document for document in documents if document is not None]
    except yaml.MarkedYAMLError as error:
        raise YamlError(_sentence(error)) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise YamlError(" ".join(str(error).split())) from None
    except RecursionError:
        raise YamlError("it nests too deeply") from None
    except ValueError as error:
        raise YamlError(str(error)) from None


def _sentence(error: yaml.MarkedYAMLError) -> str:
    """In one line, where it is first."""
    mark = error.problem_mark or error.context_mark
    place = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
    return place + " ".join(str(part) for part in (error.context, error.problem) if part)
