"""YAML in and out, and how a command ends that cannot do what was asked: one sentence and exit code 2.

One that was interrupted ends with the code that shells give for SIGINT.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer
import yaml

if TYPE_CHECKING:
    from prefleet_operator.api import PolicyDocument

EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130
_WIDTH = 110


class _Dumper(yaml.SafeDumper):
    """Writes values in full, without aliases, and texts of several lines as blocks."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def to_yaml(documents: Iterable[Any]) -> str:
    """The documents as one YAML stream, keys in their order."""
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=_WIDTH)


def read_yaml(path: Path) -> list[Any]:
    """The documents of a file, or of standard input for "-"; empty ones are left out. Ends the command on a fault."""
    from prefleet_operator.api import YamlError, parse_yaml

    try:
        return parse_yaml(sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes())
    except OSError as error:
        fail(f"{path}: cannot be read ({error.strerror}): give the path of a YAML file")
    except YamlError as error:
        fail(f"{_name(path)}: is not YAML that Kubernetes reads: {error}")


def read_policies(path: Path) -> list[Any]:
    """The documents of a file that must hold one at least. Ends the command on a fault."""
    documents = read_yaml(path)
    if not documents:
        fail(f"{_name(path)}: holds no document: give a file with a PrefillPolicy")
    return documents


def parse_policies(path: Path, documents: Sequence[Any]) -> list[tuple[Any, PolicyDocument]]:
    """Each document with what it says. Ends the command on a fault, and on two documents of one policy."""
    from prefleet_operator.api import InvalidSpecError, parse_document

    found: dict[tuple[str, str], tuple[Any, PolicyDocument]] = {}
    for number, document in enumerate(documents):
        where = place(path, documents, number)
        try:
            policy = parse_document(document)
        except InvalidSpecError as error:
            fail(f"{where}: {error}")
        if (policy.namespace, policy.name) in found:
            fail(f"{where}: {policy.namespace}/{policy.name} stands in the file already: remove one of them")
        found[policy.namespace, policy.name] = (document, policy)
    return list(found.values())


def place(path: Path, documents: Sequence[Any], number: int) -> str:
    """Where the document of that number, from 0, stands: how a sentence about it begins."""
    return _name(path) if len(documents) == 1 else f"{_name(path)}, document {number + 1}"


def _name(path: Path) -> str:
    return "standard input" if str(path) == "-" else str(path)


def check_place(option: str, path: Path | None) -> None:
    """End the command now if a file could not be written at the end of it."""
    if path is None:
        return
    try:
        is_folder = path.is_dir()
    except OSError as error:
        _cannot_write(path, error)
    if is_folder:
        fail(f"{option}: {path} is a folder: give the path of a file")
    if not path.parent.is_dir():
        fail(f"{option}: there is no folder {path.parent}: make it, or give another path")


def write(path: Path, text: str) -> None:
    """Write a file. Ends the command on a fault."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        _cannot_write(path, error)


def _cannot_write(path: Path, error: OSError) -> NoReturn:
    fail(f"{path}: cannot be written ({error.strerror}): give another path")


def fail(sentence: str) -> NoReturn:
    """End the command: the input is at fault."""
    typer.echo(f"error: {sentence}", err=True)
    raise typer.Exit(EXIT_BAD_INPUT)


def interrupted() -> NoReturn:
    """End the command: someone pressed Ctrl-C."""
    typer.echo("interrupted: the replay did not come to its end", err=True)
    raise typer.Exit(EXIT_INTERRUPTED)
