"""A table of the operations that backends lack, by device; users add those of their own backends."""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final

from allranks.protocol.unsupported import lack

EVERY_DEVICE: Final = ""
"""In place of a device: what the backend lacks on each of its devices."""

_OF_ALL_BUT_GLOO: Final = frozenset({"all_gather_coalesced", "recv from any source", "monitored_barrier"})

# From torch 2.13: its list of collectives to skip (DistTestCases), what its documentation says of monitored_barrier,
# and for gloo and NCCL what suites/collectives found. A conformance run shows more, and whether this is still true.
_KNOWN: Final[Mapping[str, Mapping[str, Collection[str]]]] = MappingProxyType(
    {
        "gloo": {
            EVERY_DEVICE: {
                "all_gather into a stacked tensor",
                "all_gather of unequal tensors",
                "all_to_all of unequal tensors",
            }
        },
        "nccl": {
            EVERY_DEVICE: {
                *_OF_ALL_BUT_GLOO,
                "all_reduce of a tensor that is not contiguous",
                "all_reduce of sparse tensors",
                "bitwise reduction",
                "broadcast of a tensor that is not contiguous",
                "reduce_scatter of complex numbers",
                "tags",
            }
        },
        "mpi": {EVERY_DEVICE: {"all_gather_coalesced", "monitored_barrier"}},
        "ucc": {EVERY_DEVICE: _OF_ALL_BUT_GLOO, "cpu": {"barrier"}},
        "xccl": {EVERY_DEVICE: _OF_ALL_BUT_GLOO},
    }
)

# Of this process, as torch's own register of backends is: a suite fills it where it imports its backend.
_registered: dict[str, dict[str, frozenset[str]]] = {}


def register_unsupported(backend: str, operations: Collection[str], *, device: str = EVERY_DEVICE) -> None:
    """Add operations that a backend lacks, for :func:`skip_unsupported`.

    Call it where the suite is imported, such as in its ``conftest.py``: every rank needs it.

    Args:
        backend: Its name, in any case.
        operations: Their names, as ``skip_unsupported`` has them.
        device: The type of device, such as ``"cuda"``, on which they are missing; by default each.

    Raises:
        TypeError: ``operations`` is a single string, not a collection of strings.
    """
    if isinstance(operations, str):
        msg = f"give the operations as a list: [{operations!r}]"
        raise TypeError(msg)
    of_backend = _registered.setdefault(backend.lower(), {})
    of_backend[device] = of_backend.get(device, frozenset()) | frozenset(operations)


def unsupported_operations(backend: str, device: str = EVERY_DEVICE) -> frozenset[str]:
    """The operations that a backend is known to lack on a type of device; without one, on each of its devices."""
    name = backend.lower()
    tables = (_KNOWN.get(name, {}), _registered.get(name, {}))
    return frozenset(each for table in tables for place in {EVERY_DEVICE, device} for each in table.get(place, ()))


def why_unsupported(operation: str, backend: str, device: str) -> str | None:
    """Why a backend cannot do an operation with tensors on a type of device; None if nothing is known against it."""
    from torch.distributed import Backend

    devices = Backend.backend_capability.get(backend.lower())
    if devices is not None and device not in devices:
        return lack(backend, f"tensors on {device}")
    if operation in unsupported_operations(backend):
        return lack(backend, operation)
    return lack(backend, f"{operation} on {device}") if operation in unsupported_operations(backend, device) else None
