"""Models whose forward pass does not use all of their parameters."""

from torch import Tensor, nn

from .reference import Loss


class Branches(nn.Module):
    """A layer that is always used, and two of which the caller names those to use."""

    def __init__(self) -> None:
        """Three layers from 4 numbers to 2."""
        super().__init__()
        self.trunk = nn.Linear(4, 2)
        self.left = nn.Linear(4, 2)
        self.right = nn.Linear(4, 2)

    def forward(self, batch: Tensor, use: str = "") -> Tensor:
        """The sum of the layers' outputs; ``use`` has the names of the optional ones, with blanks between them."""
        output: Tensor = self.trunk(batch)
        for name in use.split():
            output = output + getattr(self, name)(batch)
        return output


class Pair(nn.Module):
    """Two layers, and an output of each."""

    def __init__(self) -> None:
        """Two layers from 4 numbers to 2."""
        super().__init__()
        self.first = nn.Linear(4, 2)
        self.second = nn.Linear(4, 2)

    def forward(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Both outputs."""
        return self.first(batch), self.second(batch)


def loss_with(use: str = "") -> Loss:
    """The loss of :class:`Branches` with these optional layers."""

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        squares: Tensor = model(batch, use).square().sum()
        return squares

    return loss


def first_loss(model: nn.Module, batch: Tensor) -> Tensor:
    """A loss of :class:`Pair` that leaves the second output out."""
    squares: Tensor = model(batch)[0].square().sum()
    return squares
