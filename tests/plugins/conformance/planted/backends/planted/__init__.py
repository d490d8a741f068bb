"""A backend in Python that hands every call to gloo. Each module beside this one plants a defect in it."""

import torch
import torch.distributed as dist

NAME = "planted"

_METHODS = (
    *("allreduce", "allreduce_coalesced", "reduce", "broadcast", "gather", "scatter", "barrier"),
    *("all_gather_single", "allgather_coalesced", "all_gather_single_coalesced", "alltoall", "all_to_all_single"),
    *("reduce_scatter", "reduce_scatter_single", "reduce_scatter_single_coalesced", "send", "recv", "recv_anysource"),
)
"""What torch.distributed calls, by the names of torch 2.13."""


class Delegate(dist.ProcessGroup):
    """One process group; what gloo would do wrong without a check, this refuses as unsupported.

    Args:
        store: Of the group alone.
        rank: In the group.
        size: Of the group.
        timeout: Of its operations.
    """

    def __init__(self, store, rank, size, timeout):
        super().__init__(rank, size)
        self.inner = self.connect(store, rank, size, timeout)

    def connect(self, store, rank, size, timeout):
        """The group that does the work."""
        gloo = dist.ProcessGroupGloo(store, rank, size, timeout=timeout)
        inner = dist.ProcessGroup(store, rank, size)
        inner._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
        inner._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        return inner

    def getBackendName(self):  # noqa: N802 - torch's name
        return NAME

    def setGroupName(self, name):  # noqa: N802 - torch's name
        self.own_name = name  # torch itself leaves it to the backends in C++, of which there is none here

    def getGroupName(self):  # noqa: N802 - torch's name
        return self.own_name

    def shutdown(self):
        self.inner.shutdown()

    def allgather(self, outputs, inputs, opts):
        _refuse_unequal(outputs[0], inputs[0])
        return self.inner.allgather(outputs, inputs, opts)

    def all_gather_single(self, output, given, opts):
        if output.dim() != given.dim():
            msg = f"{NAME} does not support an output with a dimension of its own for the ranks"
            raise NotImplementedError(msg)
        return self.inner.all_gather_single(output, given, opts)

    def alltoall(self, outputs, inputs, opts):
        _refuse_unequal(outputs, outputs[0])
        return self.inner.alltoall(outputs, inputs, opts)


def _refuse_unequal(tensors, like):
    if any(tensor.shape != like.shape for tensor in tensors):
        msg = f"{NAME} does not support tensors of unequal size"
        raise NotImplementedError(msg)


def _handed_on(name):
    def method(self, *args, **kwargs):
        return getattr(self.inner, name)(*args, **kwargs)

    return method


for _name in _METHODS:
    if _name not in vars(Delegate):
        setattr(Delegate, _name, _handed_on(_name))


class Done(dist.Work):
    """The handle of work that is said to be done."""

    def wait(self, timeout=None):  # noqa: ARG002 - torch's signature
        return True

    def is_completed(self):
        return True


def register(kind):
    """Register a class as the backend, for CPU tensors."""
    dist.Backend.register_backend(NAME, kind, devices=["cpu"])
