"""Rendered manifests, word for word, for each engine and role."""

import pytest
from prefleet_operator.cli.documents import to_yaml

from tests.golden.cases import CASES, golden_file, render_case


@pytest.mark.parametrize("case", CASES)
def test_a_policy_becomes_its_golden_manifests(case: str) -> None:
    rendered = to_yaml(render_case(case))
    assert rendered == golden_file(case).read_text(), "if this change is meant: python -m tests.golden.cases"


@pytest.mark.parametrize("case", CASES)
def test_rendering_twice_gives_the_same_text(case: str) -> None:
    assert to_yaml(render_case(case)) == to_yaml(render_case(case))
