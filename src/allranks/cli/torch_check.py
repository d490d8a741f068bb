"""Checks whether a Python interpreter has torch, and whether two of its processes can communicate over gloo."""

import json
import signal
import subprocess
from collections.abc import Iterator, Mapping
from typing import Final

from allranks.agent import linux
from allranks.engines.base import Finding
from allranks.images.base import OLDEST_PYTHON

LIMIT: Final = 8.0
"""Seconds for the whole check. Most of this time imports torch, which takes longest after a restart of the host."""

_PROGRAM: Final = """
import json, os, sys, tempfile, time
def report(name, value):
    print(json.dumps([name, value]), flush=True)
report("python", list(sys.version_info[:3]))
try:
    import torch
    import torch.distributed as dist
except Exception as error:
    report("no torch", f"{type(error).__name__}: {error}")
    sys.exit()
report("torch", torch.__version__)
if not dist.is_available() or not dist.is_gloo_available():
    report("no gloo", "this build of torch has no gloo")
    sys.exit()
began = time.monotonic()
with tempfile.TemporaryDirectory() as folder:
    pid = os.fork()
    rank = 0 if pid else 1
    try:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
        tensor = torch.tensor([rank + 1.0])
        dist.all_reduce(tensor)
        if pid:
            report("sum", tensor.item())
            report("seconds", time.monotonic() - began)
    except Exception as error:
        report("no gloo", f"{type(error).__name__}: {error}")
    finally:
        if not pid:
            os._exit(0)
    os.waitpid(pid, 0)
"""

_GLOO_REMEDY: Final = "Name an interface that works, such as the loopback: export GLOO_SOCKET_IFNAME=lo"


def check_torch(python: str, *, runs_jobs: bool, limit: float = LIMIT) -> Iterator[Finding]:
    """Check an interpreter.

    Args:
        python: The interpreter.
        runs_jobs: Whether jobs run in this interpreter; then it is a problem if torch is missing.
        limit: Seconds for all checks.
    """
    try:
        output, is_late = _run(python, limit)
    except OSError as error:
        yield Finding("Python", f"{python} does not start: {error}", "Correct process.python in the matrix file.")
        return
    found = dict(map(json.loads, output.splitlines()))
    yield from _findings(found, python, limit, runs_jobs=runs_jobs, is_late=is_late)


def _run(python: str, limit: float) -> tuple[bytes, bool]:
    """Run the program in an interpreter; return its output and whether it was ended at the limit."""
    with subprocess.Popen(
        [python, "-c", _PROGRAM],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",  # not a folder that may hold a folder `torch`
        start_new_session=True,
    ) as process:
        try:
            return process.communicate(timeout=limit)[0], False
        except subprocess.TimeoutExpired:
            linux.signal_group(process.pid, signal.SIGKILL)
            return process.communicate()[0], True
        except BaseException:
            linux.signal_group(process.pid, signal.SIGKILL)
            raise


def _findings(
    found: Mapping[str, object], python: str, limit: float, *, runs_jobs: bool, is_late: bool
) -> Iterator[Finding]:
    version = found.get("python")
    if not isinstance(version, list):
        yield Finding("Python", f"{python} does not run", "Correct process.python in the matrix file.")
        return
    text = ".".join(map(str, version))
    is_old = tuple(version) < OLDEST_PYTHON
    needed = ".".join(map(str, OLDEST_PYTHON))
    yield Finding("Python", f"{text} ({python})", f"Use Python {needed} or newer." if is_old else "")
    if problem := found.get("no torch"):
        if runs_jobs:
            yield Finding("torch", f"it cannot be imported: {problem}", f"Install it: {python} -m pip install torch")
        else:
            yield Finding("torch", f"not in this Python: {problem}; a run installs the one that the matrix file names")
        return
    if "torch" not in found:
        text = f"its import took more than {limit:g} s; run allranks doctor again"
        yield Finding("torch", text, is_checked=False)
        return
    yield Finding("torch", str(found["torch"]))
    if problem := found.get("no gloo"):
        yield Finding("gloo", f"two ranks cannot communicate: {problem}", _GLOO_REMEDY)
    elif "seconds" in found and found.get("sum") == 1.0 + 2.0:
        yield Finding("gloo", f"two ranks completed an all_reduce in {found['seconds']:.2f} s")
    else:
        ended = f"did not end within {limit:g} s" if is_late else "ended without a result"
        yield Finding("gloo", f"an all_reduce of two ranks {ended}", _GLOO_REMEDY)
