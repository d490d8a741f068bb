import pytest

from allranks.agent.environment_skips import EnvironmentSkip
from allranks.testing import rank_to_gpus


@pytest.mark.parametrize(
    ("present", "world_size", "per_rank", "expected"),
    [
        (4, 2, 1, {0: [0], 1: [1]}),
        (4, 4, 1, {0: [0], 1: [1], 2: [2], 3: [3]}),
        (4, 2, 2, {0: [0, 1], 1: [2, 3]}),
        (5, 2, None, {0: [0, 1], 1: [2, 3]}),
        (3, 2, None, {0: [0], 1: [1]}),
    ],
)
def test_no_two_ranks_share_a_gpu_if_there_are_enough(gpus, present, world_size, per_rank, expected):
    gpus(present)
    assert rank_to_gpus(world_size, "nccl", gpus_per_rank=per_rank) == expected


@pytest.mark.parametrize(
    ("present", "world_size", "per_rank", "code"),
    [(0, 2, 1, 74), (1, 2, 1, 77), (2, 3, None, 80), (3, 2, 2, 81)],
)
def test_nccl_with_too_few_skips_with_torchs_code(gpus, present, world_size, per_rank, code):
    gpus(present)
    with pytest.raises(EnvironmentSkip) as caught:
        rank_to_gpus(world_size, "NCCL", gpus_per_rank=per_rank)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("present", "world_size", "per_rank", "expected"),
    [
        (0, 2, 1, {0: [], 1: []}),
        (1, 3, 1, {0: [0], 1: [0], 2: [0]}),
        (2, 3, None, {0: [0], 1: [1], 2: [0]}),
        (3, 2, 2, {0: [0, 1], 1: [2, 0]}),
        (1, 2, 2, {0: [0], 1: [0]}),
    ],
)
@pytest.mark.parametrize("backend", [None, "gloo"])
def test_ranks_of_other_backends_share_gpus(gpus, *, backend, present, world_size, per_rank, expected):
    gpus(present)
    assert rank_to_gpus(world_size, backend, gpus_per_rank=per_rank) == expected


@pytest.mark.parametrize(("world_size", "per_rank"), [(0, 1), (2, 0)])
def test_zero_ranks_and_zero_gpus_are_errors(world_size, per_rank):
    with pytest.raises(ValueError, match="must be at least 1"):
        rank_to_gpus(world_size, gpus_per_rank=per_rank)
