"""Rank tests without an agent: in a single process, or as ranks of torchrun, srun and mpirun."""

import subprocess
import sys

import pytest
from long_lists import quick

from allranks.testing.environment import LauncherError, RankEnvironment
from allranks.testing.plain_world import PlainWorld

SUITE = """
import pytest

def test_sum(process_group, rank, world_size, device):
    import torch
    tensor = torch.full((1,), float(rank + 1), device=device)
    torch.distributed.all_reduce(tensor, group=process_group)
    assert tensor.item() == world_size * (world_size + 1) / 2

def test_subgroup(subgroup, world_size):
    import torch
    group = subgroup(range(world_size))
    assert torch.distributed.get_world_size(group) == world_size

@pytest.mark.no_process_group
def test_own_group(store, rank, world_size):
    import torch
    assert not torch.distributed.is_initialized()
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()

def test_again(process_group, shared_tmp_path, file_barrier, rank, world_size):
    (shared_tmp_path / str(rank)).touch()
    file_barrier()
    assert len(list(shared_tmp_path.iterdir())) == world_size
"""


@pytest.fixture
def start(tmp_path, environment_without_ranks):
    """``start(VARIABLE=..., ...)``: starts pytest for the suite with these environment variables."""
    (tmp_path / "test_it.py").write_text(SUITE)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -q -p no:cacheprovider -p no:hypothesispytest")
    started = []

    def start_one(*arguments, **variables):
        environment = {
            **environment_without_ranks,
            "TMPDIR": str(tmp_path),
            "ALLRANKS_RENDEZVOUS_TIMEOUT": "30",
            **variables,
        }
        command = [sys.executable, "-m", "pytest", *arguments]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=pipe, text=True))
        return started[-1]

    yield start_one
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def ends(*processes):
    return [(process.communicate(timeout=100)[0], process.returncode) for process in processes]


@pytest.mark.thorough
def test_alone_a_suite_is_a_world_of_one(start):
    [(output, status)] = ends(start())
    assert status == 0, output
    assert "4 passed" in output


VARIABLES = {
    "torchrun's": lambda rank: {"RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": "2"},
    "SLURM's": lambda rank: {
        "SLURM_PROCID": rank,
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_LOCALID": rank,
        "SLURM_STEP_TASKS_PER_NODE": "2",
        "SLURM_NODEID": "0",
        "SLURM_JOB_ID": "71",
        "SLURM_STEP_ID": "3",
    },
    "Open MPI's": lambda rank: {
        "OMPI_COMM_WORLD_RANK": rank,
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_RANK": rank,
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    },
    "PMI's": lambda rank: {"PMI_RANK": rank, "PMI_SIZE": "2", "MPI_LOCALRANKID": rank, "MPI_LOCALNRANKS": "2"},
}


@pytest.mark.parametrize(
    "launcher",
    quick(1, ["Open MPI's", "torchrun's", "SLURM's", "PMI's"]),
)
def test_ranks_of_a_launcher_on_one_node_find_each_other(start, launcher):
    for output, status in ends(*(start(**VARIABLES[launcher](rank)) for rank in "01")):
        assert status == 0, output
        assert "4 passed" in output


@pytest.mark.thorough
def test_ranks_of_torchrun_use_its_store(start, tmp_path, environment_without_ranks):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "pytest"]
    ends(start("--collect-only"))
    done = subprocess.run(
        [*command],
        cwd=tmp_path,
        env=environment_without_ranks,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("4 passed") == 2


@pytest.mark.thorough
def test_a_rank_whose_peer_does_not_arrive_reports_it(start):
    variables = {**VARIABLES["torchrun's"]("1"), "ALLRANKS_RENDEZVOUS_TIMEOUT": "1"}
    [(output, status)] = ends(start("-k", "sum", **variables))
    assert status == 1
    assert "the rendezvous of the ranks did not finish within 1 s: rank 0 did not arrive" in output
    assert "This is rank 1 of 2, according to the environment." in output


def test_a_test_without_a_group_needs_no_peers(start, tmp_path):
    (tmp_path / "test_it.py").write_text("def test_it(rank, world_size): assert (rank, world_size) == (1, 2)")
    [(output, status)] = ends(start(**VARIABLES["torchrun's"]("1"), MASTER_ADDR="nowhere.invalid", MASTER_PORT="1"))
    assert status == 0, output


def test_ranks_on_several_nodes_without_an_address_are_an_error():
    environment = RankEnvironment.read(
        {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    )
    with pytest.raises(RuntimeError, match="set MASTER_ADDR"):
        PlainWorld(environment, {}).join()


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("gpu7", "gpu7"), ("gpu[07-09,12],login", "gpu07"), ("a-[3]-ib,b", "a-3-ib"), ("a,b", "a"), ("n[1,3-4]", "n1")],
)
def test_the_rendezvous_of_a_slurm_step_is_on_its_first_node(nodes, first):
    variables = {
        "SLURM_PROCID": "3",
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
        "SLURM_NODEID": "1",
        "SLURM_LOCALID": "1",
        "SLURM_STEP_NODELIST": nodes,
        "SLURM_JOB_ID": "5",
        "SLURM_STEP_ID": "0",
    }
    environment = RankEnvironment.read(variables)
    assert (environment.rank, environment.world_size, environment.local_rank, environment.local_world_size) == (
        3,
        4,
        1,
        2,
    )
    host, port = PlainWorld(environment, variables)._address()
    assert host == first
    assert 15_000 <= int(port) < 30_000
    assert (host, port) == PlainWorld(environment, {**variables, "SLURM_PROCID": "0"})._address()
    assert PlainWorld(environment, {**variables, "MASTER_ADDR": "h", "MASTER_PORT": "1"})._address() == ("h", "1")


def test_a_slurm_batch_script_is_not_a_rank():
    batch = {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "1", "SLURM_JOB_ID": "5"}
    assert RankEnvironment.read(batch).world_size == 1


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK is 2, which must be below the world size, 2 [(]WORLD_SIZE[)]"),
        ({"RANK": "1"}, "RANK is 1, which must be below the world size, 1"),
        ({"RANK": "first", "WORLD_SIZE": "2"}, "RANK is 'first'"),
        ({"PMI_RANK": "-1", "PMI_SIZE": "2"}, "PMI_RANK is '-1'"),
    ],
)
def test_variables_that_contradict_each_other_are_an_error(variables, words):
    with pytest.raises(LauncherError, match=words):
        RankEnvironment.read(variables)
