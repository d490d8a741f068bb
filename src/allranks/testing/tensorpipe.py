"""Which transports TensorPipe can use on this host."""

import functools
import subprocess

_SECONDS = 20


@functools.cache
def has_efa() -> bool:
    """Whether this host has an Elastic Fabric Adapter with libfabric's software for it.

    Asked of ``fi_info -p efa -t FI_EP_RDM``, as AWS's manual for EFA does; once in a process.
    """
    command = ["fi_info", "-p", "efa", "-t", "FI_EP_RDM"]
    try:
        answer = subprocess.run(command, check=False, capture_output=True, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.returncode == 0


def tensorpipe_transports() -> list[str] | None:
    """The transports for ``TensorPipeRpcBackendOptions(_transports=...)``.

    On a host with EFA TensorPipe takes the adapter for InfiniBand and fails (pytorch issues 65022 and 73885), so there
    it gets shared memory and TCP alone.

    Returns:
        Their names; None for TensorPipe's own choice.
    """
    return ["shm", "uv"] if has_efa() else None
