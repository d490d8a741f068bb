"""The parts of the acceptance, in their order: the most valuable ones come first."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gpu_acceptance.bench import Bench


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part.

    Attributes:
        name: By which people name it.
        home: The module and the function that prove it.
        seconds: How long it may take at the most.
        least: With less time than this it is not begun.
        is_alone: True if it needs the GPUs to itself: it takes all their memory, or measures them.
        needs_gpus: False if it proves something about a machine without any.
    """

    name: str
    home: str
    seconds: float
    least: float = 15.0
    is_alone: bool = False
    needs_gpus: bool = True

    def load(self) -> Callable[[Bench], str]:
        """The function: returns what it has seen, or raises why not."""
        module, _, function = self.home.partition(":")
        found: Callable[[Bench], str] = getattr(importlib.import_module(f"gpu_acceptance.parts.{module}"), function)
        return found


PARTS: Final = (
    Part(name="kernel", home="kernel:features", seconds=20, needs_gpus=False),
    Part(name="nccl-one-gpu", home="cells:nccl_one_gpu", seconds=120),
    Part(name="gloo-cuda-tensors", home="cells:gloo_cuda_tensors", seconds=120),
    Part(name="collectives", home="cells:collectives", seconds=120),
    Part(name="fault-stuck-in-a-kernel", home="faults:stuck_in_a_kernel", seconds=90),
    Part(name="fault-illegal-address", home="faults:illegal_address", seconds=90),
    Part(name="fault-abort-in-a-collective", home="faults:abort_in_a_collective", seconds=90),
    Part(name="fault-sigkill-in-a-kernel", home="faults:sigkill_in_a_kernel", seconds=90),
    Part(name="fault-ctrl-c-in-a-kernel", home="faults:ctrl_c_in_a_kernel", seconds=120),
    Part(name="fault-collective-without-its-peer", home="faults:collective_without_its_peer", seconds=90),
    Part(name="fault-job-limit-in-a-kernel", home="faults:job_limit_in_a_kernel", seconds=120),
    Part(name="fault-out-of-memory", home="faults:out_of_memory", seconds=90, is_alone=True),
    Part(name="leases-wait", home="leases:wait", seconds=90),
    Part(name="leases-of-the-killed", home="leases:of_the_killed", seconds=90),
    Part(name="leases-obey", home="leases:obey", seconds=90),
    Part(name="time-of-a-test", home="figures:time_of_a_test", seconds=150, is_alone=True),
    Part(name="torch-c10d", home="cells:torch_c10d", seconds=120),
    Part(name="torch-rpc-cuda", home="cells:torch_rpc_cuda", seconds=180),
    Part(name="doctor", home="host:doctor", seconds=60),
    Part(name="nvml-and-torch", home="host:nvml_and_torch", seconds=90),
    Part(name="nccl-shared-gpu", home="cells:nccl_shared_gpu", seconds=90),
    Part(name="forks", home="cells:forks", seconds=90),
    Part(name="several-gpus", home="cells:several_gpus", seconds=240),
    Part(name="ddp", home="cells:ddp", seconds=180),
    Part(name="rpc", home="cells:rpc", seconds=180),
    Part(name="dist-autograd", home="cells:dist_autograd", seconds=180),
    Part(name="containers", home="containers:containers", seconds=180),
    Part(name="check-of-a-sick-gpu", home="host:check_of_a_sick_gpu", seconds=60, is_alone=True),
    Part(name="memory-of-ranks", home="figures:memory_of_ranks", seconds=90, is_alone=True),
)
