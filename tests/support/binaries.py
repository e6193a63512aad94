"""Finds the programs that tests and the demo run, and builds those that this machine does not have.

Each program is taken from the first place that has it in a fitting version:

1. the folder $KUBEBUILDER_ASSETS, 2. the folders of PATH, 3. the user cache, 4. a build of its Go module
under tools/, into that cache.

The go.mod files are the one place where versions are written: a found program fits by comparison with the
version pinned there (how close it must be, each tool's rule says), and a build is stamped with it. A cache
folder is named after the hash of the module's files and the build flags, so a changed pin is a new folder; a
program appears in it by a rename and so is whole or absent; a lock lets one process build a family while
others wait for it.

Left out: removing old cache folders (delete them at will), and anything but Go.

`python -m tests.support.binaries [NAME...]` makes those named, or all but KEDA's, ready and prints where they are.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.plane.processes import Process
from tests.support.progress import Progress

MODULES = Path(__file__).with_name("tools")
GO_AT_LEAST = (1, 26)
PROBE_TIMEOUT_S = 20
BUILD_TIMEOUT_S = 3600
POLL_S = 0.2

Version = tuple[int, ...]
Environment = Mapping[str, str]


class ToolMissing(RuntimeError):
    """A program is neither here nor can it be built; the message says what to install."""


@dataclass(frozen=True)
class Family:
    """Programs built from one Go module under tools/. `stamp`: -X settings with words for its version."""

    name: str
    module: str
    stamp: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        return MODULES / self.name


@dataclass(frozen=True)
class Tool:
    """One program. Without `version_arguments` it tells no version, and so is taken from the cache alone."""

    name: str
    family: Family
    package: str
    version_arguments: tuple[str, ...] | None
    version_pattern: str
    fits: Callable[[Version, Version], bool]


def same_minor(found: Version, pinned: Version) -> bool:
    return found[:2] == pinned[:2]


def within_one_minor(found: Version, pinned: Version) -> bool:
    """kubectl's own promise towards an API server."""
    return found[0] == pinned[0] and abs(found[1] - pinned[1]) <= 1


def same_major(found: Version, pinned: Version) -> bool:
    return found[0] == pinned[0]


def prometheus_major(found: Version, pinned: Version) -> bool:
    """Release 3.16 is Go module 0.316, and a build from the module may report either."""
    return _prometheus_release(found)[0] >= _prometheus_release(pinned)[0]


def _prometheus_release(version: Version) -> Version:
    major, minor = version[:2]
    return divmod(minor, 100) if major == 0 else (major, minor)


_KUBERNETES = Family(
    "kubernetes",
    "k8s.io/kubernetes",
    (
        "k8s.io/component-base/version.gitVersion=vVERSION",
        "k8s.io/component-base/version.gitMajor=MAJOR",
        "k8s.io/component-base/version.gitMinor=MINOR",
        "k8s.io/component-base/version.gitTreeState=clean",
    ),
)
_ETCD = Family("etcd", "go.etcd.io/etcd/server/v3")
_HELM = Family("helm", "helm.sh/helm/v4", ("helm.sh/helm/v4/internal/version.version=vVERSION",))
_PROMETHEUS = Family(
    "prometheus",
    "github.com/prometheus/prometheus",
    ("github.com/prometheus/common/version.Version=VERSION",),
)
_KEDA = Family("keda", "github.com/kedacore/keda/v2", ("github.com/kedacore/keda/v2/version.Version=VERSION",))


def _kubernetes_server(name: str) -> Tool:
    package = f"k8s.io/kubernetes/cmd/{name}"
    return Tool(name, _KUBERNETES, package, ("--version",), r"Kubernetes v(\d+)\.(\d+)\.(\d+)", same_minor)


def _prometheus_program(name: str) -> Tool:
    package = f"github.com/prometheus/prometheus/cmd/{name}"
    pattern = rf"{name}, version (\d+)\.(\d+)\.(\d+)"
    return Tool(name, _PROMETHEUS, package, ("--version",), pattern, prometheus_major)


_TABLE = (
    Tool("etcd", _ETCD, _ETCD.module, ("--version",), r"etcd Version: (\d+)\.(\d+)\.(\d+)", same_minor),
    _kubernetes_server("kube-apiserver"),
    _kubernetes_server("kube-controller-manager"),
    _kubernetes_server("kube-scheduler"),
    Tool(
        "kubectl",
        _KUBERNETES,
        "k8s.io/kubernetes/cmd/kubectl",
        ("version", "--client"),
        r"Client Version: v(\d+)\.(\d+)\.(\d+)",
        within_one_minor,
    ),
    Tool("helm", _HELM, "helm.sh/helm/v4/cmd/helm", ("version", "--short"), r"v(\d+)\.(\d+)\.(\d+)", same_major),
    _prometheus_program("prometheus"),
    _prometheus_program("promtool"),
)
_KEDA_TABLE = tuple(
    Tool(f"keda-{program}", _KEDA, f"{_KEDA.module}/cmd/{program}", None, "", same_minor)
    for program in ("operator", "adapter")
)
TOOLS: Mapping[str, Tool] = {tool.name: tool for tool in (*_TABLE, *_KEDA_TABLE)}
# What `make test` and `make demo` need. KEDA's are asked for by name: `make test-keda` alone builds them.
USUAL = tuple(tool.name for tool in _TABLE)
KEDA = tuple(tool.name for tool in _KEDA_TABLE)


def ensure(
    names: Sequence[str] = USUAL,
    progress: Progress | None = None,
    environment: Environment = os.environ,
) -> dict[str, Path]:
    """Where each named program is, after building those that are nowhere.

    Every build needs Go: if it is missing, ToolMissing names all that it is needed for, before anything is
    built.
    """
    progress = progress or Progress(sys.stderr)
    found = {name: find(TOOLS[name], environment) for name in names}
    missing = [TOOLS[name] for name, path in found.items() if path is None]
    if missing:
        go = find_go([tool.name for tool in missing], environment)
        for position, tool in enumerate(missing, 1):
            progress.title = f"building {tool.name} ({position} of {len(missing)})"
            found[tool.name] = build(tool, go, progress, environment)
    return {name: path for name, path in found.items() if path is not None}


def locate(name: str) -> Path:
    """Where one program is; builds it if need be."""
    return ensure([name])[name]


# --- finding


def find(tool: Tool, environment: Environment = os.environ) -> Path | None:
    """The first fitting one in $KUBEBUILDER_ASSETS, on PATH or in the cache; others are passed over."""
    pinned = pinned_version(tool.family)
    for folder in search_path(environment):
        candidate = folder / tool.name
        version = version_of(tool, candidate)
        if version and tool.fits(version, pinned):
            return candidate
    cached = cache_folder(tool.family, environment) / tool.name
    return cached if cached.exists() else None


def search_path(environment: Environment) -> list[Path]:
    folders = [environment.get("KUBEBUILDER_ASSETS", ""), *environment.get("PATH", "").split(os.pathsep)]
    return [Path(folder) for folder in dict.fromkeys(folders) if folder]


def version_of(tool: Tool, candidate: Path) -> Version | None:
    """What the program says of itself; None for what is not there, does not run, or speaks otherwise."""
    if tool.version_arguments is None or not os.access(candidate, os.X_OK):
        return None
    try:
        answer = subprocess.run(
            [candidate, *tool.version_arguments],
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(tool.version_pattern, answer.stdout + answer.stderr)
    return tuple(map(int, match.groups())) if match else None


def pinned_version(family: Family) -> Version:
    text = (family.folder / "go.mod").read_text()
    match = re.search(rf"^\s*{re.escape(family.module)} v(\d+)\.(\d+)\.(\d+)", text, re.MULTILINE)
    if match is None:
        raise ValueError(f"{family.folder}/go.mod requires no released version of {family.module}")
    return tuple(map(int, match.groups()))


# --- the cache


def cache_folder(family: Family, environment: Environment = os.environ) -> Path:
    return cache_root(environment) / f"{family.name}-{cache_key(family)}"


def cache_root(environment: Environment) -> Path:
    base = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME") or Path.home()) / ".cache"
    return Path(base) / "prefleet" / "tools"


def cache_key(family: Family) -> str:
    digest = hashlib.sha256()
    for part in (
        (family.folder / "go.mod").read_bytes(),
        (family.folder / "go.sum").read_bytes(),
        " ".join(build_flags(family)).encode(),
    ):
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()[:16]


@contextlib.contextmanager
def locked(path: Path, progress: Progress) -> Iterator[None]:
    """Hold the lock file; the kernel lets go of it when the holder ends, however it ends."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.say("waiting for another process that builds the same")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


# --- building


def build_flags(family: Family) -> list[str]:
    """Trimmed paths and no debug information: a third smaller, and the same wherever it is built."""
    version = pinned_version(family)
    values = {"VERSION": ".".join(map(str, version)), "MAJOR": str(version[0]), "MINOR": str(version[1])}
    stamps = [re.sub("VERSION|MAJOR|MINOR", lambda m: values[m.group()], stamp) for stamp in family.stamp]
    return ["-mod=readonly", "-trimpath", "-ldflags", " ".join(["-s -w", *(f"-X {each}" for each in stamps)])]


def find_go(needed_for: Sequence[str], environment: Environment = os.environ) -> Path:
    wanted = ".".join(map(str, GO_AT_LEAST))
    advice = (
        f"install Go {wanted} or newer (go.dev/dl) and put it on PATH, "
        f"or put fitting versions of {_listed(needed_for)} into the folder $KUBEBUILDER_ASSETS"
    )
    go = shutil.which("go", path=environment.get("PATH", ""))
    if go is None:
        raise ToolMissing(f"{_listed(needed_for)} must be built and there is no Go on PATH: {advice}.")
    said = subprocess.run([go, "version"], capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False).stdout
    match = re.search(r"go(\d+)\.(\d+)", said)
    if match is None or tuple(map(int, match.groups())) < GO_AT_LEAST:
        found = match.group() if match else "of no known version"
        raise ToolMissing(f"{_listed(needed_for)} must be built and {go} is {found}: {advice}.")
    return Path(go)


def build(tool: Tool, go: Path, progress: Progress, environment: Environment = os.environ) -> Path:
    """The program in the cache, built there unless another process did so while this one waited."""
    folder = cache_folder(tool.family, environment)
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / tool.name
    with locked(folder / ".lock", progress):
        for left_by_a_killed_build in folder.glob(".build-*"):
            shutil.rmtree(left_by_a_killed_build)
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=folder, prefix=".build-") as scratch:
                output = Path(scratch) / tool.name
                command = [str(go), "build", "-v", *build_flags(tool.family), "-o", str(output), tool.package]
                log = Path(scratch) / "log"
                process = Process.start("go build", command, log, cwd=tool.family.folder, env=environment)
                try:
                    _watch(process, tool, progress)
                finally:
                    process.stop()
                output.rename(target)
    return target


def _watch(process: Process, tool: Tool, progress: Progress) -> None:
    """`go build -v` names each package that it compiles: shown as progress, and kept to explain a failure."""
    started_s = time.monotonic()
    while process.exit_status is None:
        elapsed_s = time.monotonic() - started_s
        if elapsed_s > BUILD_TIMEOUT_S:
            raise ToolMissing(f"building {tool.name} took over {BUILD_TIMEOUT_S} s and was stopped")
        packages = process.log.read_text(errors="replace").splitlines()
        now = f", now {packages[-1]}" if packages else ""
        progress.show(f"{elapsed_s:.0f} s, {len(packages)} packages compiled{now}")
        time.sleep(POLL_S)
    if process.exit_status:
        raise ToolMissing(f"building {tool.name} in {tool.family.folder} failed; {process.log_end()}")
    progress.say(f"done in {time.monotonic() - started_s:.0f} s")


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def main(names: Sequence[str]) -> int:
    unknown = [name for name in names if name not in TOOLS]
    if unknown:
        print(f"no such program: {_listed(unknown)}; there are {_listed(list(TOOLS))}", file=sys.stderr)
        return 2
    try:
        found = ensure(names or USUAL)
    except ToolMissing as reason:
        print(reason, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped; what is compiled is kept, the next start goes on from there", file=sys.stderr)
        return 130
    for name, path in found.items():
        print(f"{name:24} {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
