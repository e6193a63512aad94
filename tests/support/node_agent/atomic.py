"""Files that change all at once, laid out as a kubelet lays out ConfigMap volumes.

    folder/key    -> ..data/key
    folder/..data -> ..2026_01_31_23_59_59.123456
    folder/..2026_01_31_23_59_59.123456/key

A new state is written beside the old one and `..data` is swung by one rename: a reader sees all old or all new
files. Nothing is touched when nothing changed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_DATA = "..data"


@dataclass(frozen=True)
class FileContent:
    content: bytes
    mode: int = 0o644


def write_atomically(folder: Path, files: Mapping[str, FileContent], stamp: str) -> bool:
    """Makes `files` (relative path -> content) the folder's content; whether anything changed.

    `stamp` names the new state and must not have been used in this folder before.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if _current(folder) == dict(files):
        return False
    state = folder / f"..{stamp}"
    _write_state(state, files)
    old = _swing(folder, state)
    _link_visible(folder, {path.split("/", 1)[0] for path in files})
    if old is not None:
        shutil.rmtree(folder / old, ignore_errors=True)
    return True


def _current(folder: Path) -> dict[str, FileContent] | None:
    data = folder / _DATA
    if not data.exists():
        return None
    return {
        str(path.relative_to(data)): FileContent(path.read_bytes(), path.stat().st_mode & 0o777)
        for path in data.rglob("*")
        if path.is_file()
    }


def _write_state(state: Path, files: Mapping[str, FileContent]) -> None:
    state.mkdir()
    for relative, file in files.items():
        path = state / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.content)
        path.chmod(file.mode)


def _swing(folder: Path, state: Path) -> str | None:
    """Points `..data` at the new state; the name of the former one."""
    data, fresh = folder / _DATA, folder / "..data_tmp"
    old = os.readlink(data) if data.is_symlink() else None
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(state.name)
    fresh.replace(data)
    return old


def _link_visible(folder: Path, names: set[str]) -> None:
    for name in names:
        link = folder / name
        if not link.is_symlink():
            link.symlink_to(f"{_DATA}/{name}")
    for entry in folder.iterdir():
        if entry.is_symlink() and not entry.name.startswith("..") and entry.name not in names:
            entry.unlink()
