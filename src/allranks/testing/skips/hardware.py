"""What a test needs of the world size, and of the GPUs that this rank can see."""

import itertools

from allranks.protocol.skip_codes import SkipCode
from allranks.testing.environment import RankEnvironment
from allranks.testing.skips.requirement import Requirement, at_least_one, skip, skip_for_gpus


def require_world_size(minimum: int) -> Requirement:
    """The test needs at least ``minimum`` ranks (code 73)."""
    at_least_one(minimum, "ranks")

    def check() -> None:
        world_size = RankEnvironment.read().world_size
        if world_size < minimum:
            skip(SkipCode.SMALL_WORLD_SIZE, f"{world_size} of at least {minimum} ranks")

    return Requirement(check)


def skip_if_small_world_size(minimum: int) -> Requirement:
    """:func:`require_world_size` by another name: at least ``minimum`` ranks (code 73)."""
    return require_world_size(minimum)


def require_exact_world_size(n: int) -> Requirement:
    """The test needs ``n`` ranks, no fewer (code 73) and no more (code 86: torch's table has none for it)."""
    minimum = require_world_size(n)

    def check() -> None:
        minimum.check()
        world_size = RankEnvironment.read().world_size
        if world_size > n:
            skip(SkipCode.GENERIC, f"the world is too large for this test: {world_size} ranks, and it needs {n}")

    return Requirement(check)


def _check_even_world_size() -> None:
    world_size = RankEnvironment.read().world_size
    if world_size % 2:
        skip(SkipCode.ODD_WORLD_SIZE, f"{world_size} ranks")


skip_if_odd_world_size = Requirement(_check_even_world_size)
"""The test needs an even number of ranks (code 87)."""


def _check_gpus(n: int) -> None:
    import torch

    if not torch.cuda.is_available():
        skip(SkipCode.NO_CUDA, gpus=n)
    if torch.cuda.device_count() < n:
        skip_for_gpus(n, torch.cuda.device_count())


def require_gpus(n: int, *, on: str | None = None) -> Requirement:
    """The test needs ``n`` GPUs that this rank can see (codes 74, 75, 77, 80 to 85).

    Args:
        n: The number of GPUs.
        on: Require them only in cells of this backend (``"nccl"``); None for every cell.
    """
    at_least_one(n, "GPUs")

    def check() -> None:
        if on is None or on == RankEnvironment.read().backend:
            _check_gpus(n)

    return Requirement(check)


require_gpu = require_gpus(1)
"""The test needs a GPU (code 74)."""


def require_gpus_or_none(n: int) -> Requirement:
    """The test needs ``n`` GPUs, or runs on the CPU where there is none at all (codes 75, 77, 80 to 85)."""
    at_least_one(n, "GPUs")

    def check() -> None:
        import torch

        if torch.cuda.is_available():
            _check_gpus(n)

    return Requirement(check)


require_gpu_per_rank = Requirement(lambda: _check_gpus(RankEnvironment.read().local_world_size))
"""Each rank needs a GPU of its own, as many on this node as it has ranks (codes 74, 75, 77, 80 to 85)."""


def require_accelerators(n: int) -> Requirement:
    """The test needs ``n`` accelerators of whatever kind this torch drives (codes 89, 75, 77, 80 to 85)."""
    at_least_one(n, "accelerators")

    def check() -> None:
        import torch

        # torch.accelerator exists since torch 2.6; in older versions, count CUDA devices only.
        accelerator = getattr(torch, "accelerator", torch.cuda)
        count = int(accelerator.device_count()) if accelerator.is_available() else 0
        if count == 0:
            skip(SkipCode.NO_ACCELERATOR, gpus=n)
        if count < n:
            skip_for_gpus(n, count, " accelerators")

    return Requirement(check)


require_accelerator = require_accelerators(1)
"""The test needs an accelerator of whatever kind this torch drives (code 89)."""


def _check_peer_access() -> None:
    import torch

    _check_gpus(2)
    for one, other in itertools.permutations(range(torch.cuda.device_count()), 2):
        if not torch.cuda.can_device_access_peer(one, other):
            skip(SkipCode.NO_PEER_ACCESS, f"GPU {one} cannot read GPU {other}")


require_peer_access = Requirement(_check_peer_access)
"""Every GPU must reach the memory of every other (code 79), and there must be two of them (codes 74, 77)."""


def require_compute_capability(major: int, minor: int = 0) -> Requirement:
    """The test needs CUDA GPUs of at least this compute capability (codes 74, 78, and 86: torch's table has none)."""
    at_least_one(major, "generations")

    def check() -> None:
        import torch

        _check_gpus(1)
        _check_not_rocm()
        found = min(torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count()))
        if found < (major, minor):
            skip(SkipCode.GENERIC, f"a GPU has compute capability {found[0]}.{found[1]}, below {major}.{minor}")

    return Requirement(check)


def _check_not_rocm() -> None:
    import torch

    if torch.version.hip is not None:
        skip(SkipCode.ROCM, f"this torch is built for ROCm {torch.version.hip}")


skip_if_rocm = Requirement(_check_not_rocm)
"""The test does not apply to a torch built for ROCm (code 78)."""


def skip_if_rocm_arch(*names: str) -> Requirement:
    """The test does not apply to AMD GPUs of these architectures, such as ``gfx906`` (code 78)."""

    def check() -> None:
        import torch

        if torch.version.hip is None or not torch.cuda.is_available():
            return
        # Chip features follow the name: gfx90a:sramecc+:xnack-
        found = str(torch.cuda.get_device_properties(0).gcnArchName).split(":", maxsplit=1)[0]
        if found in names:
            skip(SkipCode.ROCM, f"this GPU is a {found}")

    return Requirement(check)


def skip_if_rocm_older(major: int, minor: int = 0) -> Requirement:
    """On ROCm the test needs at least this version of it (code 78); elsewhere it runs."""
    at_least_one(major, "versions")

    def check() -> None:
        import torch

        version = torch.version.hip
        if version is not None and _numbers(version) < (major, minor):
            skip(SkipCode.ROCM, f"ROCm {version} is older than {major}.{minor}")

    return Requirement(check)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("-", maxsplit=1)[0].split(".") if part.isdigit())
