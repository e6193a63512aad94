"""In what two values differ, and how that is told."""

from typing import Any

import pytest
from prefleet_operator.core.differences import Difference, differences, name_paths


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        pytest.param({"a": {"b": 1}}, {"a": {"b": 1}}, [], id="equal values have none"),
        pytest.param({"a": {"b": 1}}, {"a": {"b": 2}}, ["a.b 1 -> 2"], id="a value that changed, with both sides"),
        pytest.param({}, {"a": "x"}, ["a x added"], id="a key that is new"),
        pytest.param({"a": "x"}, {}, ["a x removed"], id="a key that is gone"),
        pytest.param({"a": {"b": 1}}, {}, ["a changed"], id="a map that is gone is not written out"),
        pytest.param({"a": "x" * 61}, {"a": "y"}, ["a changed"], id="a long value is not written out"),
        pytest.param({"a": None}, {}, ["a null removed"], id="null is a value, absence is none"),
        pytest.param(
            {"c": [{"name": "engine", "image": "v1"}, {"name": "side"}]},
            {"c": [{"name": "side"}, {"name": "engine", "image": "v2"}]},
            ["c[engine].image v1 -> v2"],
            id="named items are compared by name, in any order",
        ),
        pytest.param(
            {"c": [{"name": "engine"}]}, {"c": [{"name": "engine"}, {"name": "x"}]}, ["c[x] changed"], id="a new item"
        ),
        pytest.param({"args": ["a", "b"]}, {"args": ["b", "a"]}, ["args in another order"], id="order counts"),
        pytest.param(
            {"args": ["a", "b", "b"]}, {"args": ["a", "b", "c"]}, ["args - b + c"], id="texts that go and come"
        ),
        pytest.param({"args": ["a"]}, {"args": ["a" * 161]}, ["args changed"], id="a script is not written out"),
        pytest.param(
            {"p": [{"name": "a"}, {"name": "a"}]}, {"p": [{"name": "a"}]}, ["p"], id="names given twice tell nothing"
        ),
    ],
)
def test_each_place_is_told_once(old: Any, new: Any, told: list[str]) -> None:
    found = [str(each) for each in differences(old, new)]
    assert len(found) == len(told)
    assert all(text.startswith(expected) for text, expected in zip(found, told, strict=True))


def test_a_sentence_names_the_first_places_and_counts_the_others() -> None:
    found = [Difference(f"p{number}", 1, 2) for number in range(6)]
    assert name_paths(found) == "p0, p1, p2, p3 and 2 more"
    assert name_paths(found[:2]) == "p0, p1"
