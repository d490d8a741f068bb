"""An RPC agent whose tensors may be on GPUs, and the devices that its tests name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from allranks.testing import TensorPipe

Place = int | str
"""A GPU's index, or ``cpu``."""


def device_at(place: Place) -> torch.device:
    """The device of a place."""
    return torch.device("cuda", place) if isinstance(place, int) else torch.device(place)


@dataclass(frozen=True, kw_only=True)
class MappedTensorPipe(TensorPipe):
    """TensorPipe with device maps.

    Args:
        maps: For each callee, where it gets what is at a place here.
        devices: The GPUs that this worker uses; by default those of the maps.
    """

    maps: Mapping[str, Mapping[Place, Place]] = field(default_factory=dict)
    devices: Sequence[int] = ()

    def options(self, init_method: str, timeout: float) -> Any:  # noqa: ANN401 - as of TensorPipe
        """Those of TensorPipe, and the maps."""
        options = super().options(init_method, timeout)
        for callee, places in self.maps.items():
            options.set_device_map(callee, dict(places))
        if self.devices:
            options.set_devices(list(self.devices))
        return options
