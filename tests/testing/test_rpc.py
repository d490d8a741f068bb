import os

import pytest
import torch.distributed.rpc
from torch.distributed import rpc

from allranks.testing import (
    FaultyRpcAgentTestFixture,
    NoMeetingPointError,
    TensorPipeRpcAgentTestFixture,
    get_function_event,
    get_shutdown_error_regex,
    get_timeout_error_regex,
    with_rpc,
    worker_name,
)
from allranks.testing.rpc import (
    is_up,
    wait_until_node_failure,
    wait_until_owners_and_forks_on_rank,
    wait_until_pending_futures_and_users_flushed,
)
from allranks.testing.shared_files import wait_until

WORLD = {
    "test_world.py": """
        import re
        import pytest
        import torch
        import torch.distributed as dist
        from torch.autograd import profiler_legacy
        from torch.distributed import rpc
        from torch.distributed.rpc import _is_current_rpc_agent_set as is_up

        from allranks.testing import *
        from allranks.testing import RankEnvironment

        def double(x):
            return 2 * x

        @with_rpc
        def test_function(rank, world_size):
            peer = (rank + 1) % world_size
            assert rpc.get_worker_info().name == worker_name(rank)
            assert rpc.rpc_sync(worker_name(peer), double, args=(torch.ones(2),)).tolist() == [2, 2]

        def test_nothing_is_left():
            assert not is_up()

        @pytest.mark.parametrize("number", range(3))
        @with_rpc()
        def test_many_worlds_in_sequence(rank, world_size, number):
            assert rpc.rpc_sync(worker_name((rank + 1) % world_size), double, args=(number,)) == 2 * number

        class TestMethods:
            @with_rpc(clean_shutdown=False)
            def test_without_clean_shutdown(self, rank):
                assert is_up()

            @with_rpc(setup_rpc=False)
            def test_without_setting_up(self):
                assert not is_up()

        @with_rpc
        def test_that_shuts_down_itself():
            rpc.shutdown()

        @with_rpc(rpc_timeout=0.5, faulty_messages=[], messages_to_delay={"SCRIPT_CALL": 1.5})
        def test_delayed_messages_take_the_faulty_agent(rank, world_size):
            if rank == 0:
                with pytest.raises(RuntimeError, match=get_timeout_error_regex()):
                    rpc.rpc_sync(worker_name(1), torch.add, args=(torch.ones(1), 1))
                assert rpc.rpc_sync(worker_name(1), double, args=(3,), timeout=20) == 6

        @with_rpc(faulty_messages=["RREF_FORK_REQUEST", "RREF_CHILD_ACCEPT"], messages_to_delay={})
        def test_faulty_messages_get_through_in_the_end(rank, world_size):
            if rank == 0:
                rref = rpc.remote(worker_name(1), double, args=(4,))
                assert rref.to_here() == 8
                wait_until_pending_futures_and_users_flushed()

        @with_rpc
        def test_owners_and_forks(rank, world_size):
            if rank == 0:
                rref = rpc.remote(worker_name(1), double, args=(4,))
                rref.to_here()
                wait_until_pending_futures_and_users_flushed(timeout=20)
                wait_until_owners_and_forks_on_rank(1, 1, rank=1)
                with pytest.raises(TimeoutError, match="owners and forks after 0.2 s, instead of"):
                    wait_until_owners_and_forks_on_rank(2, 3, rank=1, timeout=0.2)
                del rref
                wait_until_owners_and_forks_on_rank(0, 0, rank=1)
                assert get_num_owners_and_forks() == (0, 0)

        @with_rpc
        def test_a_worker_that_executes_calls_has_not_failed(rank, world_size):
            if rank == 0:
                answered = r"all calls succeeded|the last call had no result after 0\\.[012]\\d\\d s"
                for regex in ("x", get_timeout_error_regex()):
                    with pytest.raises(TimeoutError, match=rf"did not fail with .+ within 0.3 s: ({answered})$"):
                        wait_until_node_failure(1, regex, timeout=0.3)

        @with_rpc
        def test_profiled_calls_are_found(rank, world_size):
            if rank == 0:
                with profiler_legacy.profile() as profile:
                    rpc.rpc_sync(worker_name(1), torch.add, args=(torch.ones(1), 1))
                event = get_function_event(profile.function_events, "rpc_sync#aten::add")
                assert event.name == "rpc_sync#aten::add(worker0 -> worker1)"

        @pytest.mark.no_process_group
        @with_rpc
        def test_without_a_process_group(rank, world_size, tmp_path_factory):
            assert not dist.is_initialized()
            assert rpc.rpc_sync(worker_name((rank + 1) % world_size), double, args=(1,)) == 2

        @pytest.mark.no_process_group
        @with_rpc
        def test_a_process_group_in_addition_to_rpc(rank, world_size):
            folder = RankEnvironment.read().shared
            for _ in range(2):
                initialize_pg(f"file://{folder}/beside", rank, world_size)
            dist.barrier()
            dist.destroy_process_group()
    """
}


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.thorough)])
def world(request, tmp_path_factory, agent_fork_server):
    """One run of ``WORLD``, shared by several tests."""
    import functools

    from agent_run import AgentRun

    def launch(arguments, environment, folder, stdin, stdout):
        pid = agent_fork_server.start(arguments, environment, folder, stdin, stdout)
        return pid, functools.partial(agent_fork_server.exit_status, pid)

    agent = AgentRun(tmp_path_factory.mktemp("rpc"), WORLD, launch, world_size=request.param).go()
    assert agent.wait() == 0, agent.log
    yield agent
    agent.close()


NAMES = [
    "test_function",
    "test_nothing_is_left",
    *(f"test_many_worlds_in_sequence[{number}]" for number in range(3)),
    "test_without_clean_shutdown",
    "test_without_setting_up",
    "test_that_shuts_down_itself",
    "test_delayed_messages_take_the_faulty_agent",
    "test_faulty_messages_get_through_in_the_end",
    "test_owners_and_forks",
    "test_a_worker_that_executes_calls_has_not_failed",
    "test_profiled_calls_are_found",
    "test_without_a_process_group",
    "test_a_process_group_in_addition_to_rpc",
]


@pytest.mark.parametrize("name", NAMES)
def test_in_real_worlds(world, name):
    cases = [world.cases(rank)[name] for rank in range(world.config.world_size)]
    # Show the errors of all ranks, because that of one rank may be a consequence.
    assert all(case.outcome == "passed" for case in cases), "\n\n".join(case.text for case in cases)


def test_every_test_of_the_world_is_listed(world):
    assert set(world.cases(0)) == set(NAMES)


def test_a_worker_that_exits_or_dies_has_failed(run_gang):
    agent = run_gang(
        {
            "test_it.py": """
                import os
                import pytest
                from torch.distributed import rpc
                from allranks.testing import get_shutdown_error_regex, wait_until_node_failure, with_rpc

                @with_rpc(clean_shutdown=False)
                def test_leaving(rank):
                    if rank == 1:
                        rpc.shutdown(graceful=False)
                    else:
                        assert wait_until_node_failure(1, get_shutdown_error_regex(rpc.BackendType.TENSORPIPE))

                @with_rpc(clean_shutdown=False)
                def test_dying(rank):
                    if rank == 1:
                        os._exit(3)
                    assert wait_until_node_failure(1, "eof|reset|closed", timeout=20)
            """
        },
        limits={"peer_grace": 10},
    )
    assert agent.outcomes("test_leaving") == ("passed", "passed")
    assert agent.outcomes("test_dying")[1] == "crashed"
    assert agent.cases(0)["test_dying"].outcome in ("passed", "aborted"), agent.cases(0)["test_dying"].text


def test_a_test_that_fails_shuts_rpc_down_and_the_next_has_a_world_again(run_gang):
    agent = run_gang(
        {
            "test_it.py": """
                import pytest
                from torch.distributed import rpc
                from torch.distributed.rpc import _is_current_rpc_agent_set as is_up
                from allranks.testing import with_rpc, worker_name

                def test_failing():
                    @with_rpc
                    def body():
                        raise ValueError("as planned")

                    with pytest.raises(ValueError, match="as planned"):
                        body()
                    assert not is_up()

                @pytest.mark.isolation("file")
                @with_rpc
                def test_next(rank):
                    assert rpc.rpc_sync(worker_name(1 - rank), abs, args=(-1,)) == 1
            """
        }
    )
    assert agent.outcomes("test_failing") == ("passed", "passed")
    assert agent.outcomes("test_next") == ("passed", "passed")


def test_remaining_references_are_an_error(run_gang):
    agent = run_gang(
        {
            "test_it.py": """
                import queue
                import pytest
                import torch
                from torch.distributed import rpc
                from allranks.testing import wait_until_owners_and_forks_on_rank, with_rpc, worker_name

                kept = queue.Queue()

                def keep(rref):
                    kept.put(rref)

                def test_it(rank, file_barrier):
                    @with_rpc(clean_shutdown=False)
                    def body():
                        reference = None
                        if rank == 0:
                            rpc.rpc_sync(worker_name(1), keep, args=(rpc.RRef(torch.ones(1)),))
                            wait_until_owners_and_forks_on_rank(1, 1, rank=0)
                        else:
                            reference = kept.get(timeout=20)
                        file_barrier()  # whoever left before its reply was sent would end its peer's call
                        return reference

                    if rank == 0:
                        with pytest.raises(RuntimeError, match="Leaking RRef"):
                            body()
                    else:
                        body()
            """
        }
    )
    assert agent.outcomes("test_it") == ("passed", "passed"), agent.cases(0)["test_it"].text


KEPT = """
    import os
    import pytest
    import torch
    from torch.distributed import rpc
    from allranks.testing import rpc_world, with_rpc, worker_name

    pytestmark = pytest.mark.no_process_group
    kept = []

    @pytest.fixture(scope="module")
    def world():
        with rpc_world() as world:
            yield world
        assert not rpc.api._is_current_rpc_agent_set()

    @pytest.fixture(autouse=True)
    def checked(request):
        if "file_barrier" in request.fixturenames:
            yield
            return
        world = request.getfixturevalue("world")
        yield
        world.check(timeout=0.5)
"""
KEPT_FILES = {
    "test_lasting.py": """
    @pytest.mark.parametrize("number", range(3))
    def test_calls(rank, number):
        reference = rpc.remote(worker_name(1 - rank), torch.add, args=(torch.ones(1), number))
        assert reference.to_here().item() == number + 1
        kept.append(os.getpid())
        assert len(kept) == number + 1

    def test_a_reference_in_a_cycle_is_not_a_leak(rank):
        with pytest.raises(RuntimeError, match="localValue") as caught:
            rpc.remote(worker_name(1 - rank), torch.add, args=(torch.ones(1), 1)).local_value()
        assert caught.traceback

    def test_the_world_was_one():
        assert len({*kept}) == 1
        assert rpc._init_counter == 1
    """,
    "test_leaving.py": """
    def test_leaves_a_reference(rank):
        if rank == 0:
            kept.append(rpc.remote(worker_name(1), torch.add, args=(torch.ones(1), 1)))

    def test_next(rank):
        assert not kept
        assert rpc.rpc_sync(worker_name(1 - rank), abs, args=(-3,)) == 3
    """,
    "test_late.py": """
    import time

    class TakesTimeToUnpickle:
        def __reduce__(self):
            return time.sleep, (0.3,)

    def test_leaves_a_reference_that_its_owner_learns_of_late(rank):
        if rank == 0:
            kept.append(rpc.remote(worker_name(1), repr, args=(TakesTimeToUnpickle(),)))
    """,
    "test_failing.py": """
    def test_fails(rank):
        reference = rpc.remote(worker_name(1 - rank), torch.add, args=(torch.ones(1), 1))
        reference.to_here()
        assert rank == 1, "as planned"
    """,
    "test_ending.py": """
    def test_ends_the_world():
        rpc.shutdown()
    """,
    "test_of_its_own.py": """
    @with_rpc
    def test_fails_with_references(rank, file_barrier):
        reference = rpc.remote(worker_name(1 - rank), torch.add, args=(torch.ones(1), 1))
        reference.to_here()
        file_barrier()
        raise ValueError("as planned")
    """,
}


@pytest.fixture(scope="module")
def kept_worlds(tmp_path_factory, agent_fork_server):
    """One run of ``KEPT_FILES``, each file in its own gang."""
    import functools

    from agent_run import AgentRun

    def launch(arguments, environment, folder, stdin, stdout):
        pid = agent_fork_server.start(arguments, environment, folder, stdin, stdout)
        return pid, functools.partial(agent_fork_server.exit_status, pid)

    files = {name: KEPT + text for name, text in KEPT_FILES.items()}
    agent = AgentRun(tmp_path_factory.mktemp("kept"), files, launch, limits={"peer_grace": 25}).go()
    assert agent.wait() == 0, agent.log
    yield agent
    agent.close()


@pytest.mark.parametrize(
    "name", [*(f"test_calls[{number}]" for number in range(3)), "test_a_reference_in_a_cycle_is_not_a_leak"]
)
def test_a_kept_world_runs_several_tests(kept_worlds, name):
    assert kept_worlds.outcomes(name) == ("passed", "passed"), kept_worlds.cases(0)[name].text


def test_a_kept_world_lasts_for_the_tests_of_a_file(kept_worlds):
    assert kept_worlds.outcomes("test_the_world_was_one") == ("passed", "passed")


@pytest.mark.parametrize("name", ["test_leaves_a_reference", "test_leaves_a_reference_that_its_owner_learns_of_late"])
def test_a_reference_that_a_test_leaves_is_an_error_of_that_test_on_every_rank(kept_worlds, name):
    assert kept_worlds.outcomes(name) == ("errored", "errored"), kept_worlds.cases(0)[name].text
    for rank in range(2):
        text = kept_worlds.cases(rank)[name].text
        assert "references to remote objects after 0.5 s: worker1 (objects: 1, references: 1)" in text
        assert "Leaking RRef" not in text
    assert kept_worlds.outcomes("test_next") == ("passed", "passed")


def test_the_references_of_a_failed_test_cause_no_second_error_in_a_kept_world(kept_worlds):
    assert kept_worlds.outcomes("test_fails") == ("failed", "passed"), kept_worlds.cases(1)["test_fails"].text
    assert "as planned" in kept_worlds.cases(0)["test_fails"].text
    for rank in range(2):
        assert "references to remote objects" not in kept_worlds.cases(rank)["test_fails"].text


def test_the_references_of_a_failed_test_do_not_hide_its_error(kept_worlds):
    assert kept_worlds.outcomes("test_fails_with_references") == ("failed", "failed")
    text = kept_worlds.cases(0)["test_fails_with_references"].text
    assert "as planned" in text
    assert "Leaking RRef" not in text


def test_a_test_that_shuts_down_a_kept_world_fails(kept_worlds):
    assert kept_worlds.outcomes("test_ends_the_world") == ("errored", "errored")
    assert "shut down the RPC world that it shares" in kept_worlds.cases(0)["test_ends_the_world"].text


@pytest.mark.thorough
def test_a_test_case_that_starts_ranks_can_define_rendezvous_and_backend(run_gang):
    agent = run_gang(
        {
            "test_it.py": """
                import pytest
                import unittest
                from torch.distributed import rpc
                from allranks.testing import *
                from allranks.testing import RankEnvironment

                PLACE = RankEnvironment.read

                class Ranked(unittest.TestCase):
                    @property
                    def rank(self):
                        return PLACE().rank

                    @property
                    def world_size(self):
                        return PLACE().world_size

                    @property
                    def file_name(self):
                        return f"{PLACE().shared}/{self.id()}"

                def square(x):
                    return x * x

                class TestPlain(Ranked):
                    @with_rpc
                    def test_file_name_will_do(self):
                        assert rpc.rpc_sync(worker_name(1 - self.rank), square, args=(3,)) == 9
                        assert self.worker_id == self.rank

                class TestTensorPipe(Ranked, TensorPipeRpcAgentTestFixture):
                    @with_rpc
                    def test_fixture(self):
                        assert rpc.rpc_sync(worker_name(1 - self.rank), square, args=(3,)) == 9

                class TestFaulty(Ranked, FaultyRpcAgentTestFixture):
                    @with_rpc(faulty_messages=[], messages_to_delay={"PYTHON_CALL": 2.0})
                    def test_faulty_fixture(self):
                        if self.rank == 0:
                            with self.assertRaisesRegex(RuntimeError, self.get_timeout_error_regex()):
                                rpc.rpc_sync(worker_name(1), square, args=(3,), timeout=0.2)
            """
        }
    )
    for name in ("test_file_name_will_do", "test_fixture", "test_faulty_fixture"):
        assert agent.outcomes(name) == ("passed", "passed"), agent.cases(0)[name].text


def test_a_world_of_one_needs_nothing(no_cell):  # noqa: ARG001 - environment
    @with_rpc
    def body():
        return rpc.rpc_sync(worker_name(0), abs, args=(-3,))

    assert body() == 3


def test_a_failure_does_not_wait_for_the_calls_that_its_worker_runs(no_cell):  # noqa: ARG001 - environment
    waits, go_on = os.pipe()

    @with_rpc
    def fails_while_it_is_called():
        rpc.rpc_async(worker_name(0), os.read, args=(waits, 1))
        raise KeyError

    with pytest.raises(KeyError):
        fails_while_it_is_called()
    os.write(go_on, b"!")
    wait_until(lambda: not is_up(), 60.0)
    for end in (waits, go_on):
        os.close(end)


def test_workers_without_a_rendezvous_are_an_error(cell):
    cell(RANK=0, WORLD_SIZE=2)

    @with_rpc
    def body(): ...

    with pytest.raises(NoMeetingPointError, match="MASTER_ADDR and MASTER_PORT not set"):
        body()


def test_rref_leaks_are_checked_only_during_the_test(no_cell):  # noqa: ARG001 - environment
    api = torch.distributed.rpc.api
    assert api._ignore_rref_leak is True

    @with_rpc
    def body():
        return api._ignore_rref_leak

    assert body() is False
    assert api._ignore_rref_leak is True


class Event:
    def __init__(self, name):
        self.name = name


def test_the_first_event_with_the_text_is_found():
    first, second = Event("rpc_sync#foo"), Event("rpc_sync#foo again")
    assert get_function_event([Event("bar"), first, second], "foo") is first


def test_a_missing_event_is_an_error_that_lists_the_events():
    with pytest.raises(LookupError, match="no profiler event has 'foo' in its name; the names are: bar, baz"):
        get_function_event([Event("baz"), Event("bar")], "foo")
    with pytest.raises(LookupError, match="no events"):
        get_function_event([], "foo")


def test_the_regex_matches_errors_of_the_faulty_agent():
    regex = get_shutdown_error_regex("FAULTY_TENSORPIPE")
    assert "(Connection\\ reset\\ by\\ peer)" in regex
    assert get_shutdown_error_regex(rpc.BackendType.TENSORPIPE) == ".*"
    assert get_timeout_error_regex() == "RPC\\ ran\\ for\\ more\\ than"


def test_the_mixins_have_different_agents():
    class Case(FaultyRpcAgentTestFixture):
        file_name = "/nowhere"

    case = Case()
    case.setup_fault_injection(["RREF_USER_DELETE"], None)
    assert case.rpc_agent.messages_to_fail == ["RREF_USER_DELETE"]
    assert case.rpc_backend.name == "FAULTY_TENSORPIPE"
    assert case.init_method == "file:///nowhere"
    assert TensorPipeRpcAgentTestFixture().world_size == 4


@pytest.mark.parametrize(
    ("pending", "words"), [((0, 0), None), ((2, 1), "pending futures \\(2\\) and users \\(1\\) were not flushed")]
)
def test_pending_references_that_stay_are_named(monkeypatch, pending, words):
    info = dict(zip(("num_pending_futures", "num_pending_users"), map(str, pending), strict=True))
    monkeypatch.setattr("allranks.testing.rpc._rref_context_get_debug_info", lambda: info)
    if words is None:
        wait_until_pending_futures_and_users_flushed(timeout=0.1)
    else:
        with pytest.raises(TimeoutError, match=words):
            wait_until_pending_futures_and_users_flushed(timeout=0.1)


def test_unexpected_errors_are_not_a_node_failure(monkeypatch):
    def fail(*_args, **_kwargs):
        msg = "something else"
        raise RuntimeError(msg)

    monkeypatch.setattr(rpc, "rpc_sync", fail)
    with pytest.raises(TimeoutError, match="the last error was: something else"):
        wait_until_node_failure(1, "eof", timeout=0.2)
    assert wait_until_node_failure(1, "else", timeout=5) == "something else"


@pytest.mark.parametrize("early", [0, 0.002])
def test_a_call_ended_by_the_wait_s_own_limit_is_not_a_node_failure(monkeypatch, early):
    import time

    def hang(*_args, timeout, **_kwargs):
        time.sleep(timeout - early)  # torch rounds down to milliseconds
        msg = "RPC ran for more than set timeout"
        raise RuntimeError(msg)

    monkeypatch.setattr(rpc, "rpc_sync", hang)
    with pytest.raises(TimeoutError, match=r"within 0.1 s: the last call had no result after 0.\d+ s"):
        wait_until_node_failure(1, timeout=0.1)


def test_a_worker_that_does_not_reply_is_named_in_the_error(monkeypatch):
    def fail(*_args, **_kwargs):
        msg = "eof"
        raise RuntimeError(msg)

    monkeypatch.setattr(rpc, "rpc_sync", fail)
    with pytest.raises(RuntimeError, match="eof"):
        wait_until_owners_and_forks_on_rank(0, 0, rank=1)
