"""Matching and mismatched calls of gloo ranks. As a program, it makes them all and prints the counts of each rank.

A process of its own: ranks are forks, and torch's autograd refuses to work in a fork of a process that has used it.
"""

import contextlib
import faulthandler
import functools
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import traceback
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed import all_reduce as imported_before
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from allranks.agent.call_log import CallLog, map_log, open_log, read_calls
from allranks.agent.rank.call_counter import CallCounter
from allranks.protocol.typed_json import to_object

WORLD_SIZE = 4

PATIENCE = 90.0
"""Seconds until a rank that hangs ends with its stacks; reached only if the counter is broken."""

RIGHT = {}
"""All calls match."""

DOUBTFUL = {}
"""Calls that do not match, but may be correct."""

PENDING = []
"""Works, which must not be deleted before they have ended."""

WRONG = {}
"""Calls that do not match; the docstring is the reason."""

ALONE = {"a_group_that_only_its_members_make"}
"""Calls that need a gang of their own: torch names such a group by the number of groups of the rank."""


def right(call):
    RIGHT[call.__name__] = call
    return call


def doubtful(call):
    DOUBTFUL[call.__name__] = call
    return call


def wrong(call):
    WRONG[call.__name__] = call
    return call


def ones(*shape):
    return torch.ones(*shape or (4,))


def blanks():
    return [torch.zeros(4) for _ in range(WORLD_SIZE)]


COLLECTIVES = {
    "broadcast": lambda _: dist.broadcast(ones(), src=1),
    "all_reduce": lambda _: dist.all_reduce(ones()),
    "all_reduce_coalesced": lambda _: dist.all_reduce_coalesced([ones(), ones()]),
    "reduce": lambda _: dist.reduce(ones(), dst=1),
    "all_gather": lambda _: dist.all_gather(blanks(), ones()),
    "all_gather_into_tensor": lambda _: dist.all_gather_into_tensor(ones(4 * WORLD_SIZE), ones()),
    "all_gather_single": lambda _: dist.all_gather_single(ones(4 * WORLD_SIZE), ones()),
    "_all_gather_base": lambda _: dist._all_gather_base(ones(4 * WORLD_SIZE), ones()),
    "all_gather_coalesced": lambda _: dist.all_gather_coalesced([[blank] for blank in blanks()], [ones()]),
    "gather": lambda rank: dist.gather(ones(), blanks() if rank == 0 else None),
    "scatter": lambda rank: dist.scatter(ones(), blanks() if rank == 0 else None),
    "reduce_scatter": lambda _: dist.reduce_scatter(ones(), blanks()),
    "reduce_scatter_tensor": lambda _: dist.reduce_scatter_tensor(ones(), ones(4 * WORLD_SIZE)),
    "reduce_scatter_single": lambda _: dist.reduce_scatter_single(ones(), ones(4 * WORLD_SIZE)),
    "_reduce_scatter_base": lambda _: dist._reduce_scatter_base(ones(), ones(4 * WORLD_SIZE)),
    "all_to_all": lambda _: dist.all_to_all(blanks(), [ones() for _ in range(WORLD_SIZE)]),
    "all_to_all_single": lambda _: dist.all_to_all_single(ones(), ones()),
    "barrier": lambda _: dist.barrier(),
    "monitored_barrier": lambda _: dist.monitored_barrier(),
    "all_gather_object": lambda rank: dist.all_gather_object([None] * WORLD_SIZE, "x" * rank),
    "gather_object": lambda rank: dist.gather_object("x" * rank, [None] * WORLD_SIZE if rank == 0 else None),
    "scatter_object_list": lambda rank: dist.scatter_object_list([None], ["a"] * WORLD_SIZE if rank == 0 else None),
    "broadcast_object_list": lambda _: dist.broadcast_object_list(["a"]),
    "a_name_imported_before": lambda _: imported_before(ones()),
    "a_method_of_the_group": lambda _: dist.group.WORLD.allreduce([ones()]).wait(),
}
"""Public functions that all ranks of a group call, and that make at least one collective call in Python."""

# Some of them are new in torch 2.12, others are to go.
RIGHT.update({name: call for name, call in COLLECTIVES.items() if name.startswith("a_") or hasattr(dist, name)})


@right
def nothing(_rank):
    pass


@right
def send_and_recv(rank):
    if rank == 0:
        dist.send(ones(), dst=3)
    elif rank == 3:
        dist.recv(ones(), src=0)


@right
def send_from_one_to_many(rank):
    if rank == 0:
        for peer in range(1, WORLD_SIZE):
            for _ in range(peer):
                dist.send(ones(), dst=peer)
    else:
        for _ in range(rank):
            dist.recv(ones(), src=0)


@right
def isend_and_irecv_with_tags_in_another_order(rank):
    if rank == 0:
        works = [dist.isend(ones(), dst=1, tag=tag) for tag in (1, 2, 3)]
    elif rank == 1:
        works = [dist.irecv(ones(), src=0, tag=tag) for tag in (3, 1, 2)]
    else:
        works = []
    for work in works:
        work.wait()


@right
def batch_isend_irecv(rank):
    peers = [(rank + 1) % WORLD_SIZE, (rank - 1) % WORLD_SIZE]
    sends = [dist.P2POp(dist.isend, ones(), peer) for peer in peers]
    receives = [dist.P2POp(dist.irecv, ones(), peer) for peer in peers]
    for work in dist.batch_isend_irecv(sends + receives):
        work.wait()


@right
def recv_from_any_source(rank):
    if rank:
        dist.send(ones(), dst=0, tag=rank % 2)
        return
    for tag in (1, 0, 1):
        dist.recv(ones(), tag=tag)


@right
def irecv_from_any_source_beside_a_named_one(rank):
    if rank == 0:
        dist.recv(ones(), src=2)
        works = [dist.irecv(ones()) for _ in range(2)]
        for work in works:
            work.wait()
    else:
        dist.send(ones(), dst=0)


@right
def send_object_list_and_recv_object_list(rank):
    if rank == 1:
        dist.send_object_list(["a", 2], dst=2)
    elif rank == 2:
        dist.recv_object_list([None, None], src=1)


@right
def coalesced_by_the_manager(_rank):
    with dist.distributed_c10d._coalescing_manager(dist.group.WORLD):
        dist.all_reduce(ones())
        dist.all_reduce(ones())


@right
def works_that_nobody_waits_for(rank):
    PENDING.append(dist.all_reduce(ones(), async_op=True))
    if rank < 2:
        PENDING.append(dist.isend(ones(), dst=1 - rank))
        PENDING.append(dist.irecv(ones(), src=1 - rank))
    dist.barrier()


@right
def a_subgroup_whose_members_call_more(rank):
    group = dist.new_group([1, 3])
    if rank in {1, 3}:
        for _ in range(3):
            dist.all_reduce(ones(), group=group)
        if rank == 3:
            dist.send(ones(), dst=1, group=group)
        else:
            dist.recv(ones(), src=3, group=group)


@right
def two_halves_that_do_different_things(rank):
    own, _ = dist.new_subgroups(2)
    if rank < 2:
        dist.broadcast(ones(), src=0, group=own)
    else:
        dist.all_reduce(ones(), group=own)
        dist.barrier(own)


@right
def a_group_that_only_its_members_make(rank):
    if rank != 1:
        group = dist.new_group([0, 2, 3], use_local_synchronization=True)
        dist.all_reduce(ones(), group=group)


@doubtful
def a_group_that_one_rank_does_not_help_to_make(rank):
    if rank != 1:
        dist.new_group([0, 2, 3])


@right
def a_group_whose_ranks_have_another_order(rank):
    group = dist.new_group([3, 0])
    if rank == 0:
        dist.send(ones(), dst=3, group=group)
    elif rank == 3:
        dist.recv(ones(), src=0, group=group)


@right
def a_mesh(_rank):
    mesh = dist.init_device_mesh("cpu", (2, 2))
    dist.all_reduce(ones(), group=mesh.get_group(1))


@right
def a_destroyed_group_with_work_on_one_rank(rank):
    group = dist.new_group(range(WORLD_SIZE))
    dist.barrier(group)
    if rank == 0:
        dist.isend(ones(), dst=1, group=group)
    dist.barrier()
    dist.destroy_process_group(group)


@right
def functional_collectives(_rank):
    functional.all_reduce(ones(), "sum", dist.group.WORLD).sum().item()
    functional.all_gather_tensor(ones(), 0, dist.group.WORLD).sum().item()


@doubtful
def a_functional_collective_meets_a_plain_one(rank):
    if rank:
        dist.all_reduce(ones())
    else:
        functional.all_reduce(ones(), "sum", dist.group.WORLD).sum().item()


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used = torch.nn.Linear(4, 4)
        self.unused = torch.nn.Linear(4, 4)

    def forward(self, inputs):
        return self.used(inputs)


@right
def ddp(_rank):
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    for _ in range(2):
        model(ones()).sum().backward()


@doubtful
def ddp_with_uneven_inputs(rank):
    model = DistributedDataParallel(Model(), find_unused_parameters=True)
    with Join([model]):
        for _ in range(1 + rank):
            model(ones()).sum().backward()


@right
def sharded_by_fsdp(_rank):
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(torch.nn.Linear(4, 4), mesh=dist.init_device_mesh("cpu", (WORLD_SIZE,)))
    model(ones(2, 4)).sum().backward()


@right
def a_call_that_raises_on_one_rank(rank):
    if rank == 2:
        with contextlib.suppress(ValueError, RuntimeError, TypeError):
            dist.broadcast(ones(), src=WORLD_SIZE)
        with contextlib.suppress(ValueError, RuntimeError, TypeError):
            dist.group.WORLD.broadcast([])
        with contextlib.suppress(ValueError, RuntimeError, TypeError):
            dist.group.WORLD.send([ones()])
    dist.barrier()


@right
def a_call_that_raises_everywhere(_rank):
    with contextlib.suppress(ValueError, RuntimeError, TypeError):
        dist.all_gather([ones()], ones())


@right
def many_threads_in_one_group(rank):
    def swap(tag):
        for _ in range(50):
            work = dist.isend(ones(), dst=1 - rank, tag=tag)
            dist.recv(ones(), src=1 - rank, tag=tag)
            work.wait()

    if rank < 2:
        threads = [threading.Thread(target=swap, args=[tag]) for tag in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


@right
def a_group_of_a_class_of_its_own(rank):
    if rank == 0:
        group = Subclass(0, 1)
        try:
            group.allreduce([ones()])
        except RecursionError:
            raise
        except RuntimeError:
            pass  # it has no backend
        group.barrier()


class Subclass(dist.ProcessGroup):
    def barrier(self, *_arguments):
        return None

    def getBackendName(self):  # noqa: N802 - torch's name
        return "own"


@right
def a_threaded_world_on_one_rank(rank):
    from torch.testing._internal.distributed import multi_threaded_pg as threaded

    if rank:
        return
    threaded._install_threaded_pg()
    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    try:
        store = dist.HashStore()

        def be(own):
            dist.init_process_group("threaded", rank=own, world_size=2, store=store)
            dist.all_reduce(ones())
            dist.destroy_process_group()

        threads = [threading.Thread(target=be, args=[own]) for own in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        torch._C._distributed_c10d._set_thread_isolation_mode(False)
        threaded._uninstall_threaded_pg()


@doubtful
def a_time_out_in_a_group_that_is_kept(rank):
    group = dist.new_group([0, 1], timeout=timedelta(seconds=0.3))
    if rank == 0:
        with contextlib.suppress(RuntimeError):
            dist.recv(ones(), src=1, group=group)


@doubtful
def a_time_out_seen_by_its_future(rank):
    group = dist.new_group([0, 1], timeout=timedelta(seconds=0.3))
    if rank == 0:
        with contextlib.suppress(RuntimeError):
            dist.all_reduce(ones(), group=group, async_op=True).get_future().wait()


@doubtful
def functional_collective_of_one_rank(rank):
    """The counts by kind are equal, but torch's own numbers are not."""
    if rank == 0:
        PENDING.append(torch.ops._c10d_functional.all_reduce(ones(), "sum", dist.group.WORLD.group_name))


@wrong
def a_reduction_of_another_dtype(rank):
    """ranks 0-2 called all_reduce of float32 once in the default group, rank 3 not at all"""
    dist.all_reduce(torch.ones(4, dtype=torch.int32 if rank == 3 else torch.float32))


@wrong
def a_reduction_with_another_operation(rank):
    """ranks 0, 2 and 3 called reduce of float32 once in the default group, rank 1 not at all"""
    dist.reduce(ones(), dst=0, op=dist.ReduceOp.MIN if rank == 1 else dist.ReduceOp.SUM)


@wrong
def a_message_that_nobody_receives(rank):
    """rank 0 sent 1 message that rank 1 did not receive in this test"""
    if rank == 0:
        dist.isend(ones(), dst=1)


@wrong
def messages_of_two_ranks_that_nobody_receives(rank):
    """ranks 1 and 2 sent 3 messages that rank 0 did not receive in this test"""
    for _ in range(rank if rank < 3 else 0):
        dist.isend(ones(), dst=0)


@wrong
def a_message_in_the_wrong_direction(rank):
    """rank 0 waits for 1 message that rank 1 did not send in this test"""
    if rank == 0:
        PENDING.append((dist.isend(ones(), dst=1), dist.irecv(ones(), src=1)))


@wrong
def a_receive_from_any_source_that_nobody_sends(rank):
    """rank 2 waits for 1 message that no rank sent in this test"""
    if rank == 2:
        PENDING.append(dist.irecv(ones()))


@wrong
def one_message_too_many_for_any_source(rank):
    """rank 1 sent 1 message that rank 0 did not receive in this test"""
    if rank == 1:
        dist.send(ones(), dst=0)
        dist.isend(ones(), dst=0)
    elif rank == 0:
        dist.recv(ones())


@wrong
def another_tag(rank):
    """the messages to rank 1 and its receives have different tags in this test"""
    if rank == 0:
        dist.isend(ones(), dst=1, tag=1)
    elif rank == 1:
        PENDING.append(dist.irecv(ones(), src=0, tag=2))


@wrong
def a_message_in_a_subgroup(rank):
    """rank 3 sent 1 message that rank 1 did not receive in this test, in the group of ranks 1 and 3"""
    group = dist.new_group([1, 3])
    if rank == 3:
        dist.isend(ones(), dst=1, group=group)


@wrong
def one_collective_too_many(rank):
    """rank 0 called all_reduce 3 times in the default group, ranks 1-3 twice"""
    for _ in range(2):
        dist.all_reduce(ones())
    if rank == 0:
        PENDING.append(dist.all_reduce(ones(), async_op=True))


@wrong
def a_collective_of_half_the_ranks(rank):
    """ranks 2 and 3 called barrier once in the default group, ranks 0 and 1 not at all"""
    if rank > 1:
        PENDING.append(dist.barrier(async_op=True))


@wrong
def other_collectives(rank):
    """ranks 0-2 called all_reduce once in the default group, rank 3 not at all"""
    PENDING.append(dist.broadcast(ones(), 3, async_op=True) if rank == 3 else dist.all_reduce(ones(), async_op=True))


@wrong
def a_collective_in_a_subgroup(rank):
    """rank 2 called all_gather once in the group of ranks 0 and 2, rank 0 not at all"""
    group = dist.new_group([0, 2])
    if rank == 2:
        PENDING.append(dist.all_gather([ones(), ones()], ones(), group=group, async_op=True))


def main():
    """Print the counts of each rank as JSON, by the name of the calls and by rank."""
    # Once, before the forks: functional collectives and DistributedDataParallel import it.
    import torch._dynamo
    import torch.distributed.fsdp  # noqa: F401

    together = {name: call for name, call in RIGHT.items() if name not in ALONE}
    apart = {name: call for name, call in {**RIGHT, **DOUBTFUL, **WRONG}.items() if name not in together}
    gangs = [together, *({name: call} for name, call in apart.items())]
    print(json.dumps({name: counts for gang in gangs for name, counts in run(gang).items()}))


def run(calls):
    with tempfile.TemporaryDirectory() as folder:
        # As an agent does, release each test when all have ended the one before.
        lockstep = multiprocessing.get_context("fork").Barrier(WORLD_SIZE)
        ranks = [start(functools.partial(be_rank, calls, folder, rank, lockstep)) for rank in range(WORLD_SIZE)]
        found = [json.loads(answer.read()) for _, answer in ranks]
        for pid, answer in ranks:
            answer.close()
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    errors = [answer for answer in found if isinstance(answer, str)]
    if errors:
        sys.exit("\n".join(errors))
    return {name: [answer[name] for answer in found] for name in calls}


def start(work):
    """Fork; return the process and a pipe with its output."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, os.fdopen(reading)
    os.dup2(2, 1)
    try:
        answer = work()
    except BaseException:  # noqa: BLE001 - the parent shows it
        answer = traceback.format_exc()
    with os.fdopen(writing, "w") as pipe:
        pipe.write(json.dumps(answer))
    while True:
        # A rank that leaves closes connections which its peers still use.
        signal.pause()


def be_rank(calls, folder, rank, lockstep):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    log, own = open_log()
    counter = CallCounter(CallLog(map_log(own)))
    timeout = timedelta(seconds=30)
    url = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=url, rank=rank, world_size=WORLD_SIZE, timeout=timeout)
    counter.watch(dist.group.WORLD)
    taken = {}
    for name, call in calls.items():
        try:
            call(rank)
        except Exception as error:
            error.add_note(f"in {name} on rank {rank}")
            raise
        counter.settle()
        taken[name] = to_object(read_calls(log))
        counter.begin()
        lockstep.wait()
    return taken


if __name__ == "__main__":
    main()
