"""What a launcher says of a process."""

import pytest

from allranks.protocol.launcher_variables import launched_process, outside_of_launchers

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "n1", "MASTER_PORT": "29500"}
SRUN = {
    "SLURM_PROCID": "3",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_LOCALID": "1",
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
PMI = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1"}


@pytest.mark.parametrize("environ", [TORCHRUN, SRUN, OPEN_MPI, PMI], ids=["torchrun", "srun", "Open MPI", "PMI"])
def test_a_process_has_a_rank_a_local_rank_and_a_world(environ):
    process = launched_process({"HOME": "/", **environ})
    assert (process.rank, process.world_size, process.local_rank) == (3, 4, 1)


def test_torchrun_counts_before_the_srun_that_started_it():
    assert launched_process({**SRUN, "RANK": "0", "WORLD_SIZE": "2"}).launcher == "torchrun"


def test_a_pod_may_have_no_local_rank():
    assert launched_process({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "pod-0"}).local_rank is None


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"RANK": "0"},
        {"RANK": "2", "WORLD_SIZE": "2"},
        {"RANK": "", "WORLD_SIZE": "two"},
        {"SLURM_PROCID": "0", "SLURM_JOB_ID": "7"},  # a batch script, which is on one node of its allocation
    ],
    ids=str,
)
def test_other_processes_have_no_launcher(environ):
    assert launched_process(environ) is None


@pytest.mark.parametrize(("changed", "same"), [({"SLURM_PROCID": "0"}, True), ({"SLURM_STEP_ID": "1"}, False)])
def test_all_processes_of_a_launch_have_its_name_and_those_of_others_have_not(changed, same):
    assert (launched_process(SRUN).launch == launched_process({**SRUN, **changed}).launch) is same


def test_a_job_does_not_see_the_process_that_it_runs_in():
    seen = outside_of_launchers({**SRUN, **OPEN_MPI, **PMI, "PMIX_RANK": "3", "SLURM_CONF": "c", "HOME": "/"})
    assert seen == {"SLURM_CONF": "c", "HOME": "/"}
