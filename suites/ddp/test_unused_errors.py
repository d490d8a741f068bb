"""Unused parameters without the search for them: the next forward pass fails, and says which and what to do."""

import re
import warnings
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from allranks.testing import (
    captured_output,
    dist_debug_level,
    verify_ddp_error_logged,
    with_dist_debug_levels,
)

from .branches import Branches, Pair, first_loss, loss_with
from .reference import World, assert_close, backward, gradients, mean_gradients

UNFINISHED = "Expected to have finished reduction in the prior iteration before starting a new one"


def second_pass_fails(world: World, model: nn.Module, uses: str = "") -> str:
    """The message of the forward pass that follows one in which not all parameters were used."""
    backward(model, world.batch(), loss_with(uses))
    with pytest.raises(RuntimeError, match=UNFINISHED) as caught:
        model(world.batch())
    return str(caught.value)


def named_in(message: str) -> set[str]:
    """The parameters of :class:`Branches`, with the path before them, whose names are in a message."""
    return set(re.findall(r"(?:0\.)?(?:trunk|left|right)\.(?:weight|bias)", message))


@with_dist_debug_levels(["OFF", "INFO", "DETAIL"])
def test_next_forward_pass_fails_and_names_the_setting(world: World) -> None:
    """On every rank, under every debug level."""
    message = second_pass_fails(world, world.wrap(Branches()), "left")
    assert "find_unused_parameters=True" in message
    assert "were not used in producing loss" in message


def test_without_debugging_the_message_has_the_parameters_numbers(world: World) -> None:
    """And says how to get their names."""
    with dist_debug_level("OFF"):
        message = second_pass_fails(world, world.wrap(Branches()), "left")
    assert f"Parameter indices which did not receive grad for rank {world.rank}: 4 5" in message
    assert "TORCH_DISTRIBUTED_DEBUG" in message
    assert named_in(message) == set()


@pytest.mark.parametrize("level", ["INFO", "DETAIL"])
def test_under_debugging_the_message_has_the_parameters_names(world: World, level: Literal["INFO", "DETAIL"]) -> None:
    """Those with a gradient are not in it."""
    with dist_debug_level(level):
        message = second_pass_fails(world, world.wrap(Branches()), "left")
    assert f"Parameters which did not receive grad for rank {world.rank}" in message
    assert named_in(message) == {"right.weight", "right.bias"}


def test_names_are_those_within_nested_modules(world: World) -> None:
    """Each with the path from the wrapped module."""
    with dist_debug_level("INFO"):
        ddp = world.wrap(nn.Sequential(Branches(), nn.Tanh()))
        backward(ddp, world.batch())
        with pytest.raises(RuntimeError, match=UNFINISHED) as caught:
            ddp(world.batch())
    assert named_in(str(caught.value)) == {
        f"0.{layer}.{kind}" for layer in ("left", "right") for kind in ("weight", "bias")
    }


def test_ignored_parameters_are_not_named(world: World) -> None:
    """They are not reduced, so it does not matter that they are unused."""
    module = Branches()
    torch.nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
        module, ["left.weight", "left.bias"]
    )
    with dist_debug_level("INFO"):
        message = second_pass_fails(world, world.wrap(module))
    assert named_in(message) == {"right.weight", "right.bias"}


def test_frozen_parameters_are_not_named(world: World) -> None:
    """Nobody expects a gradient of them."""
    module = Branches()
    module.left.requires_grad_(requires_grad=False)
    with dist_debug_level("INFO"):
        message = second_pass_fails(world, world.wrap(module))
    assert named_in(message) == {"right.weight", "right.bias"}


def test_with_all_ignored_or_used_there_is_no_error(world: World) -> None:
    """Ignoring the unused ones is another way to train such a model."""
    module = Branches()
    names = [name for name, _ in module.named_parameters() if not name.startswith("trunk")]
    torch.nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, names)
    ddp = world.wrap(module)
    for _ in range(3):
        ddp.zero_grad()
        expected = mean_gradients(ddp.module, world.batches(), loss_with())
        backward(ddp, world.batch(), loss_with())
        assert_close(gradients(ddp)[:2], expected[:2])


def test_error_is_logged(world: World) -> None:
    """The logging data of the model have its text."""
    ddp = world.wrap(Branches())
    message = second_pass_fails(world, ddp)
    verify_ddp_error_logged(ddp, message.split(".", maxsplit=1)[0])


def test_output_that_the_loss_leaves_out_is_the_same_error(world: World) -> None:
    """The message says that outputs which take no part in the loss are a cause, too."""
    ddp = world.wrap(Pair())
    backward(ddp, world.batch(), first_loss)
    with pytest.raises(RuntimeError, match=r"(?s)Expected to have finished reduction.*`forward` function outputs"):
        ddp(world.batch())


def test_tensor_that_the_search_cannot_see_is_an_error(world: World) -> None:
    """The search takes what is behind it for unused, and then it has a gradient."""

    class Hiding(Pair):
        def forward(self, batch: Tensor) -> list[object]:  # type: ignore[override]
            first, second = super().forward(batch)
            return [first, lambda: second]

    ddp = world.wrap(Hiding(), find_unused_parameters=True)
    first, second = ddp(world.batch())
    with pytest.raises(RuntimeError, match="mark a variable ready only once"):
        (first.sum() + second().sum()).backward()


def test_error_is_about_the_unfinished_pass_alone(world: World) -> None:
    """A pass without gradients does not fail: nothing is to be reduced."""
    ddp = world.wrap(Branches())
    backward(ddp, world.batch(), loss_with("left"))
    with torch.no_grad():
        assert ddp(world.batch()).shape == (3, 2)


def test_unfinished_reduction_can_be_asked_for(world: World) -> None:
    """A check after the backward pass finds what the next forward pass would."""
    ddp = world.wrap(Branches())
    backward(ddp, world.batch(), loss_with("left right"))
    ddp._check_reducer_finalized()
    backward(ddp, world.batch(), loss_with("left"))
    with pytest.raises(RuntimeError, match=UNFINISHED):
        ddp._check_reducer_finalized()


def test_needless_search_is_warned_of(world: World) -> None:
    """If the first pass finds nothing unused, there is a hint that the search costs time."""
    ddp = world.wrap(world.net(), find_unused_parameters=True)
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # else once for each process, and another test may have been first
    try:
        with captured_output() as (_, err), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            backward(ddp, world.batch())
    finally:
        torch.set_warn_always(always)
    said = err.getvalue() + "".join(str(warning.message) for warning in caught)
    assert "find_unused_parameters=True was specified" in said
    assert "did not find any unused parameters" in said
