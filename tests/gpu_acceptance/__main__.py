"""Proves that allranks works on this machine and its GPUs: see docs/gpu.md."""

import argparse
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, nullcontext, suppress
from itertools import groupby
from pathlib import Path
from typing import Final, NoReturn

from warden import adopt_orphans, end_descendants

from allranks.errors import AllranksError, UsageError
from allranks.runner.gpu_leases import Holder, try_lease
from gpu_acceptance.machine import Machine
from gpu_acceptance.out_folder import OutFolder
from gpu_acceptance.parts import PARTS, Part
from gpu_acceptance.pretence import PRETENDS
from gpu_acceptance.supervisor import Supervisor

CHECKOUT: Final = Path(__file__).resolve().parents[2]

_RESERVE: Final = 12.0
"""Seconds that are kept back: a part whose time is up may take them to end what it has started."""

_LOOK: Final = 180.0
"""Seconds for a first look at the machine: a cold import of torch, and a context on each GPU."""

_AT_A_TIME: Final = max(3, (os.cpu_count() or 1) // 3)
"""Parts that run side by side: each uses two or three cores, and mostly waits."""

_UNWANTED: Final = ("ALLRANKS_", "GPU_ACCEPTANCE_", "GITHUB_", "PYTEST_", "PYTHONDONTWRITEBYTECODE")
"""Beginnings of variables that mean other runs, or make these slow."""

_INTERRUPTED: Final = 130
_USAGE: Final = 2
_NO_GPU: Final = 5


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(_USAGE, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts.

    Returns:
        0 where nothing is wrong, 1 where something is, 2 for bad arguments or GPUs that another run uses, 5 where no
        GPU is, 130 if interrupted.
    """
    options = _parse(arguments)
    deadline = time.monotonic() + options.minutes * 60
    # SIGINT, too: shells have their background jobs ignore it, and our runs would inherit that.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    with suppress(OSError):  # the part about the kernel says what is missing
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
    parser.add_argument("--minutes", type=float, default=8.0, help="what it may take (default: 8)")
    parser.add_argument("--out", type=Path, default=Path("gpu-acceptance"), metavar="DIR", help="a new or empty folder")
    parser.add_argument("--python", metavar="PYTHON", help="with torch 2.6 or newer, and pytest (default: python3)")
    parser.add_argument("--image", default="", help="with torch and pytest, for containers (default: no containers)")
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="pure-Python wheels for the script and the ranks")
    parser.add_argument("--only", action="append", metavar="PART", choices=names, help="this part alone; repeatable")
    parser.add_argument(
        "--pretend", action="store_true", help="run on stand-ins for GPUs, which proves the script alone"
    )
    options = parser.parse_args(arguments)
    if not 0 < options.minutes <= 24 * 60:
        parser.error(f"--minutes {options.minutes:g} is not between 0 and 1440")
    if options.wheels and (why_not := _why_no_wheels(options.wheels)):
        parser.error(f"--wheels {options.wheels} {why_not}")
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        if any(options.out.iterdir()):
            parser.error(f"--out {options.out} is not empty")
    except OSError as error:
        parser.error(f"--out {options.out} cannot be made: {error.strerror}")
    return options


def _why_no_wheels(folder: Path) -> str:
    """Why the wheels of a folder cannot be used; empty if they can."""
    wheels = sorted(folder.glob("*.whl"))
    if not wheels:
        return "holds no wheel (*.whl)"
    for wheel in wheels:
        if not wheel.name.endswith("-none-any.whl"):
            return f"holds {wheel.name}, which is not a pure-Python wheel (*-none-any.whl)"
        try:
            with zipfile.ZipFile(wheel) as archive:
                damaged = archive.testzip()
        except (OSError, zipfile.BadZipFile) as error:
            return f"holds {wheel.name}, which cannot be read: {error}"
        if damaged:
            return f"holds {wheel.name}, whose {damaged} is damaged"
    return ""


def _prove(work: Path, options: argparse.Namespace, deadline: float) -> int:
    gpus = [f"GPU-pretended-{os.getpid()}-{number}" for number in range(2)] if options.pretend else []
    environment = _lay_out(work, gpus, options.wheels)
    try:
        machine = _look(environment, pretended=options.pretend)
        print(machine.title, flush=True)
        try:
            lease = _lease(machine)
        except (AllranksError, OSError) as error:
            print(" ".join(str(error).splitlines()), flush=True)
            return _USAGE
        with lease:
            out = _prove_parts(work, machine, environment, options, deadline - _RESERVE)
    finally:
        end_descendants()
    print(f"{out.title}\n{options.out}/summary.md", flush=True)
    return _exit_code(out, machine)


def _lease(machine: Machine) -> AbstractContextManager[object]:
    """A hold on all GPUs, for which other runs of this host wait.

    Raises:
        AllranksError: Another run has one of them, or the folder of locks cannot be used.
        OSError: It cannot be written.
    """
    if machine.pretended:
        return nullcontext()
    holder = Holder(run_id="gpu-acceptance", pid=os.getpid(), since=time.time())
    lease = try_lease([gpu.uuid for gpu in machine.gpus], len(machine.gpus), holder)
    if lease is None:
        msg = "Another run uses a GPU of this machine."
        raise UsageError(msg, remedy="Wait for its end: `allranks doctor --gpus` names it.")
    return lease


def _prove_parts(
    work: Path, machine: Machine, environment: dict[str, str], options: argparse.Namespace, deadline: float
) -> OutFolder:
    if machine.gpus and (machine.nvml_trouble or "pynvml" in machine.lacking):
        environment["ALLRANKS_GPUS"] = ",".join(gpu.uuid for gpu in machine.gpus)
    described = work / "machine.json"
    described.write_text(machine.to_json())
    parts = [part for part in PARTS if part.name in (options.only or [part.name])]
    out = OutFolder(
        path=options.out, machine=machine.title, parts=[part.name for part in parts], pretended=options.pretend
    )
    supervisor = Supervisor(
        work=work,
        machine=described,
        environment=environment,
        pretended=options.pretend,
        image=options.image,
        deadline=deadline,
    )
    _run(parts, machine, supervisor, out)
    return out


def _run(parts: Sequence[Part], machine: Machine, supervisor: Supervisor, out: OutFolder) -> None:
    """Run the parts in their order, side by side as far as they can; each is written as soon as it has ended."""
    writing = threading.Lock()

    def prove(part: Part) -> None:
        why = _why_not(part, machine)
        verdict = supervisor.impossible(part, why) if why else supervisor.run(part)
        folder = supervisor.folder(part)
        with writing:
            print(verdict.line, flush=True)
            try:
                out.add(verdict, folder if folder.exists() else None)
            except OSError as error:
                print(f"{out.path} cannot be written: {error}", flush=True)

    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        try:
            for group in _groups(parts):
                for future in as_completed([pool.submit(prove, part) for part in group]):
                    future.result()
        except KeyboardInterrupt:
            supervisor.stop()
            raise


def _groups(parts: Sequence[Part]) -> Iterator[list[Part]]:
    """The parts that run at the same time, in their order; the next ones begin when all of them have ended."""
    for is_alone, group in groupby(parts, lambda part: part.is_alone):
        if is_alone:
            yield from ([part] for part in group)
        else:
            yield list(group)


def _lay_out(work: Path, pretended_gpus: Sequence[str], wheels: Path | None) -> dict[str, str]:
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
    for source in ("tests/faults/warden.py", "tests/faults/declaration.py", "tests/runner/fake_nvml.py"):
        shutil.copy(CHECKOUT / source, code)
    for name in ("tmp", "cache", "wheels"):
        (work / name).mkdir()
    for wheel in sorted(wheels.glob("*.whl")) if wheels else ():
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(work / "wheels")
    pretence = [str(code / "gpu_acceptance/pretence/modules")] if pretended_gpus else []
    paths = [*pretence, str(code), str(work / "wheels")]
    theirs = {name: value for name, value in os.environ.items() if not name.startswith(_UNWANTED)}
    pretends = {PRETENDS: ",".join(pretended_gpus)} if pretended_gpus else {}
    return {
        **theirs,
        **pretends,
        "PYTHONPATH": os.pathsep.join([*paths, *_own_python_path()]),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # plugins that happen to be there have no part in this
        "TMPDIR": str(work / "tmp"),
        "XDG_CACHE_HOME": str(work / "cache"),
    }


def _own_python_path() -> list[str]:
    """The user's search path, without what the script has put there."""
    own = {CHECKOUT / path for path in ("src", "tests", "tests/faults")}
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [path for path in paths if path and Path(path).resolve() not in own]


def _look(environment: dict[str, str], *, pretended: bool) -> Machine:
    """Look at the machine from a process that may hang."""
    # -P: the folder ``docker`` of a checkout that the script is started in is no package.
    command = [sys.executable, "-P", "-m", "gpu_acceptance.machine"]
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
    if not part.needs_gpus:
        return ""
    if machine.kernel_trouble:
        return machine.kernel_trouble
    if machine.by_nvml and not machine.torch:
        return f"no torch: {machine.torch_trouble}"
    if not machine.gpus and not (machine.by_nvml and part.name == "nvml-and-torch"):
        return f"no GPU: {machine.torch_trouble}; NVML: {machine.nvml_trouble or len(machine.by_nvml) or 'none'}"
    if machine.torch and tuple(map(int, machine.torch.split(".")[:2])) < (2, 6):
        return f"torch {machine.torch} is older than 2.6"
    return "pytest is not installed" if "pytest" in machine.lacking else ""


def _exit_code(out: OutFolder, machine: Machine) -> int:
    on_gpus = {part.name for part in PARTS if part.needs_gpus}
    outcomes = {verdict.outcome for verdict in out.verdicts}
    proved = {verdict.part for verdict in out.verdicts if verdict.outcome == "proved"}
    if not machine.gpus and not machine.by_nvml:
        return _NO_GPU
    allowed = {"proved"} if out.pretended else {"proved", "not possible here"}
    has_proved = bool(proved & on_gpus) or not on_gpus & set(out.parts)
    return 0 if has_proved and outcomes <= allowed else 1


if __name__ == "__main__":
    sys.exit(main())
