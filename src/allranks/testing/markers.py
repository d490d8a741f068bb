"""Our markers: each requirement by its own name, and their values for a test."""

import functools
import inspect
import sys
import unittest
from collections.abc import Callable, Iterator
from types import FunctionType, MappingProxyType, ModuleType

import pytest

from allranks.testing import skips
from allranks.testing.skips import Requirement, requirements_of


def unregistered_mark(name: str, *args: str) -> pytest.MarkDecorator:
    """A mark that needs no registration.

    Under ``--strict-markers``, ``pytest.mark.NAME`` is an error if the plugin that registers NAME is not loaded, and a
    suite must not fail because of a mark that its author did not write.
    """
    return pytest.MarkDecorator(pytest.Mark(name, args, {}, _ispytest=True), _ispytest=True)


AGENT_MARKERS = (
    "no_process_group: this test makes its own process group, or needs none",
    "test_group(name): launcher tests of one group never overlap one another, such as tests that bind one port",
    "isolation(kind): how long the ranks of this test live: test, file or job",
    "time_limit(seconds): how long this test may take",
    "children_may_fail: this test expects processes that it starts to fail",
    "conformance(operation, feature, mode, group, dtype, ranks): what this test shows of a backend",
)


class WrongMarkerError(Exception):
    """One of our markers is misused: the message names the place, the error and the correct form."""


REQUIREMENT_MARKERS = MappingProxyType(
    {
        "require_accelerator": "the test needs an accelerator",
        "require_accelerators": "the test needs n accelerators of whatever kind this torch drives",
        "require_backend_available": "the test needs a torch that has one of these backends, whatever the cell's",
        "require_backend_in": "the test is about these backends, and the cell's own must be one of them",
        "require_compute_capability": "the test needs CUDA GPUs of at least this compute capability",
        "require_exact_world_size": "the test needs n ranks, no fewer and no more",
        "require_gloo": "the test needs a torch with gloo",
        "require_gpu": "the test needs a GPU",
        "require_gpu_per_rank": "each rank needs a GPU of its own",
        "require_gpus": "the test needs n GPUs that this rank can see",
        "require_gpus_or_none": "the test needs n GPUs, or runs on the CPU where there is none at all",
        "require_imports": "the test imports these modules, and each must be installed",
        "require_mpi": "the test needs a torch with MPI",
        "require_nccl": "the test needs a torch with NCCL",
        "require_nccl_version": "the test needs an NCCL of at least this version",
        "require_peer_access": "the GPUs must reach each other's memory",
        "require_ucc": "the test needs a torch with UCC",
        "require_world_size": "the test needs at least minimum ranks",
        "skip_because": "the surroundings of this test lack what reason says",
        "skip_if_odd_world_size": "the test needs an even world",
        "skip_if_rocm": "the test does not apply to ROCm",
        "skip_if_rocm_arch": "the test does not apply to AMD GPUs of these architectures, such as gfx906",
        "skip_if_rocm_older": "on ROCm the test needs at least this version of it; elsewhere it runs",
        "skip_if_small_world_size": "the test needs at least minimum ranks",
        "skip_if_windows": "the test does not apply to Windows",
        "skip_nccl_versions": "the test fails on the NCCL versions from first to before fixed",
        "skip_unsupported": "the test uses operation, which the cell's backend lacks",
        "skip_when": "the test is skipped where condition(), called in each rank when the test runs, is true",
    }
)
"""Each requirement of :mod:`allranks.testing.skips`, as a marker of its name: its description, in a line."""

_TESTING = "allranks.testing"
_HYPOTHESIS = "hypothesis."
"""Hypothesis makes a ``TestCase`` of each state machine; its author wrote none."""

_NAMES = frozenset({"isolation", "time_limit", *REQUIREMENT_MARKERS})


def marker_lines() -> Iterator[str]:
    """All markers, as ``pytest --markers`` shows them."""
    yield from AGENT_MARKERS
    for name, words in REQUIREMENT_MARKERS.items():
        yield f"{_usage(name)}: {words}"


def requirements_of_item(item: pytest.Item) -> Iterator[Requirement]:
    """All requirements of a test: from markers, closest first, then from decorators, classes first."""
    # All are created before the first is checked: a wrong marker is an error even if the test would be skipped.
    yield from [_of_marker(mark, item) for mark in item.iter_markers() if mark.name in REQUIREMENT_MARKERS]
    for node in item.listchain():
        if isinstance(node, pytest.Class):
            yield from requirements_of(node.obj)
    if isinstance(item, pytest.Function):
        yield from requirements_of(item.function)


def _maker(name: str) -> Callable[..., Requirement]:
    """What makes the requirement of this name from the marker's arguments."""
    named: Requirement | Callable[..., Requirement] = getattr(skips, name)
    return (lambda: named) if isinstance(named, Requirement) else named


def _of_marker(mark: pytest.Mark, item: pytest.Item) -> Requirement:
    make = _maker(mark.name)
    try:
        inspect.signature(make).bind(*mark.args, **mark.kwargs)
        return make(*mark.args, **mark.kwargs)
    except (TypeError, ValueError) as error:
        msg = f"@pytest.mark.{mark.name} on {item.nodeid}: {error}\nIt is written @pytest.mark.{_usage(mark.name)}."
        raise WrongMarkerError(msg) from error


def _usage(name: str) -> str:
    parameters = inspect.signature(_maker(name)).parameters.values()
    bare = [parameter.replace(annotation=parameter.empty) for parameter in parameters]
    return f"{name}{inspect.Signature(bare)}" if bare else name


def is_foreign(item: pytest.Item) -> bool:
    """Whether a test was written for another runner: a ``unittest.TestCase`` that uses nothing of allranks.

    It uses no class, fixture, marker or requirement of :mod:`allranks.testing`, its module imports nothing from there,
    and it makes a process group itself if it needs one. A function may use a group that is there without asking for it.
    """
    case = getattr(item, "cls", None)
    if case is None or not issubclass(case, unittest.TestCase):
        return False
    fixtures = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {}).values()
    return not (
        any(base.__module__.startswith((_TESTING, _HYPOTHESIS)) for base in case.__mro__)
        or any(definition.func.__module__.startswith(_TESTING) for each in fixtures for definition in each)
        or any(mark.name in _NAMES for mark in item.iter_markers())
        or any(requirements_of(place) for place in (case, getattr(item, "function", None)))
        or _imports_ours(case.__module__)
    )


@functools.cache
def _imports_ours(module: str) -> bool:
    """Whether a module has a name from allranks."""
    return any(_home(value).startswith("allranks.") for value in [*vars(sys.modules[module]).values()])


def _home(value: object) -> str:
    """The module that a value, or its type, is from."""
    if isinstance(value, ModuleType):
        return value.__name__
    return str((value if isinstance(value, type | FunctionType) else type(value)).__module__)
