"""Requirements: tests are skipped, with one of torch's exit codes, if the environment does not meet them.

There are three ways to use a :class:`Requirement`. It is checked in the rank when the test runs, never when the suite
is imported::

    @require_gpus(2)                      # on a function, a method, or a class
    def test_peer_copy(device): ...

    @pytest.mark.require_gpus(2)          # as a marker, which needs no import and also works in pytestmark
    def test_peer_copy(device): ...

    def test_checkpoint(backend):
        require_gpus(2).check()           # inside a test; without .check() it has no effect

Decorators and markers skip the test before any fixture is set up, so the ranks can be kept for the next test.

Each description below states the exit codes in torch's table (``torch.testing._internal.common_distributed``). Code 86
is used if the table has no code for a requirement.
"""

import functools
import importlib
import inspect
import itertools
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Final, NoReturn, TypeVar

from allranks.agent.environment_skips import EnvironmentSkip
from allranks.protocol.skip_codes import SkipCode, multi_gpu
from allranks.protocol.unsupported import lack
from allranks.testing.environment import RankEnvironment


def _check_number(n: object, what: str) -> None:
    """Check an argument of a requirement, which ``what`` describes.

    Raises:
        TypeError: It is not an integer, most often because the parentheses of a decorator are missing.
        ValueError: It is less than 1.
    """
    if not isinstance(n, int) or isinstance(n, bool):
        msg = f"{what} must be an integer, not {n!r}"
        raise TypeError(msg)
    if n < 1:
        msg = f"{what} must be at least 1, not {n}"
        raise ValueError(msg)


Test = TypeVar("Test", bound=Callable[..., object])

REQUIREMENTS_ATTRIBUTE = "allranks_requirements"
"""The attribute of a decorated test or class that contains its requirements in the order of their checks."""


def skip(code: SkipCode, detail: str = "", *, gpus: int | None = None) -> NoReturn:
    """Skip the running test with one of torch's exit codes.

    Args:
        code: The exit code. The message starts with its reason.
        detail: What is missing on this machine; added to the message.
        gpus: The number of GPUs that the test needs, if the code does not imply it (torch's codes end at 8 GPUs).

    Raises:
        EnvironmentSkip: Always.
    """
    raise EnvironmentSkip(code, detail, gpus)


def _skip_for_gpus(needed: int, present: int, of: str = "") -> NoReturn:
    skip(multi_gpu(needed), f"{present} of {needed}{of}", gpus=needed)


@dataclass(frozen=True)
class Requirement:
    """Something that a test needs from its environment.

    Use it as a decorator of a test or class, or call :meth:`check` inside a test.

    Attributes:
        check: A function that raises :class:`EnvironmentSkip` if the requirement is not met.
    """

    check: Callable[[], None]

    def __call__(self, test: Test) -> Test:
        """Skip a test, or all tests of a class, if the requirement is not met.

        On a class, the requirement also applies to tests of derived and nested classes. Methods whose names start with
        ``test``, including inherited ones, are skipped even if allranks' pytest plugin is not loaded.

        Args:
            test: A test function, a test method, or a class.

        Returns:
            The decorated function, or the same class.

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
            msg = f"a requirement can only decorate a test function or class, not {test!r}"
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
    """The requirements with which a test or a class was decorated, outermost first."""
    found: tuple[Requirement, ...] = getattr(test, REQUIREMENTS_ATTRIBUTE, ())
    return found


def require_world_size(minimum: int) -> Requirement:
    """The test needs at least ``minimum`` ranks (code 73)."""
    _check_number(minimum, "the number of ranks")

    def check() -> None:
        world_size = RankEnvironment.read().world_size
        if world_size < minimum:
            skip(SkipCode.SMALL_WORLD_SIZE, f"world size {world_size}, at least {minimum} needed")

    return Requirement(check)


def skip_if_small_world_size(minimum: int) -> Requirement:
    """The same as :func:`require_world_size`: the test needs at least ``minimum`` ranks (code 73)."""
    return require_world_size(minimum)


def require_exact_world_size(n: int) -> Requirement:
    """The test needs exactly ``n`` ranks (code 73 if there are fewer, 86 if there are more)."""
    minimum = require_world_size(n)

    def check() -> None:
        minimum.check()
        world_size = RankEnvironment.read().world_size
        if world_size > n:
            skip(SkipCode.GENERIC, f"the test needs a world size of {n}, not {world_size}")

    return Requirement(check)


def _check_even_world_size() -> None:
    world_size = RankEnvironment.read().world_size
    if world_size % 2:
        skip(SkipCode.ODD_WORLD_SIZE, f"world size {world_size}")


skip_if_odd_world_size = Requirement(_check_even_world_size)
"""The test needs an even number of ranks (code 87)."""


def _check_gpus(n: int) -> None:
    import torch

    if not torch.cuda.is_available():
        skip(SkipCode.NO_CUDA, gpus=n)
    if torch.cuda.device_count() < n:
        _skip_for_gpus(n, torch.cuda.device_count())


def require_gpus(n: int, *, on: str | None = None) -> Requirement:
    """The test needs ``n`` GPUs that are visible to the rank (codes 74, 75, 77, 80 to 85).

    Args:
        n: The number of GPUs.
        on: The backend of the cells in which they are required, such as ``"nccl"``; None for all cells.
    """
    _check_number(n, "the number of GPUs")

    def check() -> None:
        if on is None or on == RankEnvironment.read().backend:
            _check_gpus(n)

    return Requirement(check)


require_gpu = require_gpus(1)
"""The test needs a GPU (code 74)."""


def require_gpus_or_none(n: int) -> Requirement:
    """The test needs ``n`` GPUs, or no GPU at all: then it runs on the CPU (codes 75, 77, 80 to 85)."""
    _check_number(n, "the number of GPUs")

    def check() -> None:
        import torch

        if torch.cuda.is_available():
            _check_gpus(n)

    return Requirement(check)


require_gpu_per_rank = Requirement(lambda: _check_gpus(RankEnvironment.read().local_world_size))
"""The test needs one GPU for each rank on this node (codes 74, 75, 77, 80 to 85)."""


def require_accelerators(n: int) -> Requirement:
    """The test needs ``n`` accelerators of any kind that torch supports (codes 89, 75, 77, 80 to 85)."""
    _check_number(n, "the number of accelerators")

    def check() -> None:
        import torch

        count = torch.accelerator.device_count() if torch.accelerator.is_available() else 0
        if count == 0:
            skip(SkipCode.NO_ACCELERATOR, gpus=n)
        if count < n:
            _skip_for_gpus(n, count, " accelerators")

    return Requirement(check)


require_accelerator = require_accelerators(1)
"""The test needs an accelerator of any kind that torch supports (code 89)."""


def _check_peer_access() -> None:
    import torch

    _check_gpus(2)
    for one, other in itertools.permutations(range(torch.cuda.device_count()), 2):
        if not torch.cuda.can_device_access_peer(one, other):
            skip(SkipCode.NO_PEER_ACCESS, f"GPU {one} cannot access the memory of GPU {other}")


require_peer_access = Requirement(_check_peer_access)
"""The test needs at least two GPUs (codes 74, 77), all of which can access each other's memory (code 79)."""


def require_compute_capability(major: int, minor: int = 0) -> Requirement:
    """The test needs CUDA GPUs of at least this compute capability (codes 74, 78, 86).

    Args:
        major: The major version, such as 9.
        minor: The minor version.
    """
    _check_number(major, "the major version")

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
    """The test does not apply to AMD GPUs of these architectures (code 78).

    Args:
        names: Names of architectures, such as ``"gfx906"``.
    """

    def check() -> None:
        import torch

        if torch.version.hip is None or not torch.cuda.is_available():
            return
        # The name is followed by features: gfx90a:sramecc+:xnack-
        architecture = str(torch.cuda.get_device_properties(0).gcnArchName).split(":", maxsplit=1)[0]
        if architecture in names:
            skip(SkipCode.ROCM, f"this GPU is a {architecture}")

    return Requirement(check)


def skip_if_rocm_older(major: int, minor: int = 0) -> Requirement:
    """On ROCm, the test needs at least this version (code 78); on other platforms, it always runs.

    Args:
        major: The major version of ROCm.
        minor: The minor version.
    """
    _check_number(major, "the major version")

    def check() -> None:
        import torch

        version = torch.version.hip
        if version is not None and _numbers(version) < (major, minor):
            skip(SkipCode.ROCM, f"ROCm {version} is older than {major}.{minor}")

    return Requirement(check)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("-", maxsplit=1)[0].split(".") if part.isdigit())


EVERY_DEVICE: Final = ""
"""The key of operations that a backend does not support on any device."""

_GLOO_ONLY: Final = frozenset({"all_gather_coalesced", "recv from any source", "monitored_barrier"})

# For torch 2.13, from its list of collectives to skip (DistTestCases), its documentation of monitored_barrier, and, for
# gloo and NCCL, the results of suites/collectives. A conformance run checks these entries and finds more.
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
                *_GLOO_ONLY,
                "all_reduce of a tensor that is not contiguous",
                "all_reduce of sparse tensors",
                "bitwise reduction",
                "broadcast of a tensor that is not contiguous",
                "reduce_scatter of complex numbers",
                "tags",
            }
        },
        "mpi": {EVERY_DEVICE: {"all_gather_coalesced", "monitored_barrier"}},
        "ucc": {EVERY_DEVICE: _GLOO_ONLY, "cpu": {"barrier"}},
        "xccl": {EVERY_DEVICE: _GLOO_ONLY},
    }
)

# Global to the process, like torch's registry of backends: suites fill it when they import their backend.
_registered: dict[str, dict[str, frozenset[str]]] = {}


def register_unsupported(backend: str, operations: Collection[str], *, device: str = EVERY_DEVICE) -> None:
    """Declare operations that a backend does not support, for :func:`skip_unsupported`.

    Call this in a file that all ranks import, such as ``conftest.py``.

    Args:
        backend: The name of the backend; the case does not matter.
        operations: The names that tests pass to :func:`skip_unsupported`.
        device: The type of device, such as ``"cuda"``, on which they are not supported; by default, all types.

    Raises:
        TypeError: ``operations`` is a single string instead of a collection of strings.
    """
    if isinstance(operations, str):
        msg = f"pass the operations as a list: [{operations!r}]"
        raise TypeError(msg)
    by_device = _registered.setdefault(backend.lower(), {})
    by_device[device] = by_device.get(device, frozenset()) | frozenset(operations)


def unsupported_operations(backend: str, device: str = EVERY_DEVICE) -> frozenset[str]:
    """The operations that a backend is known not to support.

    Args:
        backend: The name of the backend; the case does not matter.
        device: A type of device, such as ``"cuda"``; by default, operations that are not supported on any device.

    Returns:
        The names of the operations.
    """
    name = backend.lower()
    tables = (_KNOWN.get(name, {}), _registered.get(name, {}))
    return frozenset(chain.from_iterable(table.get(key, ()) for table in tables for key in (EVERY_DEVICE, device)))


def why_unsupported(operation: str, backend: str, device: str) -> str | None:
    """Why a backend does not support an operation with tensors on a type of device; None if it may support it."""
    from torch.distributed import Backend

    devices = Backend.backend_capability.get(backend.lower())
    if devices is not None and device not in devices:
        return lack(backend, f"tensors on {device}")
    if operation in unsupported_operations(backend):
        return lack(backend, operation)
    return lack(backend, f"{operation} on {device}") if operation in unsupported_operations(backend, device) else None


def _skip_if(condition: Callable[[], object], code: SkipCode, detail: str = "") -> Requirement:
    def check() -> None:
        if condition():
            skip(code, detail)

    return Requirement(check)


skip_if_windows = _skip_if(lambda: sys.platform == "win32", SkipCode.GENERIC, "this test does not apply to Windows")
"""The test does not apply to Windows (code 86)."""


def require_imports(*names: str) -> Requirement:
    """The test needs these modules (code 88).

    The test is skipped only if a module is not found. If importing it fails for any other reason, the test fails.

    Args:
        names: Names of modules, such as ``"transformers"``.

    Raises:
        TypeError: No name was given, or a name is not a string.
    """
    _check_names(names, "modules, such as 'transformers'")

    def check() -> None:
        for name in names:
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as error:
                skip(SkipCode.MISSING_IMPORT, f"no module named {error.name or name}")

    return Requirement(check)


def skip_because(reason: str) -> Requirement:
    """Skip the test unconditionally (code 86).

    Args:
        reason: The reason in the report.

    Raises:
        TypeError: The reason is not a string, or is empty.
    """
    return skip_when(lambda: True, reason)


def skip_when(condition: Callable[[], object], reason: str) -> Requirement:
    """Skip the test if a condition is true (code 86).

    Args:
        condition: A function without parameters. It is called in each rank when the test runs, and must return the same
            value on all ranks: otherwise some ranks would run the test, and wait for the others.
        reason: The reason in the report.

    Raises:
        TypeError: The condition is not callable, or the reason is not a string or is empty.
    """
    if not callable(condition):
        msg = f"the condition must be a function, such as lambda: ..., not {condition!r}"
        raise TypeError(msg)
    if not isinstance(reason, str) or not reason.strip():
        msg = f"the reason must be a non-empty string, not {reason!r}"
        raise TypeError(msg)
    return _skip_if(condition, SkipCode.GENERIC, reason)


Version = tuple[int, ...]


def require_backend_available(*names: str) -> Requirement:
    """The test needs a torch that has at least one of these backends, whatever the cell's backend is (code 72).

    Args:
        names: Names of backends, such as ``"gloo"``.

    Raises:
        TypeError: No name was given, or a name is not a string.
    """
    _check_names(names)

    def is_missing() -> bool:
        from torch.distributed import is_backend_available

        return not any(map(is_backend_available, names))

    return _skip_if(is_missing, SkipCode.BACKEND_UNAVAILABLE, f"this torch has no {' and no '.join(names)}")


def require_backend_in(*names: str) -> Requirement:
    """The cell's backend must be one of these (code 72).

    Args:
        names: Names of backends, in lower case, such as ``"gloo"``.

    Raises:
        TypeError: No name was given, or a name is not a string.
    """
    _check_names(names)

    def check() -> None:
        if (backend := RankEnvironment.read().backend) not in names:
            skip(SkipCode.BACKEND_UNAVAILABLE, f"the test is for {' and '.join(names)}, and this cell runs {backend}")

    return Requirement(check)


def _check_names(names: Collection[object], of: str = "backends, such as 'gloo' and 'nccl'") -> None:
    if not names or not all(isinstance(name, str) for name in names):
        msg = f"pass names of {of}, not {names!r}"
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


require_nccl = _skip_if(_has_no_nccl, SkipCode.NO_NCCL)
"""The test needs a torch built with NCCL (code 76)."""


def require_nccl_version(*minimum: int) -> Requirement:
    """The test needs NCCL (code 76), at least in this version (code 86).

    Args:
        minimum: The parts of the version: ``require_nccl_version(2, 27)``.

    Raises:
        TypeError: The version does not consist of integers.
    """
    return _check_nccl_version(lambda version: version >= minimum, f"the test needs at least {_dotted(minimum)}")


def skip_nccl_versions(first: Version, fixed: Version) -> Requirement:
    """The test needs NCCL (code 76), but does not work with some versions of it (code 86).

    Args:
        first: The first version with which the test fails, such as ``(2, 20)``.
        fixed: The first later version with which it works again.

    Raises:
        TypeError: A version is not a tuple of integers.
        ValueError: ``fixed`` is not later than ``first``.
    """
    versions = f"from {_dotted(first)} up to, but not including, {_dotted(fixed)}"
    if first >= fixed:
        msg = f"there are no NCCL versions {versions}: pass the older version first"
        raise ValueError(msg)
    return _check_nccl_version(
        lambda version: not first <= version < fixed, f"the test does not work with versions {versions}"
    )


def _check_nccl_version(is_supported: Callable[[Version], bool], reason: str) -> Requirement:
    def check() -> None:
        require_nccl.check()
        import torch

        version: Version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
        if not is_supported(version):
            skip(SkipCode.GENERIC, f"this torch has NCCL {_dotted(version)}, and {reason}")

    return Requirement(check)


def _dotted(version: object) -> str:
    """Format a version.

    Raises:
        TypeError: It is not a tuple of integers.
    """
    if not isinstance(version, tuple) or not version or not all(isinstance(part, int) for part in version):
        msg = f"pass the version as integers, such as 2, 27, not {version!r}"
        raise TypeError(msg)
    return ".".join(map(str, version))


def skip_unsupported(operation: str, *, on: Collection[str] | None = None, device: str | None = None) -> Requirement:
    """Skip the test if the cell's backend does not support an operation (code 86).

    Args:
        operation: The name of the operation. Without ``on``, it must be known: see :func:`unsupported_operations`.
        on: The backends that do not support the operation. By default, the known ones are used, including those of
            :func:`register_unsupported`.
        device: The type of device of the test's tensors, such as ``"cuda"``; by default, that of ``device``.

    Raises:
        TypeError: ``on`` is a single string instead of a collection of strings.
    """
    if isinstance(on, str):
        msg = f"pass the backends as a list: on=[{on!r}]"
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
