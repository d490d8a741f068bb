"""Optimizers whose state is divided among the ranks, and the whole one that they are compared with."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from .reference import World, backward, mean_gradients, set_gradients

SETTINGS: dict[type[torch.optim.Optimizer], dict[str, Any]] = {
    torch.optim.SGD: {"lr": 0.05, "momentum": 0.9},
    torch.optim.Adam: {"lr": 0.05},
    torch.optim.AdamW: {"lr": 0.05, "weight_decay": 0.1},
}


def zero(
    ddp: nn.Module,
    kind: type[torch.optim.Optimizer] = torch.optim.Adam,
    **options: Any,  # noqa: ANN401 - those of the class
) -> ZeroRedundancyOptimizer:
    """The sharded form of an optimizer."""
    return ZeroRedundancyOptimizer(ddp.parameters(), optimizer_class=kind, **SETTINGS[kind], **options)


def step_on(ddp: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor) -> None:
    """One step of training."""
    optimizer.zero_grad()
    backward(ddp, batch)
    optimizer.step()


class Reference:
    """The same model, trained in one process on everybody's data."""

    def __init__(self, world: World, module: nn.Module, kind: type[torch.optim.Optimizer] = torch.optim.Adam) -> None:
        """Begin with the parameters of a module."""
        self.world, self.model = world, world.net()
        self.model.load_state_dict(module.state_dict())
        self.optimizer = kind(self.model.parameters(), **SETTINGS[kind])

    def step(self, step: int) -> None:
        """One step on all batches."""
        set_gradients(self.model, mean_gradients(self.model, self.world.batches(step)))
        self.optimizer.step()
