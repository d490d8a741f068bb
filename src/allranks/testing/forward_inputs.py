"""Modules that save the inputs of their forward pass, to test what DDP or FSDP casts them to."""

from collections.abc import Mapping, MutableMapping

import torch
from torch import nn

ForwardInputs = MutableMapping[nn.Module, torch.Tensor]
"""The last input of each module."""

_WIDTH = 100


class SaveForwardInputsModule(nn.Module):
    """A linear layer that saves its input.

    Args:
        forward_inputs: Gets the input under this module.
        cast_forward_inputs: Cast the input to the type of the weight, after it was saved.

    Attributes:
        l: The layer, of 100 features.
    """

    def __init__(self, forward_inputs: ForwardInputs, cast_forward_inputs: bool) -> None:
        super().__init__()
        self.l = nn.Linear(_WIDTH, _WIDTH)
        self.forward_inputs = forward_inputs
        self.cast_forward_inputs = cast_forward_inputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Save ``x``, and apply the layer."""
        self.forward_inputs[self] = x
        result: torch.Tensor = self.l(x.to(self.l.weight.dtype) if self.cast_forward_inputs else x)
        return result


class SaveForwardInputsModel(nn.Module):
    """Two :class:`SaveForwardInputsModule`, one after the other; saves its own input, too.

    Args:
        forward_inputs: Gets the three inputs, each under its module.
        cast_forward_inputs: As of both modules.

    Attributes:
        c1: The first module.
        c2: The second one.
    """

    def __init__(self, forward_inputs: ForwardInputs, cast_forward_inputs: bool) -> None:
        super().__init__()
        self.c1 = SaveForwardInputsModule(forward_inputs, cast_forward_inputs)
        self.c2 = SaveForwardInputsModule(forward_inputs, cast_forward_inputs)
        self.forward_inputs = forward_inputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Save ``x``, and apply both modules."""
        self.forward_inputs[self] = x
        result: torch.Tensor = self.c2(self.c1(x))
        return result


def saved_dtypes(forward_inputs: Mapping[nn.Module, torch.Tensor]) -> dict[nn.Module, torch.dtype]:
    """The type of each saved input, by module."""
    return {module: saved.dtype for module, saved in forward_inputs.items()}
