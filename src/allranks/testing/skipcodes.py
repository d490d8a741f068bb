"""torch's exit codes for a skipped test, with our own words for what each means.

A rank of torch's own test cases that cannot run a test leaves with one of these exit codes, and its launcher reads
the reason from the code. The numbers are those of ``TEST_SKIPS`` in ``torch/testing/_internal/common_distributed.py``,
which takes a second to import and is not there without torch; this module needs the standard library alone.
"""

from enum import IntEnum
from types import MappingProxyType

from allranks.harness.outcome import SkipKind


class SkipCode(IntEnum):
    """An exit code by which a rank says that it skipped, and why."""

    BACKEND_UNAVAILABLE = 72
    SMALL_WORLD_SIZE = 73
    NO_CUDA = 74
    MULTI_GPU_1 = 75
    NO_NCCL = 76
    MULTI_GPU_2 = 77
    ROCM = 78
    NO_PEER_ACCESS = 79
    MULTI_GPU_3 = 80
    MULTI_GPU_4 = 81
    MULTI_GPU_5 = 82
    MULTI_GPU_6 = 83
    MULTI_GPU_7 = 84
    MULTI_GPU_8 = 85
    GENERIC = 86
    ODD_WORLD_SIZE = 87
    MISSING_IMPORT = 88
    NO_ACCELERATOR = 89


_MULTI_GPU = (
    SkipCode.MULTI_GPU_1,
    SkipCode.MULTI_GPU_2,
    SkipCode.MULTI_GPU_3,
    SkipCode.MULTI_GPU_4,
    SkipCode.MULTI_GPU_5,
    SkipCode.MULTI_GPU_6,
    SkipCode.MULTI_GPU_7,
    SkipCode.MULTI_GPU_8,
)

_HARDWARE = frozenset({SkipCode.NO_CUDA, SkipCode.NO_PEER_ACCESS, SkipCode.NO_ACCELERATOR, *_MULTI_GPU})

_REASONS = MappingProxyType(
    {
        SkipCode.BACKEND_UNAVAILABLE: "the backend that this test needs is not available here",
        SkipCode.SMALL_WORLD_SIZE: "the world is too small for this test",
        SkipCode.NO_CUDA: "no CUDA device is visible",
        SkipCode.NO_NCCL: "this torch is built without NCCL",
        SkipCode.ROCM: "this test does not apply to ROCm",
        SkipCode.NO_PEER_ACCESS: "the GPUs cannot reach each other's memory",
        SkipCode.GENERIC: "the rank skipped for a reason of its own",
        SkipCode.ODD_WORLD_SIZE: "this test needs an even number of ranks",
        SkipCode.MISSING_IMPORT: "a package that this test imports is not installed",
        SkipCode.NO_ACCELERATOR: "no accelerator is visible",
        SkipCode.MULTI_GPU_1: "fewer than 1 GPU is visible",
        **{code: f"fewer than {n} GPUs are visible" for n, code in enumerate(_MULTI_GPU[1:], start=2)},
    }
)


def reason(code: SkipCode) -> str:
    """One clause that says why a rank with this code skipped."""
    return _REASONS[code]


def kind(code: SkipCode) -> SkipKind:
    """:attr:`SkipKind.HARDWARE` for want of GPUs, :attr:`SkipKind.ENVIRONMENT` for everything else."""
    return SkipKind.HARDWARE if code in _HARDWARE else SkipKind.ENVIRONMENT


def multi_gpu(n: int) -> SkipCode:
    """The code of "at least ``n`` GPUs are needed".

    torch's table ends at 8 GPUs, so a need for more has the code for 8; the detail of the skip gives the number.

    Raises:
        ValueError: ``n`` is less than 1.
    """
    if n < 1:
        msg = f"a test cannot need {n} GPUs: give a number from 1"
        raise ValueError(msg)
    return _MULTI_GPU[min(n, len(_MULTI_GPU)) - 1]
