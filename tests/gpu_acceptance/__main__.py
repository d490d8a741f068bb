"""Proves that allranks works on this machine and its GPUs: see docs/gpu.md."""

import argparse
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NoReturn

from warden import adopt_orphans, end_descendants

from allranks.engine.ownership import lock_folder
from gpu_acceptance.machine import Machine
from gpu_acceptance.out_folder import OutFolder
from gpu_acceptance.parts import PARTS, Part
from gpu_acceptance.pretence import PRETENDS
from gpu_acceptance.supervisor import Supervisor
from gpu_acceptance.verdict import Verdict

CHECKOUT: Final = Path(__file__).resolve().parents[2]

_RESERVE: Final = 12.0
"""Seconds that are kept back: a part whose time is up may take them to end what it has started."""

_LOOK: Final = 180.0
"""Seconds for a first look at the machine: a cold import of torch, and a context on each GPU."""

_AT_A_TIME: Final = 3
"""Parts of a pretended acceptance that run side by side: they mostly wait."""

_UNWANTED: Final = ("ALLRANKS_", "GPU_ACCEPTANCE_", "GITHUB_", "PYTEST_", "PYTHONDONTWRITEBYTECODE")
"""Beginnings of variables that mean other runs, or make these slow."""

_INTERRUPTED: Final = 130
_USAGE: Final = 2
_NO_GPU: Final = 5


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(_USAGE, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts one by one.

    Returns:
        0 where nothing is wrong, 1 where something is, 2 for bad arguments, 5 where no GPU is, 130 if interrupted.
    """
    options = _parse(arguments)
    deadline = time.monotonic() + options.minutes * 60
    # SIGINT, too: shells have their background jobs ignore it, and our runs would inherit that.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    adopt_orphans()
    try:
        with tempfile.TemporaryDirectory(prefix="gpu-acceptance-", ignore_cleanup_errors=True) as folder:
            return _prove(Path(folder).resolve(), options, deadline)
    except KeyboardInterrupt:
        print("interrupted: what was found so far is kept", flush=True)
        return _INTERRUPTED


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    names = [part.name for part in PARTS]
    parser = _Parser(prog="gpu-acceptance", description=__doc__, epilog=f"parts: {', '.join(names)}")
    parser.add_argument("--minutes", type=float, default=25.0, help="what it may take (default: 25)")
    parser.add_argument("--out", type=Path, default=Path("gpu-acceptance"), metavar="DIR", help="a new or empty folder")
    parser.add_argument("--python", metavar="PYTHON", help="with torch 2.6 or newer, and pytest (default: python3)")
    parser.add_argument("--image", default="", help="with torch and pytest, for containers (default: no containers)")
    parser.add_argument("--only", action="append", metavar="PART", choices=names, help="this part alone; repeatable")
    parser.add_argument(
        "--pretend", action="store_true", help="run on stand-ins for GPUs, which proves the script alone"
    )
    options = parser.parse_args(arguments)
    if not 0 < options.minutes <= 24 * 60:
        parser.error(f"--minutes {options.minutes:g} is not between 0 and 1440")
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        if any(options.out.iterdir()):
            parser.error(f"--out {options.out} is not empty")
    except OSError as error:
        parser.error(f"--out {options.out} cannot be made: {error.strerror}")
    return options


def _prove(work: Path, options: argparse.Namespace, deadline: float) -> int:
    gpus = [f"GPU-pretended-{os.getpid()}-{number}" for number in range(2)] if options.pretend else []
    environment = _lay_out(work, gpus)
    try:
        machine = _look(environment, pretended=options.pretend)
        if machine.gpus and (machine.nvml_trouble or "pynvml" in machine.lacking):
            environment["ALLRANKS_GPUS"] = ",".join(gpu.uuid for gpu in machine.gpus)
        described = work / "machine.json"
        described.write_text(machine.to_json())
        print(machine.title, flush=True)
        out = OutFolder(path=options.out, machine=machine.title, pretended=options.pretend)
        supervisor = Supervisor(
            work=work,
            machine=described,
            environment=environment,
            pretended=options.pretend,
            image=options.image,
            deadline=deadline - _RESERVE,
        )
        _run([part for part in PARTS if part.name in (options.only or [part.name])], machine, supervisor, out)
    finally:
        end_descendants()
        for gpu in gpus:
            (lock_folder() / f"gpu-{gpu}").unlink(missing_ok=True)
    print(f"{out.title}\n{options.out}/summary.md", flush=True)
    return _exit_code(out, machine)


def _run(parts: Sequence[Part], machine: Machine, supervisor: Supervisor, out: OutFolder) -> None:
    """Run the parts in their order: stand-ins several at a time, GPUs one after the other."""

    def verdict(part: Part) -> Verdict:
        why = _why_not(part, machine)
        return supervisor.impossible(part, why) if why else supervisor.run(part)

    with ThreadPoolExecutor(_AT_A_TIME if machine.pretended else 1) as pool:
        coming = [(part, pool.submit(verdict, part)) for part in parts]
        try:
            for part, future in coming:
                _report(part, future.result(), supervisor, out)
        except KeyboardInterrupt:
            supervisor.stop()
            for part, future in coming[len(out.verdicts) :]:
                _report(part, future.result(), supervisor, out)
            raise


def _report(part: Part, verdict: Verdict, supervisor: Supervisor, out: OutFolder) -> None:
    folder = supervisor.folder(part)
    print(verdict.line, flush=True)
    try:
        out.add(verdict, folder if folder.exists() else None)
    except OSError as error:
        print(f"{out.path} cannot be written: {error}", flush=True)


def _lay_out(work: Path, pretended_gpus: Sequence[str]) -> dict[str, str]:
    """Copy what the parts need, so that the checkout stays as it is; the variables of every part."""
    code = work / "code"
    own = code / "own-suites"
    for source, target in (
        ("src/allranks", code / "allranks"),
        ("tests/gpu_acceptance", code / "gpu_acceptance"),
        *((f"suites/{name}", own / name) for name in ("collectives", "ddp", "rpc", "dist_autograd")),
        ("suites/torch", own / "torch-suites"),
    ):
        shutil.copytree(CHECKOUT / source, target, ignore=shutil.ignore_patterns("__pycache__"))
    for source in ("tests/faults/warden.py", "tests/faults/declaration.py", "tests/schedule/fake_nvml.py"):
        shutil.copy(CHECKOUT / source, code)
    for name in ("tmp", "cache"):
        (work / name).mkdir()
    paths = [str(code / "gpu_acceptance/pretence/modules"), str(code)] if pretended_gpus else [str(code)]
    theirs = {name: value for name, value in os.environ.items() if not name.startswith(_UNWANTED)}
    pretence = {PRETENDS: ",".join(pretended_gpus)} if pretended_gpus else {}
    return {
        **theirs,
        **pretence,
        "PYTHONPATH": os.pathsep.join([*paths, *_own_python_path()]),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # plugins that happen to be there have no part in this
        "TMPDIR": str(work / "tmp"),
        "XDG_CACHE_HOME": str(work / "cache"),
    }


def _own_python_path() -> list[str]:
    """The user's search path, without what the script has put there."""
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [path for path in paths if path and not Path(path).is_relative_to(CHECKOUT)]


def _look(environment: dict[str, str], *, pretended: bool) -> Machine:
    """Look at the machine from a process that may hang."""
    command = [sys.executable, "-m", "gpu_acceptance.machine"]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=_LOOK)
        return Machine.from_json(done.stdout.splitlines()[-1])
    except subprocess.CalledProcessError as error:
        trouble = f"a look at the machine ended with {error.returncode}: {error.stderr.strip()[-600:]}"
    except (subprocess.TimeoutExpired, ValueError, IndexError) as error:
        trouble = f"a look at the machine has failed: {error}"
    return Machine(python=platform.python_version(), torch_trouble=trouble, pretended=pretended)


def _why_not(part: Part, machine: Machine) -> str:
    """Why a machine has nothing for a part; empty where it has."""
    if machine.by_nvml and not machine.torch:
        return f"no torch: {machine.torch_trouble}"
    if not machine.gpus and not (machine.by_nvml and part.name == "nvml-and-torch"):
        return f"no GPU: {machine.torch_trouble}; NVML: {machine.nvml_trouble or len(machine.by_nvml) or 'none'}"
    if machine.torch and tuple(map(int, machine.torch.split(".")[:2])) < (2, 6):
        return f"torch {machine.torch} is older than 2.6"
    return "pytest is not installed" if "pytest" in machine.lacking else ""


def _exit_code(out: OutFolder, machine: Machine) -> int:
    outcomes = {verdict.outcome for verdict in out.verdicts}
    if not machine.gpus and not machine.by_nvml:
        return _NO_GPU
    allowed = {"proved"} if out.pretended else {"proved", "not possible here"}
    return 0 if "proved" in outcomes and outcomes <= allowed else 1


if __name__ == "__main__":
    sys.exit(main())
