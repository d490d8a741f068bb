"""Sub-groups: collectives over some of the ranks, beside those over all."""

import pytest
import torch
import torch.distributed as dist

from allranks.testing import SubgroupMaker, skip_if_odd_world_size, skip_if_small_world_size

from .tensors import SUM, assert_equal, blanks, payload, since_torch_2_13, term

pytestmark = pytest.mark.conformance(operation="all_reduce", group="sub", ranks="some")


def is_member(group: dist.ProcessGroup) -> bool:
    """Whether this rank belongs to ``group``."""
    return isinstance(group, dist.ProcessGroup)


@skip_if_odd_world_size
def test_halves_reduce_apart(rank: int, world_size: int, device: torch.device, subgroup: SubgroupMaker) -> None:
    """Two groups at work at the same time do not mix."""
    halves = [list(range(world_size // 2)), list(range(world_size // 2, world_size))]
    groups = [subgroup(half) for half in halves]
    mine = rank // (world_size // 2)
    tensor = term(rank, device=device)
    dist.all_reduce(tensor, group=groups[mine])
    assert_equal(tensor, SUM.of([term(peer, device=device) for peer in halves[mine]]))


@pytest.mark.conformance(mode="async")
def test_group_of_all_is_not_the_default_group(
    rank: int, world_size: int, device: torch.device, subgroup: SubgroupMaker
) -> None:
    """Two groups of the same ranks keep their collectives apart, in whatever order these are waited for."""
    group = subgroup(range(world_size))
    assert group is not dist.group.WORLD
    ours, everyones = payload(rank, device=device), -payload(rank, device=device)
    in_group = dist.all_reduce(ours, group=group, async_op=True)
    in_default = dist.all_reduce(everyones, async_op=True)
    in_default.wait()
    in_group.wait()
    expected = SUM.of([payload(peer, device=device) for peer in range(world_size)])
    assert_equal([ours, everyones], [expected, -expected])


@pytest.mark.conformance(operation="all_gather")
def test_group_of_one(rank: int, world_size: int, device: torch.device, subgroup: SubgroupMaker) -> None:
    """A rank may be alone: it gathers its own tensor."""
    groups = [subgroup([peer]) for peer in range(world_size)]
    gathered = blanks(torch.zeros(4, device=device), 1)
    dist.all_gather(gathered, payload(rank, device=device), group=groups[rank])
    assert_equal(gathered, [payload(rank, device=device)])


@pytest.mark.conformance(operation="process group")
def test_ranks_are_numbered_anew(rank: int, world_size: int, subgroup: SubgroupMaker) -> None:
    """A group has its own ranks from 0, and knows which global rank each of them is."""
    members = list(range(world_size))[-2:]
    group = subgroup(members)
    if rank in members:
        assert dist.get_process_group_ranks(group) == members
        assert dist.get_rank(group) == members.index(rank)
        assert dist.get_world_size(group) == len(members)
        assert [dist.get_global_rank(group, number) for number in range(len(members))] == members
        assert [dist.get_group_rank(group, member) for member in members] == list(range(len(members)))


@skip_if_small_world_size(2)
def test_rank_outside_has_no_part(rank: int, device: torch.device, subgroup: SubgroupMaker) -> None:
    """To a rank outside, the group has no ranks, and a collective over it warns and does nothing."""
    group = subgroup([0])
    tensor = payload(rank, device=device)
    if is_member(group):
        dist.all_reduce(tensor, group=group)
    else:
        assert dist.get_rank(group) == -1
        with pytest.warns(UserWarning, match="does not belong to"):
            dist.all_reduce(tensor, group=group)
    assert_equal(tensor, payload(rank, device=device))


@pytest.mark.conformance(operation="broadcast")
@skip_if_small_world_size(2)
def test_source_is_a_global_rank(rank: int, world_size: int, device: torch.device, subgroup: SubgroupMaker) -> None:
    """In a sub-group too, ``src`` is the rank's number among all ranks."""
    members = [world_size - 2, world_size - 1]
    group = subgroup(members)
    if rank in members:
        tensor = payload(rank, device=device)
        dist.broadcast(tensor, src=members[1], group=group)
        assert_equal(tensor, payload(members[1], device=device))


@pytest.mark.conformance(operation="broadcast")
@skip_if_small_world_size(2)
def test_source_by_its_rank_in_the_group(
    rank: int, world_size: int, device: torch.device, subgroup: SubgroupMaker
) -> None:
    """``group_src`` and ``group_dst`` are numbers within the group."""
    members = [world_size - 2, world_size - 1]
    group = subgroup(members)
    if rank in members:
        tensor = payload(rank, device=device)
        dist.broadcast(tensor, group=group, group_src=1)
        assert_equal(tensor, payload(members[1], device=device))
        gathered = blanks(tensor, 2) if rank == members[0] else None
        dist.gather(payload(rank, device=device), gathered, group=group, group_dst=0)
        if rank == members[0]:
            assert_equal(gathered, [payload(member, device=device) for member in members])


@pytest.mark.conformance(operation="send, recv")
@skip_if_small_world_size(2)
def test_messages_within_a_group(rank: int, world_size: int, device: torch.device, subgroup: SubgroupMaker) -> None:
    """Send and recv take group ranks as well."""
    members = [world_size - 2, world_size - 1]
    group = subgroup(members)
    received = torch.zeros(4, device=device)
    if rank == members[0]:
        dist.send(payload(rank, device=device), group=group, group_dst=1)
    elif rank == members[1]:
        dist.recv(received, group=group, group_src=0)
        assert_equal(received, payload(members[0], device=device))


@skip_if_small_world_size(3)
def test_overlapping_groups(rank: int, world_size: int, device: torch.device, subgroup: SubgroupMaker) -> None:
    """A rank can belong to several groups: here to that with each of its neighbours."""
    pairs = [sorted({peer, (peer + 1) % world_size}) for peer in range(world_size)]
    groups = [subgroup(pair) for pair in pairs]
    for pair, group in zip(pairs, groups, strict=True):
        if rank in pair:
            tensor = payload(rank, device=device)
            dist.all_reduce(tensor, group=group)
            assert_equal(tensor, SUM.of([payload(member, device=device) for member in pair]))


@since_torch_2_13
@pytest.mark.conformance(operation="several collectives")
def test_all_collectives_of_a_group_keep_to_it(
    rank: int, world_size: int, device: torch.device, subgroup: SubgroupMaker
) -> None:
    """The collectives that are made of several messages stay within the group as well."""
    members = list(range(world_size))[-2:]
    group = subgroup(members)
    if rank not in members:
        return
    place = members.index(rank)
    pieces = torch.arange(len(members), dtype=torch.float32, device=device) + 10 * (rank + 1)
    exchanged, reduced = torch.zeros_like(pieces), torch.zeros(1, device=device)
    dist.all_to_all_single(exchanged, pieces, group=group)
    dist.reduce_scatter_single(reduced, pieces, group=group)
    columns = torch.tensor([10.0 * (member + 1) + place for member in members], device=device)
    assert_equal([exchanged, reduced], [columns, columns.sum(0, keepdim=True)])


@pytest.mark.conformance(operation="process group")
def test_destroyed_group_is_forgotten(world_size: int) -> None:
    """A group that was destroyed cannot be asked for its ranks, and the default group is none the worse."""
    group = dist.new_group(list(range(world_size)))
    assert dist.get_world_size(group) == world_size
    dist.barrier(group)  # a rank that is still connecting would fail if a peer left already
    dist.destroy_process_group(group)
    with pytest.raises(KeyError):
        dist.get_process_group_ranks(group)
    assert dist.get_world_size() == world_size


@pytest.mark.conformance(operation="all_gather")
def test_one_group_for_each_rank_by_torchs_own_helper(rank: int, world_size: int, device: torch.device) -> None:
    """One call makes all the groups, and says which one is this rank's."""
    own, groups = dist.new_subgroups_by_enumeration(  # type: ignore[no-untyped-call]
        [[peer] for peer in range(world_size)]
    )
    try:
        assert len(groups) == world_size
        gathered = blanks(torch.zeros(4, device=device), 1)
        dist.all_gather(gathered, payload(rank, device=device), group=own)
        assert_equal(gathered, [payload(rank, device=device)])
        assert dist.get_process_group_ranks(own) == [rank]
    finally:
        dist.destroy_process_group(own)
