"""The host itself: what the doctor finds, whether NVML and torch agree, and how long a look at each GPU takes."""

import os
import statistics
import subprocess
import sys
import time

import torch

from allranks.agent.gpus import compute, errors_of_gpus
from allranks.errors import counted
from allranks.protocol.config import GpuToCheck
from gpu_acceptance.bench import Bench
from gpu_acceptance.device import device
from gpu_acceptance.machine import Machine
from gpu_acceptance.verdict import ImpossibleError

_APART = 0.05
"""Of the memory: NVML counts what the driver keeps for itself, and CUDA does not."""

_ROUNDS = 3


def doctor(bench: Bench) -> str:
    """``allranks doctor`` finds the GPUs, and no problem."""
    with bench.command("doctor", ["doctor", "--engine", "process"], bench.folder) as command:
        run = command.wait()
    gpus = len(bench.machine.gpus)
    bench.check(f"GPUs: {gpus} (" in run.output, f"it does not name {gpus} GPUs: {run.output}")
    problems = "; ".join(line for line in run.output.splitlines() if line.startswith("PROBLEM"))
    bench.check(run.code == 0, problems or run.output)
    bench.figure = counted(gpus, "GPU")
    return f"{bench.figure}, no problem"


def nvml_and_torch(bench: Bench) -> str:
    """NVML and torch name the same GPUs, in the same order; each alone is found by its id."""
    machine = bench.machine
    if "pynvml" in machine.lacking:
        msg = "nvidia-ml-py is not installed"
        raise ImpossibleError(msg)
    bench.check(not machine.nvml_trouble, machine.nvml_trouble)
    pairs = [(len(machine.gpus), len(machine.by_nvml))]
    bench.check(pairs[0][0] == pairs[0][1], f"torch has {pairs[0][0]} GPUs, NVML {pairs[0][1]}")
    for number, (ours, theirs) in enumerate(zip(machine.gpus, machine.by_nvml, strict=True)):
        bench.check(ours.uuid == theirs.uuid, f"GPU {number} is {ours.uuid} to torch, {theirs.uuid} to NVML")
        bench.check(ours.name == theirs.name, f"GPU {number} is {ours.name} to torch, {theirs.name} to NVML")
        near = abs(ours.memory_mib - theirs.memory_mib) <= _APART * theirs.memory_mib
        bench.check(near, f"GPU {number} has {ours.memory_mib} MiB by torch, {theirs.memory_mib} MiB by NVML")
        alone = _look_with(ours.uuid)
        seen = [gpu.uuid for gpu in alone.gpus]
        bench.check(seen == [ours.uuid], f"CUDA_VISIBLE_DEVICES={ours.uuid} shows {seen}: {alone.torch_trouble}")
    bench.figure = counted(len(machine.gpus), "GPU")
    return f"both have {', '.join(f'{gpu.uuid} ({gpu.name}, {gpu.memory_mib} MiB)' for gpu in machine.gpus)}"


def _look_with(visible: str) -> Machine:
    """What a fresh process sees."""
    command = [sys.executable, "-m", "gpu_acceptance.machine"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": visible}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return Machine.from_json(done.stdout.splitlines()[-1])


def check_of_a_sick_gpu(bench: Bench) -> str:
    """The check that every job begins with: how long it takes on healthy GPUs, and that it finds a fault."""
    gpus = [GpuToCheck(gpu=gpu.uuid, visible=gpu.uuid, name=gpu.name) for gpu in bench.machine.gpus]
    kind = device().type
    seconds = []
    for _ in range(_ROUNDS):
        began = time.monotonic()
        troubles = errors_of_gpus(gpus, lambda: compute(kind), 60)
        seconds.append(time.monotonic() - began)
        bench.check(not troubles, f"it says of GPUs that seem healthy: {troubles}")

    def wrongly() -> None:
        compute(kind, lambda one, other: torch.matmul(one, other) + 1)

    troubles = errors_of_gpus(gpus, wrongly, 60)
    named = all("matrix product is wrong" in troubles.get(gpu.gpu, "") for gpu in gpus)
    bench.check(named, f"of GPUs that compute wrongly it says: {troubles}")
    bench.figure = f"{statistics.median(seconds):.2f} s"
    return f"{bench.figure} for {counted(len(gpus), 'healthy GPU')}; wrong sums are found"
