"""scripts/slurm-cluster: its nodes are isolated, start and stop separately, and leave nothing."""

import re
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

needs_slurm = pytest.mark.slurm


LOOK_AROUND = """
touch shared-$(hostname) /dev/shm/$(hostname) /run/lock/$(hostname)
until [ -e shared-n1 -a -e shared-n2 ]; do sleep 0.1; done
hostname -I
cat /proc/sys/kernel/random/boot_id
ls /dev/shm /run/lock | grep -cx n.
getent hosts n1
"""


def processes_of(cluster):
    """The cluster's daemons and jobs, which have its folder in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if str(cluster.folder).encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes())
    return found


def process_ids(cluster):
    return {path.name: path.read_text() for path in cluster.folder.glob("*.pid")}


def network_of(cluster):
    """The namespaces and links of its network."""
    number = re.search(r"\(198\.18\.(\d+)\.1\)", (cluster.folder / "slurm.conf").read_text())[1]

    def names():
        shown = [subprocess.check_output(["/sbin/ip", *kind], text=True) for kind in (["netns"], ["-o", "link"])]
        return sorted(set(re.findall(rf"\barslurm{number}\b(?:-n\d+)?", "".join(shown))))

    return names


def state_of(node):
    return ("sinfo", "--noheader", "--partition", "main", "--nodes", node, "--format", "%T")


def submit(cluster, script, *options):
    return cluster.run("sbatch", "--parsable", "--output", "%j.out", *options, "--wrap", script)


@needs_slurm
def test_a_second_start_changes_nothing(slurm_cluster):
    before = process_ids(slurm_cluster)
    again = slurm_cluster.script("start")
    assert (again.returncode, again.stdout) == (0, f"export SLURM_CONF={slurm_cluster.folder}/slurm.conf\n")
    assert process_ids(slurm_cluster) == before
    assert slurm_cluster.script("env").stdout == again.stdout


@needs_slurm
def test_nodes_share_their_files_but_not_what_a_machine_has_for_itself(slurm_cluster):
    lines = slurm_cluster.run("srun", "--label", "--nodelist", "n1,n2", "sh", "-c", LOOK_AROUND).splitlines()
    (address, boot, *same), (other_address, other_boot, *same_there) = (
        [line.split(": ")[1].strip() for line in lines if line.startswith(f"{task}: ")] for task in (0, 1)
    )
    assert address != other_address
    assert boot != other_boot
    assert same == same_there
    assert same[0] == "2"


@needs_slurm
def test_a_job_outlives_the_death_of_the_controller(slurm_cluster):
    job = submit(slurm_cluster, "until [ -e go ]; do sleep 0.1; done; echo went")
    state = ("squeue", "--noheader", "--jobs", job, "--states", "all", "--format", "%T")
    slurm_cluster.wait_until("RUNNING", *state)
    # The controller saves its state some seconds after a change, and forgets jobs that it has not saved.
    (slurm_cluster.folder / "running").touch()
    submit(slurm_cluster, "true")
    slurm_cluster.wait_until("state/job_state", "find", "state/job_state", "-newer", "running")
    assert slurm_cluster.script("ctl-kill").returncode == 0
    assert "slurmctld.pid" not in process_ids(slurm_cluster)
    (slurm_cluster.folder / "go").touch()
    assert slurm_cluster.script("ctl-start").returncode == 0
    slurm_cluster.wait_until("COMPLETED", *state)
    assert (slurm_cluster.folder / f"{job}.out").read_text() == "went\n"


@needs_slurm
def test_a_job_of_the_low_partition_gives_way_and_is_queued_again(slurm_cluster):
    low = submit(slurm_cluster, "sleep 600", "--partition", "low", "-N3", "--exclusive")
    state = ("squeue", "--noheader", "--format", "%T", "--jobs")
    slurm_cluster.wait_until("RUNNING", *state, low)
    high = submit(slurm_cluster, "sleep 600", "-N3", "--exclusive")
    slurm_cluster.wait_until("RUNNING", *state, high)
    assert slurm_cluster.run(*state, low) == "PENDING"
    slurm_cluster.run("scancel", low, high)


@needs_slurm
@pytest.mark.thorough
def test_a_killed_node_goes_down_while_the_others_work_and_comes_back(slurm_cluster):
    lost = submit(slurm_cluster, "touch there; sleep 4321", "--no-requeue", "--nodelist", "n3")
    slurm_cluster.wait_until("there", "find", "-name", "there", "-printf", "%f")
    assert slurm_cluster.script("node-kill", "n3").returncode == 0
    assert not any(b"sleep\x004321" in command for command in processes_of(slurm_cluster))
    where = "srun sh -c 'echo $(hostname) $CUDA_VISIBLE_DEVICES'"
    job = submit(slurm_cluster, where, "--wait", "--nodes", "2", "--gpus-per-node", "2", "--nodelist", "n1,n2")
    assert sorted((slurm_cluster.folder / f"{job}.out").read_text().splitlines()) == ["n1 0,1", "n2 0,1"]
    slurm_cluster.wait_until("down*", *state_of("n3"))
    assert slurm_cluster.run("squeue", "--noheader", "--states", "all", "--format", "%T", "--jobs", lost) == "NODE_FAIL"
    assert slurm_cluster.script("node-start", "3").returncode == 0
    slurm_cluster.wait_until("idle", *state_of("n3"))
    assert slurm_cluster.run("srun", "--nodelist", "n3", "hostname") == "n3"


@needs_slurm
def test_a_crash_of_slurmd_ends_no_job_and_it_comes_back(slurm_cluster):
    job = submit(slurm_cluster, "touch began; until [ -e end ]; do sleep 0.1; done; echo went", "--nodelist", "n3")
    slurm_cluster.wait_until("began", "find", "-name", "began", "-printf", "%f")
    assert slurm_cluster.script("slurmd-kill", "n3").returncode == 0
    (slurm_cluster.folder / "end").touch()
    slurm_cluster.wait_until("went", "cat", f"{job}.out")
    assert slurm_cluster.script("slurmd-start", "3").returncode == 0
    slurm_cluster.wait_until("idle", *state_of("n3"))
    assert slurm_cluster.run("srun", "--nodelist", "n3", "hostname") == "n3"


@needs_slurm
@pytest.mark.parametrize("isolated", ["yes", "no"])
def test_stop_leaves_nothing_even_of_a_node_that_was_killed(start_slurm_cluster, isolated):
    with start_slurm_cluster(SLURM_CLUSTER_NODES="2", SLURM_CLUSTER_ISOLATED=isolated) as cluster:
        network = network_of(cluster) if isolated == "yes" else list
        for node in ("n1", "n2"):
            submit(cluster, f"touch on-{node}; sleep 600", "--nodelist", node)
        cluster.wait_until("2", "sh", "-c", "ls | grep -c on- || true")
        assert cluster.script("node-kill", "1").returncode == 0
        assert len(network()) == (2 if isolated == "yes" else 0)
        stopped = cluster.script("stop")
        assert (stopped.returncode, stopped.stderr) == (0, "the cluster is stopped\n")
        assert processes_of(cluster) == []
        assert network() == []
        assert not cluster.folder.exists()
        assert cluster.script("stop").returncode == 0


@needs_slurm
def test_a_node_that_there_is_not_is_a_usage_error(slurm_cluster):
    done = slurm_cluster.script("node-kill", "4")
    assert (done.returncode, done.stderr) == (
        2,
        "scripts/slurm-cluster does not know the node '4'.\nIt has n1 n2 n3.\n",
    )
