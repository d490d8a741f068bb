"""Skips that report, by torch's exit code, a missing requirement.

A :class:`Requirement` can be used in three ways. It is checked only in the rank and only when its test runs, never
while the suite is imported::

    @require_gpus(2)                      # a test, a method, or a class with all of its tests
    def test_peer_copy(device): ...

    @pytest.mark.require_gpus(2)          # the same as a marker: nothing to import, and fit for pytestmark
    def test_peer_copy(device): ...

    def test_checkpoint(backend):
        require_gpus(2).check()           # in the middle of a test; without .check() nothing is checked

The first two skip before any fixture is set up, so the agent can keep the ranks. :mod:`allranks.testing` exports all.
"""

import functools
import importlib
import inspect
import itertools
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NoReturn, TypeVar

from allranks.agent.environment_skips import EnvironmentSkip
from allranks.protocol.skip_codes import SkipCode, multi_gpu
from allranks.protocol.unsupported import lack
from allranks.testing.environment import RankEnvironment


def at_least_one(n: object, of: str) -> int:
    """Check ``n``, the number of something that a test needs, and return it.

    Raises:
        TypeError: It is not a whole number, most often because the parentheses of a decorator are missing.
        ValueError: It is less than 1.
    """
    if not isinstance(n, int) or isinstance(n, bool):
        msg = f"how many {of} must be a whole number, and {n!r} is not"
        raise TypeError(msg)
    if n < 1:
        msg = f"a test cannot need {n} {of}: give a number from 1"
        raise ValueError(msg)
    return n


Test = TypeVar("Test", bound=Callable[..., object])

REQUIREMENTS_ATTRIBUTE = "allranks_requirements"
"""The attribute of a decorated test or class with its requirements, in the order of their checks."""


def skip(code: SkipCode, detail: str = "", *, gpus: int | None = None) -> NoReturn:
    """Skip the running test with one of torch's exit codes.

    Args:
        code: The code, whose reason begins the message.
        detail: What is missing here, in words.
        gpus: The number of GPUs that the test needs, if the code does not state it (torch's codes end at 8).

    Raises:
        EnvironmentSkip: Always.
    """
    raise EnvironmentSkip(code, detail, gpus)


def skip_for_gpus(needed: int, present: int, of: str = "") -> NoReturn:
    """Skip the running test, which needs more GPUs (or other accelerators) than are present.

    Raises:
        EnvironmentSkip: Always.
    """
    skip(multi_gpu(needed), f"{present} of {needed}{of}", gpus=needed)


@dataclass(frozen=True)
class Requirement:
    """Something a test needs of its surroundings: a decorator for tests and classes, or :meth:`check` inside a test.

    Args:
        check: Raises :class:`EnvironmentSkip` if the surroundings lack it, else returns.
    """

    check: Callable[[], None]

    def __call__(self, test: Test) -> Test:
        """Skip ``test``, or all tests of a class, if this requirement is not met.

        On a class, it also applies to tests of its subclasses and nested classes. Methods of the class, inherited ones
        included, whose names start with ``test`` are guarded even without our pytest plugin.

        Raises:
            TypeError: ``test`` is neither a function nor a class.
        """
        if isinstance(test, type):
            for name, function in inspect.getmembers_static(test, inspect.isfunction):
                if name.startswith("test"):
                    setattr(test, name, self._guard(function))
            setattr(test, REQUIREMENTS_ATTRIBUTE, (self, *requirements_of(test)))
            return test
        if not inspect.isroutine(test):
            msg = f"a requirement decorates a test function or a class, and {test!r} is neither"
            raise TypeError(msg)
        return self._guard(test)

    def _guard(self, test: Test) -> Test:
        @functools.wraps(test)
        def guarded(*args: object, **kwargs: object) -> object:
            self.check()
            return test(*args, **kwargs)

        setattr(guarded, REQUIREMENTS_ATTRIBUTE, (self, *requirements_of(test)))
        return guarded  # type: ignore[return-value]


def requirements_of(test: object) -> tuple[Requirement, ...]:
    """The requirements that a test or a class was decorated with, outermost first."""
    found: tuple[Requirement, ...] = getattr(test, REQUIREMENTS_ATTRIBUTE, ())
    return found


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


def _skip_where(condition: Callable[[], object], code: SkipCode, detail: str = "") -> Requirement:
    def check() -> None:
        if condition():
            skip(code, detail)

    return Requirement(check)


skip_if_windows = _skip_where(lambda: sys.platform == "win32", SkipCode.GENERIC, "this test does not apply to Windows")
"""The test does not apply to Windows (code 86)."""


def require_imports(*names: str) -> Requirement:
    """The test imports these modules, and each must be installed (code 88).

    A module that exists but cannot be imported for another reason is an error of the test, not a skip.

    Raises:
        TypeError: No name was given, or one is not a string.
    """
    _check_names(names, "modules, such as 'transformers'")

    def check() -> None:
        for name in names:
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as error:
                skip(SkipCode.MISSING_IMPORT, f"there is no module {error.name or name}")

    return Requirement(check)


def skip_because(reason: str) -> Requirement:
    """The surroundings of this test lack what ``reason`` says (code 86).

    Raises:
        TypeError: The reason is not a text, or is empty.
    """
    return skip_when(lambda: True, reason)


def skip_when(condition: Callable[[], object], reason: str) -> Requirement:
    """The test is skipped where ``condition()``, called in each rank when the test runs, is true (code 86).

    Args:
        condition: Must be equal on all ranks: a rank that runs alone waits for its peers in vain.
        reason: What the surroundings lack then, in words.

    Raises:
        TypeError: The condition is not callable, or the reason is not a text, or is empty.
    """
    if not callable(condition):
        msg = f"the condition is called when the test runs, so give a function, such as lambda: ..., not {condition!r}"
        raise TypeError(msg)
    if not isinstance(reason, str) or not reason.strip():
        msg = f"give the reason in words, not {reason!r}"
        raise TypeError(msg)
    return _skip_where(condition, SkipCode.GENERIC, reason)


Version = tuple[int, ...]


def require_backend_available(*names: str) -> Requirement:
    """The test needs a torch that has one of these backends (code 72), whatever the cell's own backend is.

    Raises:
        TypeError: No name was given, or one is not a string.
    """
    _check_names(names)
    words = f"this torch has no {' and no '.join(names)}"

    def is_missing() -> bool:
        from torch.distributed import is_backend_available

        return not any(map(is_backend_available, names))

    return _skip_where(is_missing, SkipCode.BACKEND_UNAVAILABLE, words)


def require_backend_in(*names: str) -> Requirement:
    """The test is about these backends, and the cell's own must be one of them (code 72).

    Raises:
        TypeError: No name was given, or one is not a string.
    """
    _check_names(names)

    def check() -> None:
        if (backend := RankEnvironment.read().backend) not in names:
            skip(SkipCode.BACKEND_UNAVAILABLE, f"it is about {' and '.join(names)}, and this cell runs {backend}")

    return Requirement(check)


def _check_names(names: Collection[object], of: str = "backends, such as 'gloo' and 'nccl'") -> None:
    if not names or not all(isinstance(name, str) for name in names):
        msg = f"give names of {of}, not {names!r}"
        raise TypeError(msg)


require_gloo = require_backend_available("gloo")
"""The test needs a torch built with gloo (code 72)."""

require_ucc = require_backend_available("ucc")
"""The test needs a torch built with UCC (code 72)."""

require_mpi = require_backend_available("mpi")
"""The test needs a torch built with MPI (code 72)."""


def _has_no_nccl() -> bool:
    from torch.distributed import is_nccl_available

    return not is_nccl_available()


require_nccl = _skip_where(_has_no_nccl, SkipCode.NO_NCCL)
"""The test needs a torch built with NCCL (code 76)."""


def require_nccl_version(*minimum: int) -> Requirement:
    """The test needs an NCCL (code 76) of at least this version (code 86): ``require_nccl_version(2, 27)``.

    Raises:
        TypeError: The version does not consist of whole numbers.
    """
    return _on_nccl_version(lambda found: found >= minimum, f"this test needs at least {_dotted(minimum)}")


def skip_nccl_versions(first: Version, fixed: Version) -> Requirement:
    """The test fails on the NCCL versions from ``first`` to before ``fixed`` (code 86; without NCCL code 76).

    Raises:
        TypeError: A version is not a tuple of whole numbers.
        ValueError: No version lies between the two.
    """
    between = f"from {_dotted(first)} to before {_dotted(fixed)}"
    if first >= fixed:
        msg = f"there is no NCCL {between}: give the older one first"
        raise ValueError(msg)
    return _on_nccl_version(lambda found: not first <= found < fixed, f"this test does not run {between}")


def _on_nccl_version(is_good: Callable[[Version], bool], words: str) -> Requirement:
    def check() -> None:
        require_nccl.check()
        import torch

        found: Version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
        if not is_good(found):
            skip(SkipCode.GENERIC, f"this torch has NCCL {_dotted(found)}, and {words}")

    return Requirement(check)


def _dotted(version: object) -> str:
    """A version as text; a TypeError unless it is a tuple of whole numbers."""
    if not isinstance(version, tuple) or not version or not all(isinstance(part, int) for part in version):
        msg = f"give a version as whole numbers, such as 2, 27, not {version!r}"
        raise TypeError(msg)
    return ".".join(map(str, version))


def skip_unsupported(operation: str, *, on: Collection[str] | None = None, device: str | None = None) -> Requirement:
    """The test uses ``operation``, which the cell's backend lacks (code 86, as torch's table has none of its own).

    Args:
        operation: Its name in the table of :mod:`allranks.testing.skips`, or any words, with ``on``.
        on: The backends that lack it; None for those of the table, which :func:`register_unsupported` extends.
        device: The type of device of the test's tensors; None for that of the ``device`` fixture.

    Raises:
        TypeError: ``on`` is a single string, not a collection of strings.
    """
    if isinstance(on, str):
        msg = f"give the backends as a list: on=[{on!r}]"
        raise TypeError(msg)

    def check() -> None:
        environment = RankEnvironment.read()
        if on is None:
            why = why_unsupported(operation, environment.backend, device or environment.device_type)
        else:
            why = lack(environment.backend, operation) if environment.backend in on else None
        if why is not None:
            skip(SkipCode.GENERIC, why)

    return Requirement(check)
