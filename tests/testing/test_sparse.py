import functools
import operator

import pytest
import torch

from allranks.testing import sparse_reduction_cases


@pytest.mark.parametrize("num_inputs", [1, 2])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_the_outputs_are_the_sums_of_the_inputs_of_all_ranks(world_size, num_inputs):
    ranks = [sparse_reduction_cases(rank, world_size, num_inputs) for rank in range(world_size)]
    for cases in zip(*ranks, strict=True):
        dense = [tensor.to_dense() for case in cases for tensor in case.inputs]
        assert len(dense) == world_size * num_inputs
        for case in cases:
            assert len(case.inputs) == len(case.outputs) == num_inputs
            assert all(torch.equal(output.to_dense(), functools.reduce(operator.add, dense)) for output in case.outputs)


def test_one_to_three_sparse_and_up_to_three_dense_dimensions_are_covered():
    cases = sparse_reduction_cases(1, 2)
    dims = [(case.inputs[0].sparse_dim(), case.inputs[0].dense_dim()) for case in cases]
    assert dims == [(1, 0), (2, 0), (3, 0), (1, 1), (1, 2), (1, 3)]


def test_a_sum_without_one_of_the_ranks_is_wrong():
    for rank in range(3):
        for case in sparse_reduction_cases(rank, 3):
            [own], [total] = case
            assert own.coalesce().values().min() == rank + 1
            assert not torch.equal(own.to_dense(), total.to_dense())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.complex64])
def test_the_type_can_be_chosen(dtype):
    assert {tensor.dtype for case in sparse_reduction_cases(0, 2, dtype=dtype) for tensor in (*case[0], *case[1])} == {
        dtype
    }


@pytest.mark.thorough
@pytest.mark.parametrize("world_size", [2, 3])
def test_gloo_reduces_them_right(run_gang, world_size):
    agent = run_gang(
        {
            "test_it.py": """
                import pytest
                import torch
                import torch.distributed as dist
                from allranks.testing import sparse_reduction_cases

                @pytest.mark.parametrize(
                    "dtype",
                    [torch.float32, torch.float64, torch.bfloat16, torch.uint8, torch.int8, torch.int32, torch.int64],
                    ids=str,
                )
                def test_right(rank, world_size, dtype):
                    for inputs, outputs in sparse_reduction_cases(rank, world_size, dtype=dtype):
                        dist.all_reduce(inputs[0])
                        torch.testing.assert_close(inputs[0].coalesce(), outputs[0])

                @pytest.mark.parametrize("dtype", [torch.float16, torch.bool], ids=str)
                def test_refused(rank, world_size, dtype):
                    with pytest.raises(RuntimeError, match="not implemented"):
                        dist.all_reduce(sparse_reduction_cases(rank, world_size, dtype=dtype)[0].inputs[0])

                @pytest.mark.xfail(strict=True, reason="gloo of torch 2.13 sums complex sparse tensors wrong")
                def test_complex(rank, world_size):
                    [tensor], [expected] = sparse_reduction_cases(rank, world_size, dtype=torch.complex64)[0]
                    dist.all_reduce(tensor)
                    assert torch.equal(tensor.to_dense(), expected.to_dense())
            """
        },
        world_size=world_size,
    )
    cases = [agent.cases(rank) for rank in range(world_size)]
    outcomes = {name: {case[name].outcome for case in cases} for name in cases[0]}
    assert {name: outcome for name, outcome in outcomes.items() if outcome != {"passed"}} == {
        "test_complex": {"xfailed"}
    }
    assert len(outcomes) == 10
