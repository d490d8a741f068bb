"""Every planted fault comes to exactly what it declares: verdict, leading rank, each rank's outcome, words and time."""

from collections.abc import Callable

import pytest
from declaration import Fault, read_all
from side_by_side import Outcome

FAULTS = read_all()

pytestmark = pytest.mark.alone

IN_CONTAINERS = (
    "abort",
    "assertion_while_peers_wait",
    "blocks_all_signals",
    "bomb_left_behind",
    "closes_its_pipe",
    "conftest_fails",
    "daemon_of_a_killed_rank",
    "daemon_outlives_it",
    "deadlock_of_locks",
    "endless_c_call_with_the_lock",
    "fork_bomb",
    "fork_bomb_of_memory",
    "forked_child_raises",
    "gigabyte_of_output",
    "hang_in_a_spawned_child",
    "hang_in_call",
    "hang_in_init_process_group",
    "hang_in_setup",
    "hang_in_teardown",
    "hang_right_after_fork",
    "hostile_output",
    "import_leaves_by_os_exit",
    "last_words",
    "node_killed_in_a_store",
    "node_killed_in_all_reduce",
    "node_killed_in_an_rpc",
    "node_paused_in_a_store",
    "node_paused_in_all_reduce",
    "node_paused_in_an_rpc",
    "node_removed_by_hand",
    "one_of_four_is_killed",
    "os_exit_0",
    "os_exit_1",
    "os_exit_77",
    "out_of_memory",
    "results_files_deleted",
    "segfault",
    "sigkill_to_itself",
    "sigkill_to_the_agent",
    "sigstop_to_itself",
    "sigterm_to_the_agent",
    "skip_while_peer_passes",
    "skip_while_peer_waits",
    "time_limit_of_the_job",
    "xfail_while_peer_waits",
)
"""The third that also runs in containers each time; the soak runs all faults on both engines."""

SAMPLE = (
    "assertion_while_peers_wait",
    "fixture_fails",
    "hang_in_call",
    "import_fails",
    "mismatched_calls",
    "os_exit_0",
    "segfault",
    "skip_while_peer_passes",
    "two_nodes_rank_killed",
)
"""One fault of each kind, which `nox -s tests` plants; CI plants all of them."""


def marks_on_the_host(fault: Fault) -> list[pytest.MarkDecorator]:
    """Return the markers of a fault: a real limit on disk or memory needs root."""
    thorough = [] if fault.name in SAMPLE else [pytest.mark.thorough]
    return [*thorough, *([pytest.mark.root] if fault.disk_mib or fault.memory_mib else [])]


ON_THE_HOST = [
    pytest.param(fault, id=fault.name, marks=marks_on_the_host(fault))
    for fault in FAULTS.values()
    if "process" in fault.engines
]


@pytest.mark.parametrize("fault", [param for param in ON_THE_HOST if param.id not in IN_CONTAINERS])
def test_on_the_process_engine(fault: Fault, ended: Callable[[Fault], Outcome]):
    outcome = ended(fault)
    assert not outcome.wrong, outcome.details


@pytest.mark.parametrize("fault", [param for param in ON_THE_HOST if param.id in IN_CONTAINERS])
def test_on_the_process_engine_and_in_containers(fault: Fault, ended: Callable[[Fault], Outcome]):
    outcome = ended(fault)
    assert not outcome.wrong, outcome.details


@pytest.mark.docker
@pytest.mark.parametrize("fault", [FAULTS[name] for name in IN_CONTAINERS], ids=lambda fault: fault.name)
def test_in_containers(fault: Fault, ended_in_containers: Callable[[Fault], Outcome]):
    outcome = ended_in_containers(fault)
    assert not outcome.wrong, outcome.details


def test_a_third_of_the_faults_and_all_that_only_containers_can_express_run_in_containers():
    assert len(IN_CONTAINERS) * 3 >= len(FAULTS)
    assert {fault.name for fault in FAULTS.values() if fault.engines == ("docker",)} <= set(IN_CONTAINERS)


def test_every_fault_has_an_engine_and_a_reason_for_each_that_cannot_express_it():
    for fault in FAULTS.values():
        assert fault.engines
        assert all(fault.not_on.values())


def test_five_faults_and_more_have_four_ranks():
    assert sum(fault.world_size == 4 for fault in FAULTS.values()) >= 5
