"""The documents' relative links, and the paths that they name, lead somewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from prefleet_operator.api import KIND, parse_document, parse_yaml
from prefleet_runtime.contract import RuntimePolicy

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("node_runtime/**/*.md")])

_BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
_POLICY_FILE = re.compile(r"^echo '(.+)' > /etc/prefleet/policy.json$", re.MULTILINE)
_LINK = re.compile(r"\]\((?![a-z]+:)([^)\s#]*)(?:#([^)\s]+))?\)")
_PATH = re.compile(r"`((?:crds|docs|helm|node_runtime|operator|requirements|tests)/[\w./-]+)`")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def dead_ends(document: Path, text: str) -> Iterator[str]:
    """What `text`, standing in that file, links to or names and is not there."""
    for target, anchor in _LINK.findall(text):
        found = document.parent / target if target else document
        if not found.exists():
            yield target
        elif anchor and anchor not in anchors(found.read_text() if target else text):
            yield f"{target}#{anchor}"
    yield from (path for path in _PATH.findall(text) if not (ROOT / path).exists())


def anchors(text: str) -> set[str]:
    """What the headings are called in links, as GitHub makes it."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in _HEADING.findall(text)}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(document: Path) -> None:
    assert list(dead_ends(document, document.read_text())) == []


def test_every_policy_that_a_document_shows_is_admitted() -> None:
    shown = [
        block
        for document in DOCUMENTS
        for text in _BLOCK.findall(document.read_text())
        for block in parse_yaml(text.encode())
        if isinstance(block, dict) and block.get("kind") == KIND
    ]
    assert len(shown) >= 2
    assert [parse_document(block).name for block in shown]


def test_the_policy_file_of_the_readme_is_one_that_the_runtime_takes() -> None:
    (text,) = _POLICY_FILE.findall((ROOT / "README.md").read_text())
    assert RuntimePolicy.model_validate_json(text, strict=True).threshold == 1024


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param("[a](README.md), [b](https://example.org/x)", [], id="what is there, and what is elsewhere"),
        pytest.param("[a](docs/gone.md)", ["docs/gone.md"], id="no such file"),
        pytest.param("# Two words\n[a](#two-words), [b](#three)", ["#three"], id="no such heading"),
        pytest.param("see `docs/gone.md`", ["docs/gone.md"], id="a path in passing"),
    ],
)
def test_what_leads_nowhere_is_found(text: str, found: list[str]) -> None:
    assert list(dead_ends(ROOT / "README.md", text)) == found
