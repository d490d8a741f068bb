"""Cells with GPUs: NCCL, gloo with CUDA tensors, our own collectives and torch's own suites."""

from collections import Counter
from pathlib import Path

from allranks.errors import counted
from gpu_acceptance import notes
from gpu_acceptance.bench import SUITES, Bench
from gpu_acceptance.matrix_file import Cells, Suite
from gpu_acceptance.verdict import ImpossibleError

_BASICS = Suite(source=SUITES / "basics")
_TESTS = (
    "test_all_reduce_sums_over_ranks",
    "test_broadcast_gives_everyone_the_tensor_of_the_last_rank",
    "test_the_group_has_the_backend_and_the_size_of_the_cell",
    "test_only_leased_gpus_are_visible",
)
_SHARED = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}
_OWN = Path(__file__).parents[2] / "own-suites"
"""The suites that come with allranks, where the acceptance has its copy of the checkout."""

_C10D_OF_ONE_RANK = "(all_reduce_sum_cuda or reduce_sum_cuda or broadcast_cuda or barrier_cuda) and not sparse"
_C10D = "all_reduce_sum or all_reduce_min or broadcast or barrier or all_gather_object or send_recv_any_source"


def nccl_one_gpu(bench: Bench) -> str:
    """NCCL at world size 1, in every init method."""
    cells = Cells(backend=bench.nccl, world_sizes=(1,), gpus=1, init_methods=("env", "tcp", "file"))
    return _basics(bench, cells, _BASICS)


def gloo_cuda_tensors(bench: Bench) -> str:
    """Gloo with CUDA tensors, the ranks sharing one GPU."""
    return _basics(bench, Cells(backend="gloo", world_sizes=(2, 4), gpus=1), _BASICS)


def nccl_shared_gpu(bench: Bench) -> str:
    """Two ranks of NCCL on one GPU."""
    cells = Cells(backend=bench.nccl, world_sizes=(2,), gpus=1)
    return _basics(bench, cells, Suite(source=_BASICS.source, variables=_SHARED))


def several_gpus(bench: Bench) -> str:
    """NCCL with a GPU for each rank, as wide as the host is, and our collectives on all of them."""
    count = len(bench.machine.gpus)
    if count < 2:
        msg = "this host has one GPU"
        raise ImpossibleError(msg)
    cells = Cells(backend=bench.nccl, world_sizes=(count,), gpus=count)
    seen = _basics(bench, cells, _BASICS)
    return f"{seen}; collectives: {_collectives(bench, cells)}"


def collectives(bench: Bench) -> str:
    """The suite ``collectives`` of this repository on CUDA tensors, by NCCL."""
    return _collectives(bench, Cells(backend=bench.nccl, world_sizes=(1,), gpus=1))


def ddp(bench: Bench) -> str:
    """The suite ``ddp`` of this repository on CUDA tensors: by NCCL on all GPUs, by gloo where there is one."""
    count = len(bench.machine.gpus)
    cells = Cells(backend=bench.nccl if count > 1 else "gloo", world_sizes=(max(2, count),), gpus=count)
    selected = ("--", "-k", "test_buckets") if bench.machine.pretended else ()
    run = bench.run("ddp", cells, Suite(source=_OWN / "ddp", isolation="job"), *selected)
    return bench.expect_no_failures(run, cells, at_least=2)


def rpc(bench: Bench) -> str:
    """The suite ``rpc`` of this repository, with its tests of device maps and streams."""
    return _workers(bench, "rpc", "test_workers")


def dist_autograd(bench: Bench) -> str:
    """The suite ``dist_autograd`` of this repository, with its passes over GPUs."""
    return _workers(bench, "dist_autograd", "test_contexts")


def _workers(bench: Bench, name: str, pretended: str) -> str:
    cells = Cells(backend="gloo", world_sizes=(4,), gpus=len(bench.machine.gpus), init_methods=("tcp",))
    selected = ("--", "-k", pretended) if bench.machine.pretended else ()
    run = bench.run(name, cells, Suite(source=_OWN / name, process_group=False), *selected)
    return bench.expect_no_failures(run, cells, at_least=2)


def _basics(bench: Bench, cells: Cells, suite: Suite) -> str:
    run = bench.run("basics", cells, suite)
    bench.expect_passes(run, cells, _TESTS)
    left = notes.read(bench.notes, "basics")
    wanted = Counter(dict.fromkeys(cells.ids.values(), 0))
    for size in cells.ids.values():
        wanted[size] += size
    found = Counter(note["world_size"] for note in left)
    bench.check(found == wanted, f"ranks by world size: {dict(found)} left a note, {dict(wanted)} should have")
    leased = {gpu for case in run.cases for gpu in case.gpus}
    used = {gpu for note in left for gpu in note["gpus"]}
    bench.check(used == leased and len(used) >= cells.gpus, f"leased {sorted(leased)}, seen by ranks {sorted(used)}")
    bench.figure = f"{len(run.cases)} tests in {counted(len(cells.ids), 'cell')}"
    return f"{', '.join(cells.ids)}: {len(run.cases)} tests passed, by {len(left)} ranks on {', '.join(sorted(used))}"


def _collectives(bench: Bench, cells: Cells) -> str:
    suite = Suite(source=_OWN / "collectives", isolation="job")
    selected = ("--", "-k", "test_all_reduce") if bench.machine.pretended else ()
    run = bench.run("collectives", cells, suite, *selected)
    return bench.expect_no_failures(run, cells, at_least=10)


def forks(bench: Bench) -> str:
    """Ranks are forks of a process that imported all and has initialised CUDA not once."""
    cells = Cells(backend="gloo", world_sizes=(2,), gpus=1)
    run = bench.run("forks", cells, Suite(source=SUITES / "forks", isolation="test"))
    tests = [f"test_a_fresh_rank_initialises_cuda_and_its_agent_has_not[{gang}]" for gang in range(2)]
    bench.expect_passes(run, cells, tests)
    left = notes.read(bench.notes, "fork")
    ranks, importers = {note["pid"] for note in left}, {note["imported_by"] for note in left}
    bench.check(len(ranks) == 4, f"{len(ranks)} processes were ranks, not 4")
    bench.check(len(importers) == 1 and not importers & ranks, f"imported by {importers}, ranks were {ranks}")
    in_agent, in_ranks = sum(note["in_agent"] for note in left), sum(note["in_rank"] for note in left)
    bench.check(in_agent == 0, f"CUDA was initialised {in_agent} times in the agent")
    bench.check(in_ranks >= 4, f"CUDA was initialised {in_ranks} times in 4 ranks: the counter does not count")
    bench.figure = f"{in_agent} in the agent, {in_ranks} in ranks"
    return f"CUDA was initialised {in_agent} times in the agent, {in_ranks} times in its 4 forks; one import"


def torch_c10d(bench: Bench) -> str:
    """Tests of torch's own ``distributed_test`` on NCCL: with one GPU, those that a single rank can run."""
    _need_expecttest(bench)
    count = min(2, len(bench.machine.gpus))
    cells = Cells(backend=bench.nccl, world_sizes=(count,), gpus=count)
    suite = Suite(source=_OWN / "torch-suites", path="c10d", overlap=2)
    selected = _C10D_OF_ONE_RANK if count == 1 else _C10D
    if bench.machine.pretended:
        selected = "all_reduce_sum and not cuda"
    run = bench.run("c10d", cells, suite, "--", "-k", selected)
    return f"{bench.expect_no_failures(run, cells, at_least=1)} (-k '{selected}')"


def torch_rpc_cuda(bench: Bench) -> str:
    """torch's own tests of RPC with CUDA."""
    _need_expecttest(bench)
    cells = Cells(backend="gloo", world_sizes=(2,), gpus=len(bench.machine.gpus), init_methods=("file",))
    path = "rpc/test_rpc.py" if bench.machine.pretended else "rpc/test_rpc_cuda.py"
    selected = ("--", "-k", "test_add or test_rref_str") if bench.machine.pretended else ()
    suite = Suite(source=_OWN / "torch-suites", path=path, overlap=4, limits={"job": 360})
    run = bench.run("rpc", cells, suite, *selected)
    return bench.expect_no_failures(run, cells, at_least=1)


def _need_expecttest(bench: Bench) -> None:
    if "expecttest" in bench.machine.lacking:
        msg = "expecttest, which torch's test cases import, is not installed (--wheels)"
        raise ImpossibleError(msg)
