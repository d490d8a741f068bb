"""Containers: a job is given its leased GPU by its id, and nothing else of the host."""

from gpu_acceptance.bench import SUITES, Bench
from gpu_acceptance.matrix_file import Cells, Suite
from gpu_acceptance.verdict import ImpossibleError

_TESTS = ["test_the_leased_gpu_is_the_only_one", "test_the_gpu_computes", "test_no_other_gpu_has_a_device_node"]
_IN_CONTAINERS = "test_the_host_is_out_of_reach"


def containers(bench: Bench) -> str:
    """What is inside a container with a GPU, and what is not."""
    pretended = bench.machine.pretended
    if not pretended:
        _need_containers(bench)
    cells = Cells(backend=bench.nccl, world_sizes=(1,), gpus=1)
    run = bench.run("inside", cells, Suite(source=SUITES / "inside", image="" if pretended else bench.image))
    bench.expect_passes(run, cells, _TESTS if pretended else [*_TESTS, _IN_CONTAINERS])
    bench.figure = f"{len(run.cases)} tests"
    return f"{len(run.cases)} tests passed inside, on {', '.join(run.cases[0].gpus)}"


def _need_containers(bench: Bench) -> None:
    """See that there are a daemon, NVIDIA's toolkit and an image.

    Raises:
        ImpossibleError: One is not there.
    """
    if "docker" in bench.machine.lacking:
        msg = "Docker's SDK for Python is not installed"
        raise ImpossibleError(msg)
    with bench.command("doctor", ["doctor", "--engine", "docker"], bench.folder) as command:
        output = command.wait().output
    for line in output.splitlines():
        if "Docker: No" in line or "toolkit: NVIDIA's is not installed" in line or "may not use Docker" in line:
            raise ImpossibleError(line.removeprefix("PROBLEM").strip())
    bench.check("Docker: " in output, f"the doctor says nothing of Docker: {output}")
    if not bench.image:
        msg = "no image with torch and pytest was named (--image), and none is built without a network"
        raise ImpossibleError(msg)
