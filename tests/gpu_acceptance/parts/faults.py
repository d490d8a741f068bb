"""CUDA faults: each has its verdict, its leading rank and its time, and leaves a GPU that is as it was."""

import json
import signal
import subprocess
import sys
import time

from declaration import Expectation, Fault

from gpu_acceptance import notes
from gpu_acceptance.bench import SUITES, Bench
from gpu_acceptance.command import Run
from gpu_acceptance.junit import Case
from gpu_acceptance.matrix_file import Cells, Suite
from gpu_acceptance.verdict import WrongError

_TOLERANCE = 128
"""MiB of a GPU that may be used by then and were free: the driver's own."""

_PATIENCE = 10.0
"""Seconds for the driver to take back what killed processes had."""

_HASTE = 0.3
"""Under ``--pretend`` limits are shorter by this factor: no CUDA context has to be made."""


def stuck_in_a_kernel(bench: Bench) -> str:
    """A rank that waits for an endless kernel."""
    return _judged(bench, "stuck_in_a_kernel")


def illegal_address(bench: Bench) -> str:
    """A rank that reads memory that is nobody's."""
    return _judged(bench, "illegal_address")


def out_of_memory(bench: Bench) -> str:
    """A rank that takes all memory."""
    return _judged(bench, "out_of_memory")


def abort_in_a_collective(bench: Bench) -> str:
    """A rank that aborts while its peer is in a collective."""
    return _judged(bench, "abort_in_a_collective")


def sigkill_in_a_kernel(bench: Bench) -> str:
    """A rank that is killed while its kernel runs."""
    return _judged(bench, "sigkill_in_a_kernel")


def job_limit_in_a_kernel(bench: Bench) -> str:
    """The job's limit while a kernel runs."""
    seen = _judged(bench, "job_limit_in_a_kernel", pause=15)
    return f"{seen}; {_next_run(bench)}"


def collective_without_its_peer(bench: Bench) -> str:
    """A rank that waits for a peer in vain; under NCCL its watchdog and flight recorder see that, too."""
    seen = _judged(bench, "collective_without_its_peer")
    if _cells(bench).backend != "nccl":
        return seen
    recordings = recordings_of(bench)
    bench.check(bool(recordings), "NCCL's flight recorder has written nothing")
    return f"{seen}; flight recorder: {', '.join(recordings)}"


def recordings_of(bench: Bench) -> list[str]:
    """The files that NCCL's flight recorder has written and the job has brought home."""
    return sorted(path.name for path in bench.folder.rglob("flight-recorder-*") if path.stat().st_size)


def ctrl_c_in_a_kernel(bench: Bench) -> str:
    """Ctrl-C while a kernel runs."""
    fault = Fault.read(SUITES / "faults" / "interrupted_in_a_kernel.py")
    cells = _cells(bench)
    with bench.running("fault", cells, _suite(bench, fault)) as command:
        command.wait_until(lambda: bool(notes.read(bench.notes, "spinning")), "a rank in its kernel")
        began = time.monotonic()
        command.send(signal.SIGINT)
        run = command.wait()
    seconds = time.monotonic() - began
    bench.no_process_is_left()
    bench.check(run.code == 130, f"exit code {run.code}, not 130: {run.output}")
    case = run.case("test_fault")
    bench.check(case.verdict[0] != "passed", f"test_fault: {case.verdict}")
    bench.check(run.case("test_before").verdict == ("passed", ""), f"what had passed is lost: {run.story}")
    bench.check(seconds < 30, f"it took {seconds:.1f} s to end")
    _look_after(bench)
    bench.figure = f"ended in {seconds:.1f} s"
    return f"exit code 130 after {seconds:.1f} s, test_fault: {' '.join(case.verdict)}; {_next_run(bench)}"


def _judged(bench: Bench, name: str, pause: float = 0) -> str:
    """Run a fault as it declares itself; verdict, leading rank and time in words."""
    fault = Fault.read(SUITES / "faults" / f"{name}.py")
    run = bench.run("fault", _cells(bench), _suite(bench, fault, pause))
    bench.excuse(run)
    met = {note["rank"] for note in notes.read(bench.notes, "fault")}
    bench.check(met == set(range(fault.world_size)), f"the fault was met by ranks {sorted(met)}; {run.story}")
    bench.check(run.code in fault.exit_code, f"exit code {run.code}; {run.story}")
    case = run.case(fault.test)
    _compare(bench, fault.expected, case)
    bench.check(run.case("test_before").verdict == ("passed", ""), f"the test before it: {run.story}")
    for other, expected in fault.others.items():
        _compare(bench, expected, run.case(other))
    if "test_after" not in fault.others:
        after = run.case("test_after")
        bench.check(after.verdict == ("passed", ""), f"the next test: {after.verdict} {after.message}")
        bench.check(len(notes.read(bench.notes, "after")) == fault.world_size, "the next test has not run on all ranks")
    bench.check(run.seconds < fault.seconds + 30, f"it took {run.seconds:.1f} s, more than {fault.seconds + 30:g} s")
    _look_after(bench)
    leading = "no rank leads" if case.leading is None else f"rank {case.leading} leads"
    bench.figure = f"verdict after {case.seconds:.1f} s"
    return f"{case.verdict[1]}, {leading}, after {case.seconds:.1f} s: {case.message[:160]}"


def _compare(bench: Bench, expected: Expectation, case: Case) -> None:
    """Compare a testcase with what is declared of it."""
    bench.check(
        case.verdict in expected.verdict, f"{case.name}: {case.verdict}, not {expected.verdict}: {case.message}"
    )
    bench.check(case.leading in expected.leading, f"{case.name}: rank {case.leading} leads, not {expected.leading}")
    for word in expected.words:
        bench.check(word in case.message, f"{case.name}: the message lacks {word!r}: {case.message}")
    for word in expected.text:
        bench.check(word in case.text, f"{case.name}: the text lacks {word!r}: {case.text[:400]}")


def _cells(bench: Bench) -> Cells:
    """NCCL where each of two ranks has a GPU of its own; else gloo, with CUDA tensors of one GPU."""
    if len(bench.machine.gpus) > 1 and bench.machine.nccl:
        return Cells(backend=bench.nccl, world_sizes=(2,), gpus=2)
    return Cells(backend="gloo", world_sizes=(2,), gpus=1)


def _suite(bench: Bench, fault: Fault, pause: float = 0) -> Suite:
    haste = _HASTE if bench.machine.pretended else 1.0
    scaled = {name: round(seconds * haste, 1) for name, seconds in fault.limits.items() if name != "peer_grace"}
    limits = {**scaled, "peer_grace": 2}
    own = {"FAULT": fault.name, "PAUSE": str(pause * haste)}
    return Suite(source=SUITES / "faults", isolation="job", limits=limits, variables=own)


def _look_after(bench: Bench) -> None:
    """See that the GPUs compute, and that their memory is free if no other part uses them."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            command = [sys.executable, "-m", "gpu_acceptance.probe"]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=60)
        except subprocess.TimeoutExpired:
            msg = "the GPUs compute nothing within 60 s after it"
            raise WrongError(msg) from None
        bench.check(done.returncode == 0, f"the GPUs do not compute after it: {done.stdout[-400:]}")
        free = json.loads(done.stdout.splitlines()[-1])
        bench.check(len(free) == len(bench.machine.free), f"{len(free)} GPUs are left")
        lost = [was - now for was, now in zip(bench.machine.free, free, strict=True)]
        if not bench.is_alone or max(lost) <= _TOLERANCE:
            return
        waited = "after this fault and those before it"
        bench.check(time.monotonic() < deadline, f"memory is not free again {waited}, MiB of each GPU: {lost}")


def _next_run(bench: Bench) -> str:
    cells = Cells(backend="gloo", world_sizes=(1,), gpus=1)
    run: Run = bench.run("next", cells, Suite(source=SUITES / "memory"))
    bench.expect_passes(run, cells, ["test_memory"])
    return "the next run is green"
