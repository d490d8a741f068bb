"""Leases: two runs on one GPU wait for each other, the dead hold nothing, and what the user hides is left alone."""

import signal
import time
from pathlib import Path

from gpu_acceptance import notes
from gpu_acceptance.bench import SUITES, Bench
from gpu_acceptance.matrix_file import Cells, Suite
from gpu_acceptance.verdict import ImpossibleError

_CELLS = Cells(backend="gloo", world_sizes=(1,), gpus=1)
_TEST = ["test_holding"]


def wait(bench: Bench) -> str:
    """A run waits for the GPU that another one holds, and has it next."""
    go = bench.folder / "go"
    with (
        bench.running("first", _CELLS, _holding(go), "--gpus", "0", ALLRANKS_RUN_ID="first") as first,
        bench.running("second", _CELLS, _holding(go), "--gpus", "0", ALLRANKS_RUN_ID="second") as second,
    ):
        second.wait_until(lambda: bool(notes.read(bench.notes, "began")), "a rank that holds the GPU")
        began = notes.read(bench.notes, "began")[0]
        holder, waiter = (first, second) if began["run"] == "first" else (second, first)
        with bench.command("leases", ["doctor", "--gpus"], bench.folder) as leases:
            output = leases.wait().output
        waiter.wait_until(lambda: "waiting for another run" in waiter.output, "the line that says for what it waits")
        bench.check(f"of run {began['run']} " in output, f"`allranks doctor --gpus` does not name the holder: {output}")
        bench.check(not notes.read(bench.notes, "ended"), "the holder has ended before it was to")
        go.touch()
        for run in (holder.wait(), waiter.wait()):
            bench.expect_passes(run, _CELLS, _TEST)
    bench.no_process_is_left()
    (_, later), (earlier, _) = notes.read(bench.notes, "began"), notes.read(bench.notes, "ended")
    bench.check(later["run"] != began["run"], "one run held the GPU twice")
    bench.check(later["gpus"] == began["gpus"], f"they held {began['gpus']} and {later['gpus']}")
    bench.check(later["at"] > earlier["at"], "both held the GPU at a time")
    bench.figure = f"next after {later['at'] - earlier['at']:.1f} s"
    return f"the second run began {later['at'] - earlier['at']:.1f} s after the first let go of {later['gpus'][0]}"


def of_the_killed(bench: Bench) -> str:
    """The GPU of a run whose owner was killed in the middle of a kernel is the next run's."""
    go = bench.folder / "go"
    go.touch()
    with bench.running("killed", _CELLS, _holding("kernel"), "--gpus", "0") as killed:
        killed.wait_until(lambda: bool(notes.read(bench.notes, "began")), "a rank that holds the GPU")
        held = notes.read(bench.notes, "began")[0]
        killed.send(signal.SIGKILL)
        at = time.monotonic()
        with bench.running("next", _CELLS, _holding(go), "--gpus", "0") as command:
            run = command.wait()
        bench.expect_passes(run, _CELLS, _TEST)
    bench.no_process_is_left()
    began = notes.read(bench.notes, "began")[-1]
    bench.check(began["gpus"] == held["gpus"], f"the killed run held {held['gpus']}, the next one {began['gpus']}")
    bench.figure = f"next after {began['at'] - at:.1f} s"
    return f"the next run's test began on {began['gpus'][0]} {began['at'] - at:.1f} s after the kill"


def obey(bench: Bench) -> str:
    """``ALLRANKS_GPUS`` and ``CUDA_VISIBLE_DEVICES`` say which GPUs a run may use."""
    if bench.machine.nvml_trouble or "pynvml" in bench.machine.lacking:
        msg = "NVML, which is asked before CUDA_VISIBLE_DEVICES hides anything, does not answer here"
        raise ImpossibleError(msg)
    last = bench.machine.gpus[-1].uuid
    go = bench.folder / "go"
    go.touch()
    for name in ("ALLRANKS_GPUS", "CUDA_VISIBLE_DEVICES"):
        run = bench.run(name, _CELLS, _holding(go), **{name: last})
        bench.expect_passes(run, _CELLS, _TEST)
        used = notes.read(bench.notes, "began")[-1]["gpus"]
        bench.check(run.case(*_TEST).gpus == (last,), f"{name}={last}: the lease was on {run.case(*_TEST).gpus}")
        bench.check(used == [last], f"{name}={last}: the rank saw {used}")
    before = len(notes.read(bench.notes, "began"))
    run = bench.run("hidden", _CELLS, _holding(go), CUDA_VISIBLE_DEVICES="")
    bench.check(run.code == 5, f"all GPUs were hidden, and the exit code is {run.code}; {run.story}")
    bench.check("GPUs: none" in run.output, f"all GPUs were hidden: {run.output}")
    bench.check(run.case(*_TEST).verdict[0] == "skipped", f"all GPUs were hidden: {run.story}")
    bench.check(len(notes.read(bench.notes, "began")) == before, "all GPUs were hidden, and a rank used one")
    return f"either variable gives {last} and no other; hidden from CUDA, GPUs are not leased"


def _holding(until: Path | str) -> Suite:
    return Suite(source=SUITES / "holds", variables={"HOLD": str(until)})
