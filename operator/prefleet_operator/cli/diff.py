"""`prefleet diff`: what applying a PrefillPolicy would do, before it is done: which objects change, and which pods
restart.

Against the fleet that runs (by KUBECONFIG; nothing is written), or against another file (`--against`), where pods
are counted as that file wants them. The exit code is that of diff and kubectl diff: 0 nothing changes, 1 something
does, 2 it could not be told. Whether pods restart is in the text and in the JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from prefleet_operator.api import PolicyDocument
    from prefleet_operator.app.preview import Preview
    from prefleet_operator.render.changes import ObjectChange

Object = dict[str, Any]

EXIT_CHANGES = 1


def diff(
    file: Annotated[Path, typer.Option("--file", "-f", help='A file with PrefillPolicies, or "-".')],
    against: Annotated[
        Path | None, typer.Option(help="Compare with this file in place of the cluster; its fleets are the old ones.")
    ] = None,
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Of policies whose file names none.")] = "default",
    runtime_image: Annotated[
        str, typer.Option(help="The installation's runtime image; if left out, the one that the fleet runs now.")
    ] = "",
    metrics_url: Annotated[
        str, typer.Option(help="The address of the metrics source, if KEDA asks it; if left out, the one it asks now.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Tell what applying a PrefillPolicy would change, and which pods it would restart. Exit code 1 if anything."""
    from prefleet_operator.cli.documents import fail, read_policies, read_yaml

    if str(file) == str(against) == "-":
        fail("--against: standard input can be read once: give the path of a file")
    documents = _placed(read_policies(file), namespace)
    if against is None:
        previews = _live(file, documents, runtime_image, metrics_url)
    else:
        render = partial(_rendered, runtime_image=runtime_image, metrics_url=metrics_url)
        previews = _offline(render(against, _placed(read_yaml(against), namespace)), render(file, documents))
    if as_json:
        typer.echo(json.dumps(to_document(previews), indent=2))
    else:
        typer.echo("\n\n".join(to_text(each) for each in previews))
    if any(each.changes for each in previews):
        raise typer.Exit(EXIT_CHANGES)


def _placed(documents: Sequence[Any], namespace: str) -> list[Any]:
    """The documents, each in a namespace; what is no policy at all is left for its parser to refuse."""
    return [
        each | {"metadata": {"namespace": namespace} | each["metadata"]}
        if isinstance(each, dict) and isinstance(each.get("metadata"), dict)
        else each
        for each in documents
    ]


def _live(file: Path, documents: Sequence[Any], runtime_image: str, metrics_url: str) -> list[Preview]:
    """Ask the cluster about each document. Ends the command on a fault."""
    import asyncio

    from prefleet_operator.adapters.kube import KubeError
    from prefleet_operator.api import InvalidSpecError
    from prefleet_operator.cli.documents import fail, parse_policies

    parsed = [(policy, _annotations(document)) for document, policy in parse_policies(file, documents)]
    try:
        return asyncio.run(_ask(parsed, runtime_image, metrics_url))
    except InvalidSpecError as error:
        fail(f"{file}: {error}")
    except KubeError as error:
        fail(f"{error}; to compare two files without a cluster, write --against")


async def _ask(parsed: Sequence[tuple[PolicyDocument, Object]], runtime_image: str, metrics_url: str) -> list[Preview]:
    import time

    from prefleet_operator.adapters.kube import connect
    from prefleet_operator.app.preview import Installed, preview
    from prefleet_operator.cli.render import default_runtime_image
    from prefleet_operator.render import FIELD_MANAGER

    installed = Installed(default_runtime_image(), runtime_image or None, metrics_url or None)
    kube = await connect(FIELD_MANAGER)
    try:
        return [await preview(kube, policy, annotations, installed, time.time()) for policy, annotations in parsed]
    finally:
        await kube.close()


def _annotations(document: Any) -> Object:
    return dict(document["metadata"].get("annotations") or {})


_Rendered = dict[tuple[str, str], list[Object]]
"""The objects of each policy of a file, by its namespace and name."""


def _offline(old: _Rendered, new: _Rendered) -> list[Preview]:
    """Compare what two files become."""
    from prefleet_operator.app.preview import Preview
    from prefleet_operator.render.changes import by_key, compare_objects

    previews = []
    for (namespace, name), objects in new.items():
        before, after = by_key(old.get((namespace, name), [])), by_key(objects)
        pods = {key: _wanted_pods(each) for key, each in before.items()}
        previews.append(Preview(namespace, name, compare_objects(before, after, pods)))
    return previews


def _rendered(file: Path, documents: Sequence[Any], runtime_image: str, metrics_url: str) -> _Rendered:
    """What a file becomes. Ends the command on a fault."""
    from prefleet_operator.api import InvalidSpecError
    from prefleet_operator.cli.documents import fail, parse_policies
    from prefleet_operator.cli.render import default_runtime_image, render_policy

    found = {}
    image = runtime_image or default_runtime_image()
    for _, policy in parse_policies(file, documents):
        try:
            found[policy.namespace, policy.name] = render_policy(policy, image, metrics_url or None)
        except InvalidSpecError as error:
            fail(f"{file}: {policy.namespace}/{policy.name}: {error}")
    return found


def _wanted_pods(rendered: Object) -> int:
    spec = rendered.get("spec", {})
    return int(spec.get("replicas", 0)) * int(spec.get("leaderWorkerTemplate", {}).get("size", 1))


def to_text(preview: Preview) -> str:
    """One fleet as a table and a sentence: a line for each place that changes."""
    lines = [f"PrefillPolicy {preview.namespace}/{preview.name}: {_summary(preview)}"]
    rows = [row for change in preview.changes for row in _rows(change)]
    if rows:
        head = ("OBJECT", "CHANGE", "PODS", "FIELDS")
        widths = [max(len(row[column]) for row in (head, *rows)) for column in range(3)]
        for row in (head, *rows):
            cells = [*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]
            lines.append("   ".join(cells).rstrip())
    if preview.waits:
        lines.append(preview.waits)
    return "\n".join(lines)


def _rows(change: ObjectChange) -> list[tuple[str, str, str, str]]:
    pods = f"{change.replaced} restart" if change.replaced else f"{change.removed} end" if change.removed else ""
    first, *others = [str(field) for field in change.fields] or [""]
    rows = [(f"{change.kind}/{change.name}", change.happening.value, pods, first)]
    return rows + [("", "", "", field) for field in others]


def _summary(preview: Preview) -> str:
    """What happens to pods, in a few words."""
    if not preview.changes:
        return "nothing changes."
    happenings = [
        f"{count} {'pod' if count == 1 else 'pods'} of {role} {verb}"
        for verb, counts in (("restart", restarts(preview)), ("end with their workload", _removals(preview)))
        for role, count in counts.items()
    ]
    return f"{', '.join(happenings)}." if happenings else "no pod restarts."


def restarts(preview: Preview) -> Mapping[str, int]:
    """How many pods are replaced, by role."""
    return {change.role: change.replaced for change in preview.changes if change.replaced}


def _removals(preview: Preview) -> Mapping[str, int]:
    return {change.role: change.removed for change in preview.changes if change.removed}


def to_document(previews: Sequence[Preview]) -> Object:
    """The same for machines."""
    return {"policies": [_policy(each) for each in previews]}


def _policy(preview: Preview) -> Object:
    return {
        "namespace": preview.namespace,
        "name": preview.name,
        "restarts": dict(restarts(preview)),
        "removes": dict(_removals(preview)),
        "objects": [_object(change) for change in preview.changes],
        "upgradeWaits": preview.waits,
    }


def _object(change: ObjectChange) -> Object:
    return {
        "kind": change.kind,
        "name": change.name,
        "change": change.happening.value,
        "podsReplaced": change.replaced,
        "podsRemoved": change.removed,
        "fields": [_field(each) for each in change.fields],
    }


def _field(difference: Any) -> Object:
    """One place; a side that has nothing there is left out."""
    from prefleet_operator.core.differences import ABSENT

    sides = {"old": difference.old, "new": difference.new}
    return {"path": difference.path} | {side: value for side, value in sides.items() if value is not ABSENT}
