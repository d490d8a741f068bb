import copy

import pytest
import torch

from allranks.testing import SaveForwardInputsModel, SaveForwardInputsModule, saved_dtypes


def test_each_module_saves_the_input_of_its_last_forward_pass():
    saved = {}
    model = SaveForwardInputsModel(saved, cast_forward_inputs=False)
    model(torch.zeros(2, 100))
    batch = torch.ones(2, 100)
    output = model(batch)
    assert list(saved) == [model, model.c1, model.c2]
    assert saved[model] is saved[model.c1] is batch
    assert torch.equal(output, model.c2.l(saved[model.c2]))


def test_the_saved_dtype_is_that_before_the_cast():
    saved = {}
    model = SaveForwardInputsModule(saved, cast_forward_inputs=True)
    assert model(torch.ones(1, 100, dtype=torch.float64)).dtype == torch.float32
    assert saved_dtypes(saved) == {model: torch.float64}


def test_without_a_cast_a_wrong_dtype_is_an_error():
    with pytest.raises(RuntimeError, match="dtype"):
        SaveForwardInputsModule({}, cast_forward_inputs=False)(torch.ones(1, 100, dtype=torch.float64))


def test_a_copy_saves_inputs_in_its_own_mapping():
    model = SaveForwardInputsModel({}, cast_forward_inputs=False)
    twin = copy.deepcopy(model)
    twin(torch.ones(1, 100))
    assert model.forward_inputs == {}
    assert set(twin.forward_inputs) == {twin, twin.c1, twin.c2}


def test_it_shows_what_fsdp_casts_inputs_to(run_gang):
    agent = run_gang(
        {
            "test_it.py": """
                import torch
                from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
                from allranks.testing import SaveForwardInputsModel, saved_dtypes

                def test_it():
                    saved = {}
                    model = SaveForwardInputsModel(saved, cast_forward_inputs=True)
                    fully_shard(model.c2, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
                    fully_shard(model)
                    model(torch.ones(2, 100))
                    assert saved_dtypes(saved) == {
                        model: torch.float32, model.c1: torch.float32, model.c2: torch.bfloat16
                    }
            """
        }
    )
    assert agent.outcomes("test_it") == ("passed", "passed")
