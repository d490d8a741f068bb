"""The services that some tests need, with their markers and their detection.

A test with the marker of a service is an integration test. `nox -s tests` runs all others, on any machine;
`nox -s integration` runs these. There, a test whose service is missing is skipped with the reason, unless the variable
``ALLRANKS_REQUIRE`` lists the service, as in ``ALLRANKS_REQUIRE="docker slurm"``: then the test fails.
"""

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from allranks.errors import EngineError
from allranks.images.docker_client import connect
from allranks.user_cache import cache_folder

REQUIRE = "ALLRANKS_REQUIRE"
INTEGRATION = "integration"
SERVICE = "service"

CLIENTS = Path(os.environ.get("ALLRANKS_CLIENTS") or cache_folder() / "report-clients")
"""The folder that scripts/report-clients fills."""

ACTIONS = ("EnricoMi/publish-unit-test-result-action", "mikepenz/action-junit-report", "dorny/test-reporter")
"""The GitHub actions among the clients of the report."""

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
KERNEL_HEADER = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
NVIDIA_HOOK = "nvidia-container-runtime-hook"


@dataclass(frozen=True, kw_only=True)
class Service:
    """One service.

    Attributes:
        what: Its name for people.
        why_missing: The reason why tests cannot use it on this machine and the remedy; "" if they can.
    """

    what: str
    why_missing: Callable[[], str]


def _refused(*command: str) -> str:
    """Why a command fails; "" if it does not."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return f"there is no {command[0]} on the PATH"
    return (done.stderr.strip() or f"exit status {done.returncode}") if done.returncode else ""


def _docker() -> str:
    try:
        connect().close()
    except EngineError as error:
        return f"no Docker daemon answers: {error.why} (Debian: scripts/docker-engine starts one)"
    return ""


def _nvidia_hook() -> str:
    if reason := _docker():
        return reason
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "comm").read_text() == "dockerd\n":
                variables = (os.fsdecode(variable) for variable in (process / "environ").read_bytes().split(b"\0"))
                path = next(
                    (variable.removeprefix("PATH=") for variable in variables if variable.startswith("PATH=")), ""
                )
                if shutil.which(NVIDIA_HOOK, path=path):
                    return ""
    return f"no Docker daemon on this host has tests/e2e/stand_ins/{NVIDIA_HOOK} on its PATH"


def _slurm() -> str:
    path = f"{os.environ['PATH']}:/usr/sbin"
    if all(shutil.which(name, path=path) for name in ("slurmctld", "slurmd", "munged", "sbatch")):
        return ""
    return "there is no SLURM on the PATH (Debian 12: scripts/slurm-cluster start installs it)"


def _charliecloud() -> str:
    if not shutil.which("ch-run"):
        return "there is no ch-run on the PATH (Debian: apt-get install charliecloud)"
    refused = _refused("unshare", "--user", "--mount", "true")
    return f"this user cannot create user namespaces: {refused}" if refused else ""


def _browser() -> str:
    if any(map(shutil.which, BROWSERS)):
        return ""
    return "there is no Chromium on the PATH (Debian: apt-get install chromium)"


def _node() -> str:
    is_new = "process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)"
    if _refused("node", "-e", is_new):
        return "there is no Node.js 20 or newer on the PATH"
    if not (CLIENTS / "installed").exists():
        return f"the clients of the report are not in {CLIENTS} (scripts/report-clients installs them)"
    return ""


def _github() -> str:
    if reason := _node():
        return reason
    absent = [name for name in ACTIONS if not (CLIENTS / "actions" / name.replace("/", "+") / "fetched").exists()]
    return f"{', '.join(absent)}: not in {CLIENTS} (scripts/report-clients fetches them)" if absent else ""


def _act() -> str:
    return "" if shutil.which("act") else "there is no act on the PATH (nox -s act installs it)"


def _zsh() -> str:
    return "" if shutil.which("zsh") else "there is no zsh on the PATH (Debian: apt-get install zsh)"


def _index() -> str:
    with tempfile.TemporaryDirectory() as folder:
        refused = _refused(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, "nox")
    return f"pip gets no packages from an index: {refused.splitlines()[-1]}" if refused else ""


def _compiler() -> str:
    if shutil.which("c++") and shutil.which("cc") and KERNEL_HEADER.exists():
        return ""
    return "there is no C++ compiler, or no header of the kernel (Debian: apt-get install g++)"


def _root() -> str:
    if os.geteuid() != 0:
        return "only root can mount disks and limit memory"
    refused = _refused("unshare", "--mount", "--pid", "--fork", "true")
    return f"root cannot create namespaces here: {refused}" if refused else ""


SERVICES = {
    "docker": Service(what="a Docker daemon", why_missing=_docker),
    "nvidia_hook": Service(what="a Docker daemon with the stand-in for NVIDIA's hook", why_missing=_nvidia_hook),
    "slurm": Service(what="SLURM", why_missing=_slurm),
    "charliecloud": Service(what="Charliecloud", why_missing=_charliecloud),
    "browser": Service(what="Chromium", why_missing=_browser),
    "node": Service(what="Node.js, and the clients of the report", why_missing=_node),
    "github": Service(what="actions that were fetched from GitHub", why_missing=_github),
    "act": Service(what="act", why_missing=_act),
    "zsh": Service(what="zsh", why_missing=_zsh),
    "index": Service(what="a package index that pip reaches", why_missing=_index),
    "compiler": Service(what="a C++ compiler, with the headers of the kernel", why_missing=_compiler),
    "root": Service(what="root, with namespaces", why_missing=_root),
}


@functools.cache
def why_missing(name: str) -> str:
    """Why tests cannot use a service on this machine; "" if they can."""
    return SERVICES[name].why_missing()


def required() -> tuple[str, ...]:
    """The services whose tests must not be skipped.

    Raises:
        pytest.UsageError: The variable names another service.
    """
    names = tuple(os.environ.get(REQUIRE, "").split())
    if unknown := [name for name in names if name not in SERVICES]:
        msg = f"{REQUIRE} names {', '.join(unknown)}, which is no service. Services: {', '.join(SERVICES)}."
        raise pytest.UsageError(msg)
    return names


def services_of(item: pytest.Item) -> Iterator[str]:
    """The services that a test needs."""
    return (name for name in SERVICES if item.get_closest_marker(name))


def register(config: pytest.Config) -> None:
    """Register the markers."""
    required()
    for name, service in SERVICES.items():
        config.addinivalue_line("markers", f"{name}: needs {service.what}")
    config.addinivalue_line("markers", f"{INTEGRATION}: needs a service; follows from the marker of that service")


def mark(items: Sequence[pytest.Item]) -> None:
    """Mark tests that need services as integration tests."""
    for item in items:
        if any(services_of(item)):
            item.add_marker(INTEGRATION)


def check(item: pytest.Item) -> None:
    """Name the services of a test in its reports; skip it, or fail it, if one of them is missing."""
    names = list(services_of(item))
    item.user_properties += [(SERVICE, name) for name in names]
    for name in names:
        if reason := why_missing(name):
            message = f"needs {name}: {reason}"
            if name in required():
                pytest.fail(message, pytrace=False)
            pytest.skip(message)


def summary(reports: dict[str, list[pytest.TestReport]]) -> list[str]:
    """A line per needed service with the numbers of outcomes of its tests."""
    counts = {
        name: Counter(
            category
            for category in ("passed", "failed", "error", "skipped")
            for report in reports.get(category, ())
            if (SERVICE, name) in map(tuple, getattr(report, "user_properties", ()))
        )
        for name in SERVICES
    }
    return [
        f"{name + ':':14} {', '.join(f'{number} {category}' for category, number in count.items())}"
        for name, count in counts.items()
        if count
    ]
