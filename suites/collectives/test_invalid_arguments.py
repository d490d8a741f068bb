"""The errors that a user meets: torch refuses the call on the rank that makes it, before anything is sent.

Nobody is left waiting, so these tests use the default group, and each ends with a collective that still works. Where a
backend does not check, the test is skipped: the call would hang, or write where it must not.
"""

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist

from allranks.testing import SubgroupMaker, skip_if_small_world_size, skip_unsupported

from .tensors import (
    COMPLEX,
    MAX,
    MIN,
    PRODUCT,
    SUM,
    Reduction,
    assert_equal,
    blanks,
    dtype_name,
    payload,
    since_torch_2_13,
)

pytestmark = pytest.mark.conformance(operation="process group", feature="argument checks")

REFUSED = (RuntimeError, ValueError, TypeError)
"""The backends use different classes for the same mistake."""


@pytest.fixture(autouse=True)
def group_that_still_works(rank: int, world_size: int, device: torch.device) -> Iterator[None]:
    """Whatever the test did, the next collective has the right result."""
    yield
    tensor = payload(rank, device=device)
    dist.all_reduce(tensor)
    assert_equal(tensor, SUM.of([payload(peer, device=device) for peer in range(world_size)]))


@pytest.mark.conformance(operation="all_reduce")
def test_list_where_a_tensor_belongs(device: torch.device) -> None:
    """The message names the parameter."""
    with pytest.raises(TypeError, match="tensor"):
        dist.all_reduce([torch.ones(1, device=device)])


@pytest.mark.conformance(operation="all_gather")
def test_tensor_where_a_list_belongs(world_size: int, device: torch.device) -> None:
    """The message names the parameter."""
    with pytest.raises(TypeError, match="tensor_list"):
        dist.all_gather(torch.zeros(world_size, device=device), torch.ones(1, device=device))


@pytest.mark.conformance(operation="all_reduce")
@pytest.mark.parametrize("dtype", COMPLEX, ids=dtype_name)
@pytest.mark.parametrize("reduction", [PRODUCT, MIN, MAX], ids=str)
def test_reduction_that_complex_numbers_lack(device: torch.device, reduction: Reduction, dtype: torch.dtype) -> None:
    """Backends see two reals, of which a product or an extreme would be nonsense."""
    with pytest.raises(ValueError, match="complex"):
        dist.all_reduce(torch.ones(2, dtype=dtype, device=device), op=reduction.op)


@pytest.mark.conformance(operation="all_reduce")
@skip_unsupported("bitwise reduction", on=["nccl"])
def test_bits_of_floating_point_numbers(device: torch.device) -> None:
    """Only integers have bits to reduce."""
    with pytest.raises(RuntimeError, match="non-integral"):
        dist.all_reduce(torch.ones(2, device=device), op=dist.ReduceOp.BAND)


@pytest.mark.conformance(operation="all_reduce")
@skip_unsupported("check that an average has a fraction", on=["nccl"])
def test_average_of_integers(device: torch.device) -> None:
    """An average would have to be rounded."""
    with pytest.raises(RuntimeError, match="Long"):
        dist.all_reduce(torch.ones(2, dtype=torch.int64, device=device), op=dist.ReduceOp.AVG)


@pytest.mark.conformance(operation="broadcast")
def test_broadcast_without_a_source(device: torch.device) -> None:
    """One of ``src`` and ``group_src`` must be there."""
    with pytest.raises(ValueError, match="Must specify"):
        dist.broadcast(torch.ones(1, device=device))


@pytest.mark.conformance(operation="broadcast")
def test_broadcast_with_two_sources(device: torch.device) -> None:
    """Only one of ``src`` and ``group_src`` may be there."""
    with pytest.raises(ValueError, match="both"):
        dist.broadcast(torch.ones(1, device=device), src=0, group_src=0)


RANK_TAKERS: dict[str, Callable[[torch.Tensor, int, dist.ProcessGroup], object]] = {
    "broadcast": lambda tensor, rank, group: dist.broadcast(tensor, src=rank, group=group),
    "reduce": lambda tensor, rank, group: dist.reduce(tensor, dst=rank, group=group),
    "gather": lambda tensor, rank, group: dist.gather(tensor, None, dst=rank, group=group),
    "scatter": lambda tensor, rank, group: dist.scatter(tensor, None, src=rank, group=group),
    "send": lambda tensor, rank, group: dist.send(tensor, dst=rank, group=group),
    "recv": lambda tensor, rank, group: dist.recv(tensor, src=rank, group=group),
}


@pytest.mark.conformance(operation="{operation}")
@pytest.mark.parametrize("operation", RANK_TAKERS)
def test_rank_out_of_group(world_size: int, device: torch.device, subgroup: SubgroupMaker, operation: str) -> None:
    """A source or destination must be a member: this one is not even in the world."""
    group = subgroup(range(world_size))
    with pytest.raises(ValueError, match=f"rank {world_size} is not part of group"):
        RANK_TAKERS[operation](torch.ones(1, device=device), world_size, group)


@pytest.mark.conformance(operation="all_gather")
@skip_unsupported("check of the output list's length", on=["nccl"])
def test_all_gather_into_a_list_that_is_too_long(world_size: int, device: torch.device) -> None:
    """The list needs one tensor for each rank."""
    own = torch.ones(2, device=device)
    with pytest.raises(RuntimeError, match="list"):
        dist.all_gather(blanks(own, world_size + 1), own)


@pytest.mark.conformance(operation="all_gather")
@skip_unsupported("check of the output tensors' shape", on=["nccl"])
def test_all_gather_into_tensors_of_another_shape(world_size: int, device: torch.device) -> None:
    """Each output must be as large as the input."""
    with pytest.raises(RuntimeError, match="size"):
        dist.all_gather(blanks(torch.ones(3, device=device), world_size), torch.ones(2, device=device))


@pytest.mark.conformance(operation="all_gather")
def test_all_gather_into_tensors_of_another_dtype(world_size: int, device: torch.device) -> None:
    """Nothing is converted on the way."""
    outputs = blanks(torch.ones(2, dtype=torch.int32, device=device), world_size)
    with pytest.raises(ValueError, match="dtypes"):
        dist.all_gather(outputs, torch.ones(2, device=device))


@since_torch_2_13
@pytest.mark.conformance(operation="all_gather_single")
def test_all_gather_into_a_tensor_of_another_size(world_size: int, device: torch.device) -> None:
    """The output must hold what all ranks send, and no more."""
    with pytest.raises(REFUSED, match=r"size|length"):
        dist.all_gather_single(torch.zeros(2 * world_size + 1, device=device), torch.ones(2, device=device))


@since_torch_2_13
@pytest.mark.conformance(operation="all_gather_single")
def test_all_gather_into_a_tensor_of_another_dtype(world_size: int, device: torch.device) -> None:
    """Nothing is converted on the way."""
    output = torch.zeros(2 * world_size, dtype=torch.int32, device=device)
    with pytest.raises(REFUSED, match=r"(?<!backend )type"):
        dist.all_gather_single(output, torch.ones(2, device=device))


@pytest.mark.conformance(operation="reduce_scatter")
@skip_unsupported("check of the input list's length", on=["nccl"])
def test_reduce_scatter_of_a_list_that_is_too_long(world_size: int, device: torch.device) -> None:
    """The list needs one tensor for each rank."""
    own = torch.ones(2, device=device)
    with pytest.raises(RuntimeError, match="list"):
        dist.reduce_scatter(own, blanks(own, world_size + 1))


@pytest.mark.conformance(operation="reduce_scatter")
def test_reduce_scatter_of_a_list_of_another_dtype(world_size: int, device: torch.device) -> None:
    """Nothing is converted on the way."""
    inputs = blanks(torch.ones(2, dtype=torch.int32, device=device), world_size)
    with pytest.raises(ValueError, match="dtypes"):
        dist.reduce_scatter(torch.ones(2, device=device), inputs)


@since_torch_2_13
@pytest.mark.conformance(operation="reduce_scatter_single")
def test_reduce_scatter_of_a_tensor_of_another_size(world_size: int, device: torch.device) -> None:
    """The input must be cut into one equal part for each rank."""
    with pytest.raises(REFUSED):
        dist.reduce_scatter_single(torch.zeros(2, device=device), torch.ones(2 * world_size + 1, device=device))


@since_torch_2_13
@pytest.mark.conformance(operation="reduce_scatter_single")
def test_reduce_scatter_of_a_tensor_of_another_dtype(world_size: int, device: torch.device) -> None:
    """Nothing is converted on the way."""
    numbers = torch.ones(2 * world_size, dtype=torch.int32, device=device)
    with pytest.raises(REFUSED):
        dist.reduce_scatter_single(torch.zeros(2, device=device), numbers)


@since_torch_2_13
@pytest.mark.conformance(operation="all_to_all")
@skip_unsupported("check of the output list's length", on=["nccl"])
def test_all_to_all_with_a_list_that_is_too_long(world_size: int, device: torch.device) -> None:
    """Both lists need one tensor for each rank."""
    own = torch.ones(2, device=device)
    with pytest.raises(RuntimeError, match="list"):
        dist.all_to_all(blanks(own, world_size + 1), blanks(own, world_size))


@pytest.mark.conformance(operation="all_to_all")
def test_all_to_all_with_lists_of_two_dtypes(world_size: int, device: torch.device) -> None:
    """Nothing is converted on the way."""
    own = torch.ones(2, device=device)
    with pytest.raises(ValueError, match="dtypes"):
        dist.all_to_all(blanks(own, world_size), blanks(own.int(), world_size))


@pytest.mark.conformance(operation="all_to_all_single")
def test_all_to_all_with_splits_that_do_not_add_up(world_size: int, device: torch.device) -> None:
    """The splits must cover the tensor."""
    own = torch.ones(world_size, device=device)
    splits = [1] * world_size
    with pytest.raises(RuntimeError, match="Split sizes"):
        dist.all_to_all_single(torch.zeros_like(own), own, splits, [2, *splits[1:]])


@pytest.mark.conformance(operation="all_to_all_single")
def test_all_to_all_with_too_many_splits(world_size: int, device: torch.device) -> None:
    """There must be one split for each rank."""
    own = torch.ones(world_size, device=device)
    splits = [1] * world_size
    with pytest.raises(RuntimeError, match="Number of tensor splits"):
        dist.all_to_all_single(torch.zeros_like(own), own, [*splits, 0], splits)


@pytest.mark.conformance(operation="scatter")
def test_scatter_without_a_list_on_the_source(rank: int, device: torch.device) -> None:
    """Each rank calls as the source, and is told before it sends anything."""
    with pytest.raises(ValueError, match="must be specified on source"):
        dist.scatter(torch.ones(1, device=device), None, src=rank)


@pytest.mark.conformance(operation="scatter")
@skip_if_small_world_size(2)
def test_scatter_with_a_list_on_another_rank(rank: int, world_size: int, device: torch.device) -> None:
    """Each rank calls as one that is not the source: its list would be ignored."""
    own = torch.ones(1, device=device)
    with pytest.raises(ValueError, match="must NOT be specified"):
        dist.scatter(own, blanks(own, world_size), src=(rank + 1) % world_size)


@pytest.mark.conformance(operation="scatter")
def test_scatter_of_a_list_that_is_too_long(rank: int, world_size: int, device: torch.device) -> None:
    """The list needs one tensor for each rank."""
    own = torch.ones(1, device=device)
    with pytest.raises(REFUSED, match="list size"):
        dist.scatter(own, blanks(own, world_size + 1), src=rank)


@pytest.mark.conformance(operation="scatter")
def test_scatter_of_tensors_of_another_shape(rank: int, world_size: int, device: torch.device) -> None:
    """Each element must be as large as what it is received into."""
    with pytest.raises(REFUSED, match="size"):
        dist.scatter(torch.ones(1, device=device), blanks(torch.ones(2, device=device), world_size), src=rank)


@pytest.mark.conformance(operation="gather")
def test_gather_without_a_list_at_the_destination(rank: int, device: torch.device) -> None:
    """Each rank calls as the destination, and is told before it sends anything."""
    with pytest.raises(ValueError, match="must be specified on destination"):
        dist.gather(torch.ones(1, device=device), None, dst=rank)


@pytest.mark.conformance(operation="gather")
@skip_if_small_world_size(2)
def test_gather_with_a_list_on_another_rank(rank: int, world_size: int, device: torch.device) -> None:
    """Each rank calls as one that is not the destination: its list would stay blank."""
    own = torch.ones(1, device=device)
    with pytest.raises(ValueError, match="must NOT be specified"):
        dist.gather(own, blanks(own, world_size), dst=(rank + 1) % world_size)


@pytest.mark.conformance(operation="send, recv")
def test_message_to_oneself(rank: int, device: torch.device) -> None:
    """Nobody would be there to receive it."""
    with pytest.raises(ValueError, match="should not be the same"):
        dist.send(torch.ones(1, device=device), dst=rank)


@pytest.mark.conformance(operation="batch_isend_irecv")
def test_batch_of_something_else_than_messages(device: torch.device) -> None:
    """Only isend and irecv can be batched."""
    with pytest.raises(ValueError, match="isend"):
        dist.P2POp(dist.all_reduce, torch.ones(1, device=device), 0)


@pytest.mark.conformance(operation="all_gather_object")
@pytest.mark.usefixtures("device")
def test_object_that_cannot_be_pickled(world_size: int) -> None:
    """The rank fails before it tells the others how large its object is."""
    with pytest.raises((AttributeError, TypeError), match="pickle"):
        dist.all_gather_object([None] * world_size, lambda: None)


@pytest.mark.conformance(operation="scatter_object_list")
@pytest.mark.usefixtures("device")
def test_scatter_of_objects_without_a_list_on_the_source(rank: int) -> None:
    """Each rank calls as the source, and is told before it sends anything."""
    with pytest.raises(ValueError, match="scatter_object_input_list"):
        dist.scatter_object_list([None], None, src=rank)


@since_torch_2_13
def test_group_with_a_rank_that_does_not_exist(world_size: int) -> None:
    """The ranks of the world end at its size less one."""
    with pytest.raises(ValueError, match=f"Rank {world_size} is out of range"):
        dist.new_group([world_size])


@since_torch_2_13
def test_group_with_a_rank_twice() -> None:
    """A rank is one member."""
    with pytest.raises(ValueError, match="duplicate"):
        dist.new_group([0, 0])


def test_second_default_group(rank: int, world_size: int, backend: str) -> None:
    """There is one default group, and the harness has made it."""
    with pytest.raises(ValueError, match="twice"):
        dist.init_process_group(backend, rank=rank, world_size=world_size)
