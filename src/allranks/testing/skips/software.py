"""What a test needs of backends, the operating system, and installed packages."""

import importlib
import sys
from collections.abc import Callable, Collection

from allranks.protocol.skip_codes import SkipCode
from allranks.protocol.unsupported import lack
from allranks.testing.environment import RankEnvironment
from allranks.testing.skips.backend_gaps import why_unsupported
from allranks.testing.skips.requirement import Requirement, skip


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
        operation: Its name in the table of :mod:`allranks.testing.skips.backend_gaps`, or any words, with ``on``.
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
