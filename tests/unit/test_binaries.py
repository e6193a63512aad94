"""Which program is taken from where (tests/support/binaries.py), over tiny programs that only tell a version."""

import io
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support import binaries
from tests.support.binaries import TOOLS, ToolMissing, ensure, find, version_of
from tests.support.progress import Progress

QUIET = Progress(io.StringIO())


def write_program(folder: Path, name: str, script: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def says(folder: Path, name: str, answer: str) -> Path:
    return write_program(folder, name, f"cat <<'END'\n{answer}\nEND")


def write_go(folder: Path, version: str = "go1.26.1", build: str = "echo built > $output") -> Path:
    """A Go that counts its builds in `builds` beside it. $output is what -o names."""
    return write_program(
        folder,
        "go",
        f"""
if [ "$1" = version ]; then echo "go version {version} linux/amd64"; exit; fi
echo "$@" >> {folder}/builds
while [ "$1" != -o ]; do shift; done
output=$2
{build}
""",
    )


@pytest.fixture
def here(tmp_path: Path) -> dict[str, str]:
    """An environment with an empty PATH folder (but for a shell's own programs), assets folder and cache."""
    for each in ("path", "assets"):
        (tmp_path / each).mkdir()
    for each in ("sh", "cat"):
        (tmp_path / "path" / each).symlink_to(shutil.which(each) or "")
    return {
        "PATH": str(tmp_path / "path"),
        "KUBEBUILDER_ASSETS": str(tmp_path / "assets"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }


@pytest.mark.parametrize(
    ("name", "answer", "version"),
    [
        ("etcd", "etcd Version: 3.6.16\nGit SHA: none\nGo Version: go1.26.8", (3, 6, 16)),
        ("kube-apiserver", "Kubernetes v1.36.3", (1, 36, 3)),
        ("kube-scheduler", "Kubernetes v1.36.0-rc.1+abc", (1, 36, 0)),
        ("kubectl", "Client Version: v1.32.4-dispatcher\nKustomize Version: v5.5.0", (1, 32, 4)),
        ("helm", "v4.3.1+gabcdef", (4, 3, 1)),
        ("prometheus", "prometheus, version 3.5.0 (branch: HEAD, revision: 8be3a9)", (3, 5, 0)),
        ("promtool", "promtool, version 0.316.0 (branch: , revision: unknown)", (0, 316, 0)),
        ("etcd", "something else", None),
    ],
)
def test_a_program_tells_its_version(tmp_path: Path, name: str, answer: str, version: tuple[int, ...] | None) -> None:
    assert version_of(TOOLS[name], says(tmp_path, name, answer)) == version


def test_what_cannot_run_has_no_version(tmp_path: Path) -> None:
    broken = tmp_path / "etcd"
    assert version_of(TOOLS["etcd"], broken) is None
    broken.write_bytes(b"\x7fELF for another machine")
    assert version_of(TOOLS["etcd"], broken) is None
    broken.chmod(0o755)
    assert version_of(TOOLS["etcd"], broken) is None


@pytest.mark.parametrize(
    ("name", "found", "pinned", "fits"),
    [
        pytest.param("kube-apiserver", (1, 36, 0), (1, 36, 3), True, id="another patch of the same minor"),
        pytest.param("kube-apiserver", (1, 35, 9), (1, 36, 3), False, id="an API server of another minor"),
        pytest.param("kubectl", (1, 35, 0), (1, 36, 3), True, id="a kubectl one minor behind"),
        pytest.param("kubectl", (1, 37, 1), (1, 36, 3), True, id="a kubectl one minor ahead"),
        pytest.param("kubectl", (1, 32, 4), (1, 36, 3), False, id="a kubectl four minors behind"),
        pytest.param("helm", (3, 19, 0), (4, 3, 1), False, id="Helm 3"),
        pytest.param("helm", (4, 0, 0), (4, 3, 1), True, id="an older Helm 4"),
        pytest.param("etcd", (3, 5, 21), (3, 6, 16), False, id="etcd 3.5"),
        pytest.param("etcd", (3, 6, 1), (3, 6, 16), True, id="etcd 3.6"),
        pytest.param("prometheus", (3, 5, 0), (0, 316, 0), True, id="a released Prometheus 3"),
        pytest.param("prometheus", (0, 301, 0), (0, 316, 0), True, id="Prometheus 3 named after its module"),
        pytest.param("prometheus", (2, 55, 1), (0, 316, 0), False, id="Prometheus 2"),
        pytest.param("promtool", (0, 55, 0), (0, 316, 0), False, id="Prometheus 2 named after its module"),
    ],
)
def test_what_fits(name: str, found: tuple[int, ...], pinned: tuple[int, ...], fits: bool) -> None:
    assert TOOLS[name].fits(found, pinned) is fits


@pytest.mark.parametrize(
    ("assets", "path", "cached", "taken"),
    [
        pytest.param("v1.36.1", "v1.36.2", True, "assets", id="the assets folder comes before PATH"),
        pytest.param("v1.30.0", "v1.36.2", True, "path", id="assets that do not fit are passed over"),
        pytest.param("v1.30.0", "v1.32.4", True, "cache", id="where nothing fits the cache answers"),
        pytest.param(None, None, True, "cache", id="where nothing is found the cache answers"),
        pytest.param("v1.30.0", "v1.32.4", False, None, id="nothing fits and nothing was built"),
    ],
)
def test_the_first_fitting_place_wins(
    here: dict[str, str], tmp_path: Path, assets: str | None, path: str | None, cached: bool, taken: str | None
) -> None:
    kubectl = TOOLS["kubectl"]
    for folder, version in (("assets", assets), ("path", path)):
        if version:
            says(tmp_path / folder, "kubectl", f"Client Version: {version}")
    if cached:
        write_program(binaries.cache_folder(kubectl.family, here), "kubectl", "exit 1")
    found = find(kubectl, here)
    assert (found and found.relative_to(tmp_path).parts[0]) == taken


def test_a_later_folder_of_path_may_hold_the_fitting_one(here: dict[str, str], tmp_path: Path) -> None:
    says(tmp_path / "old", "helm", "v3.19.0")
    wanted = says(tmp_path / "new", "helm", "v4.1.0")
    here["PATH"] = f"{here['PATH']}:{tmp_path / 'old'}:{tmp_path / 'new'}"
    assert find(TOOLS["helm"], here) == wanted


@pytest.mark.parametrize("changed", ["go.mod", "go.sum"])
def test_a_change_of_the_module_is_another_cache_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changed: str
) -> None:
    family = TOOLS["helm"].family
    shutil.copytree(binaries.MODULES, tmp_path / "tools")
    monkeypatch.setattr(binaries, "MODULES", tmp_path / "tools")
    before = binaries.cache_key(family)
    assert binaries.cache_key(family) == before
    with (family.folder / changed).open("a") as file:
        file.write("\n// changed\n")
    assert binaries.cache_key(family) != before


def test_a_program_that_tells_no_version_is_taken_from_the_cache_alone(here: dict[str, str], tmp_path: Path) -> None:
    keda = TOOLS["keda-operator"]
    write_program(tmp_path / "path", keda.name, f"touch {tmp_path}/started")
    assert find(keda, here) is None
    cached = write_program(binaries.cache_folder(keda.family, here), keda.name, "")
    assert find(keda, here) == cached
    assert not (tmp_path / "started").exists()


def test_keda_is_built_for_its_own_target_only() -> None:
    assert tuple(TOOLS) == binaries.USUAL + binaries.KEDA
    assert binaries.KEDA == ("keda-operator", "keda-adapter")


def test_the_module_s_version_is_stamped_into_the_build() -> None:
    version = "v" + ".".join(map(str, binaries.pinned_version(TOOLS["kubectl"].family)))
    flags = " ".join(binaries.build_flags(TOOLS["kubectl"].family))
    assert f"version.gitVersion={version} " in flags
    assert "-mod=readonly" in flags


def test_every_tool_is_a_tool_of_its_module() -> None:
    for tool in TOOLS.values():
        assert tool.package in (tool.family.folder / "go.mod").read_text()


@pytest.mark.parametrize(
    ("go", "why"),
    [
        pytest.param(None, "there is no Go on PATH", id="without Go"),
        pytest.param("go1.25.4", "is go1.25", id="with a Go that is too old"),
        pytest.param("devel", "is of no known version", id="with a Go that tells no version"),
    ],
)
def test_what_cannot_be_built_says_what_to_install(
    here: dict[str, str], tmp_path: Path, go: str | None, why: str
) -> None:
    if go:
        write_go(tmp_path / "path", version=go)
    with pytest.raises(ToolMissing, match=rf"^etcd and helm must be built and .*{why}: install Go 1.26 or newer"):
        ensure(["etcd", "helm"], QUIET, here)


def test_a_missing_program_is_built_once_and_then_found(here: dict[str, str], tmp_path: Path) -> None:
    write_go(tmp_path / "path")
    first = ensure(["promtool"], QUIET, here)
    assert first == ensure(["promtool"], QUIET, here)
    assert first["promtool"].read_text() == "built\n"
    assert len((tmp_path / "path" / "builds").read_text().splitlines()) == 1


def test_two_that_want_the_same_build_it_once(here: dict[str, str], tmp_path: Path) -> None:
    here["PATH"] += f":{Path(shutil.which('sleep') or '').parent}"
    go = write_go(tmp_path / "path", build="sleep 0.3; echo built > $output")
    with ThreadPoolExecutor(2) as pool:
        builds = [pool.submit(binaries.build, TOOLS["etcd"], go, QUIET, here) for _ in range(2)]
        assert len({each.result() for each in builds}) == 1
    assert len((tmp_path / "path" / "builds").read_text().splitlines()) == 1


def test_a_failed_build_leaves_nothing_and_shows_what_go_said(here: dict[str, str], tmp_path: Path) -> None:
    write_go(tmp_path / "path", build="echo half > $output; echo cannot find module >&2; exit 1")
    with pytest.raises(ToolMissing, match=r"(?s)building etcd in .* failed;.*cannot find module"):
        ensure(["etcd"], QUIET, here)
    folder = binaries.cache_folder(TOOLS["etcd"].family, here)
    assert [each.name for each in folder.iterdir()] == [".lock"]


def test_what_a_killed_build_left_is_removed_by_the_next(here: dict[str, str], tmp_path: Path) -> None:
    write_go(tmp_path / "path")
    folder = binaries.cache_folder(TOOLS["etcd"].family, here)
    (folder / ".build-killed").mkdir(parents=True)
    ensure(["etcd"], QUIET, here)
    assert {each.name for each in folder.iterdir()} == {".lock", "etcd"}


def test_progress_in_a_pipe_is_plain_lines() -> None:
    stream = io.StringIO()
    progress = Progress(stream)
    progress.title = "building etcd"
    progress.show("1 s")
    progress.show("2 s")
    progress.say("done")
    assert stream.getvalue() == "building etcd: 1 s\nbuilding etcd: done\n"
