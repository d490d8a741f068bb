"""The pytest markers of allranks, and the requirements of a test."""

import functools
import inspect
import sys
import unittest
from collections.abc import Callable, Iterator
from itertools import chain
from types import FunctionType, MappingProxyType, ModuleType

import pytest

from allranks.testing import skips
from allranks.testing.skips import Requirement, requirements_of


def unregistered_mark(name: str, *args: str) -> pytest.MarkDecorator:
    """Create a mark that works without registration.

    With ``--strict-markers``, ``pytest.mark.NAME`` is an error if the plugin that registers NAME is not loaded. A suite
    must not fail because of a mark that allranks adds.
    """
    return pytest.MarkDecorator(pytest.Mark(name, args, {}, _ispytest=True), _ispytest=True)


AGENT_MARKERS = (
    "no_process_group: the test creates its own process group, or needs none",
    "test_group(name): multi-process tests of one group never run at the same time, such as tests with a fixed port",
    "isolation(kind): how long the ranks are kept: test, file or job",
    "time_limit(seconds): time limit of the test",
    "children_may_fail: the test's child processes may fail",
    "conformance(operation, feature, mode, group, dtype, ranks): the backend capability that the test checks",
)


class WrongMarkerError(Exception):
    """A marker has wrong arguments; the message contains the test, the error and the correct form."""


REQUIREMENT_MARKERS = MappingProxyType(
    {
        "require_accelerator": "the test needs an accelerator",
        "require_accelerators": "the test needs n accelerators of any kind",
        "require_backend_available": "the test needs a torch that has one of these backends, whatever the cell's",
        "require_backend_in": "the test needs one of these backends as the cell's backend",
        "require_compute_capability": "the test needs CUDA GPUs of at least this compute capability",
        "require_exact_world_size": "the test needs exactly n ranks",
        "require_gloo": "the test needs torch with gloo",
        "require_gpu": "the test needs a GPU",
        "require_gpu_per_rank": "each rank needs its own GPU",
        "require_gpus": "the test needs n GPUs that are visible to the rank",
        "require_gpus_or_none": "the test needs n GPUs, or a host without GPUs",
        "require_imports": "the test needs these modules",
        "require_mpi": "the test needs torch with MPI",
        "require_nccl": "the test needs torch with NCCL",
        "require_nccl_version": "the test needs an NCCL of at least this version",
        "require_peer_access": "the test needs GPUs that can access each other's memory",
        "require_ucc": "the test needs torch with UCC",
        "require_world_size": "the test needs at least minimum ranks",
        "skip_because": "skip the test with this reason",
        "skip_if_odd_world_size": "the test needs an even number of ranks",
        "skip_if_rocm": "the test does not apply to ROCm",
        "skip_if_rocm_arch": "the test does not apply to AMD GPUs of these architectures, such as gfx906",
        "skip_if_rocm_older": "on ROCm, the test needs at least this version",
        "skip_if_small_world_size": "the test needs at least minimum ranks",
        "skip_if_windows": "the test does not apply to Windows",
        "skip_nccl_versions": "the test does not work with NCCL versions from first up to, but not including, fixed",
        "skip_unsupported": "the test needs the operation, which some backends do not support",
        "skip_when": "skip the test if condition(), called in each rank when the test runs, is true",
    }
)
"""The requirements of :mod:`allranks.testing.skips` that can be used as markers, with a description of each."""

_TESTING = "allranks.testing"
_HYPOTHESIS = "hypothesis."
"""Hypothesis converts each state machine to a ``TestCase``, which the author of the suite did not write."""

_NAMES = frozenset({"isolation", "time_limit", *REQUIREMENT_MARKERS})


def marker_lines() -> Iterator[str]:
    """The descriptions of all markers for ``pytest --markers``."""
    yield from AGENT_MARKERS
    for name, description in REQUIREMENT_MARKERS.items():
        yield f"{_usage(name)}: {description}"


def requirements_of_item(item: pytest.Item) -> Iterator[Requirement]:
    """All requirements of a test: from markers, closest first, and then from decorators, classes first.

    Raises:
        WrongMarkerError: A marker has wrong arguments.
    """
    # All are created before the first one is checked, so a wrong marker is an error even if the test would be skipped.
    yield from [_from_marker(mark, item) for mark in item.iter_markers() if mark.name in REQUIREMENT_MARKERS]
    for node in item.listchain():
        if isinstance(node, pytest.Class):
            yield from requirements_of(node.obj)
    if isinstance(item, pytest.Function):
        yield from requirements_of(item.function)


def _factory(name: str) -> Callable[..., Requirement]:
    """The function that creates the requirement `name` from the marker's arguments."""
    requirement: Requirement | Callable[..., Requirement] = getattr(skips, name)
    return (lambda: requirement) if isinstance(requirement, Requirement) else requirement


def _from_marker(mark: pytest.Mark, item: pytest.Item) -> Requirement:
    create = _factory(mark.name)
    try:
        inspect.signature(create).bind(*mark.args, **mark.kwargs)
        return create(*mark.args, **mark.kwargs)
    except (TypeError, ValueError) as error:
        msg = f"@pytest.mark.{mark.name} on {item.nodeid}: {error}\nUsage: @pytest.mark.{_usage(mark.name)}"
        raise WrongMarkerError(msg) from error


def _usage(name: str) -> str:
    parameters = inspect.signature(_factory(name)).parameters.values()
    bare = [parameter.replace(annotation=parameter.empty) for parameter in parameters]
    return f"{name}{inspect.Signature(bare)}" if bare else name


def is_foreign(item: pytest.Item) -> bool:
    """Whether a test was written for another runner: a ``unittest.TestCase`` that does not use allranks.

    It uses no class, fixture, marker or requirement of :mod:`allranks.testing`, and its module imports nothing from
    allranks. Such a test creates the process group that it needs. Test functions are not foreign: they may use an
    existing group.
    """
    case = getattr(item, "cls", None)
    if case is None or not issubclass(case, unittest.TestCase):
        return False
    fixtures = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {}).values()
    return not (
        any(base.__module__.startswith((_TESTING, _HYPOTHESIS)) for base in case.__mro__)
        or any(definition.func.__module__.startswith(_TESTING) for definition in chain.from_iterable(fixtures))
        or any(mark.name in _NAMES for mark in item.iter_markers())
        or any(requirements_of(test) for test in (case, getattr(item, "function", None)))
        or _imports_allranks(case.__module__)
    )


@functools.cache
def _imports_allranks(module: str) -> bool:
    return any(_module_of(value).startswith("allranks.") for value in [*vars(sys.modules[module]).values()])


def _module_of(value: object) -> str:
    """The name of the module that defines a value or its type."""
    if isinstance(value, ModuleType):
        return value.__name__
    return str((value if isinstance(value, type | FunctionType) else type(value)).__module__)
