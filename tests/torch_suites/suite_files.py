"""The suites of suites/torch, their names in a matrix file, and the two lists that are measured."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]

CELL: Final = "gloo-w2-g0-file"
"""The cell that outcomes are recorded and compared in."""


@dataclass(frozen=True, kw_only=True)
class Suite:
    """One of torch's suites.

    Attributes:
        file: Where it is bound to a cell, relative to the repository.
    """

    name: str
    file: str


SUITES: Final[Mapping[str, Suite]] = {
    name: Suite(name=name, file=f"suites/torch/{file}")
    for name, file in (
        ("torch-c10d", "c10d/test_distributed.py"),
        ("torch-rpc", "rpc/test_rpc.py"),
        ("torch-dist-autograd", "rpc/test_dist_autograd.py"),
        ("torch-dist-optimizer", "rpc/test_dist_optimizer.py"),
        ("torch-ddp-rpc", "rpc/test_ddp_under_dist_autograd.py"),
        ("torch-rpc-faulty", "rpc/test_faulty_agent.py"),
    )
}

LISTS: Final[Mapping[str, tuple[str, ...]]] = {
    "c10d": ("torch-c10d",),
    "rpc": ("torch-rpc", "torch-dist-autograd", "torch-dist-optimizer", "torch-ddp-rpc"),
}
"""torch's two long lists: ``distributed_test``; and the generic and the TensorPipe tests of RPC."""

Selection = Mapping[str, tuple[str, ...]]
"""Names of tests, ``Class::test``, by suite; none for all tests of a suite."""


def suite_of(nodeid: str) -> str | None:
    """The suite that a test of a run belongs to, whatever the job was called; None for what is no test of torch's."""
    file = nodeid.partition("::")[0]
    return next((suite.name for suite in SUITES.values() if suite.file == file), None)


def suite_of_module(module: str) -> str:
    """The suite whose file was imported by this name."""
    stem = module.rpartition(".")[2]
    return next(suite.name for suite in SUITES.values() if Path(suite.file).stem == stem)


def node_ids(suite: str, tests: tuple[str, ...]) -> tuple[str, ...]:
    """What names these tests of a suite to pytest; the suite's file for all."""
    file = SUITES[suite].file
    return tuple(f"{file}::{test}" for test in tests) or (file,)


class UnknownSuiteError(Exception):
    """There is no suite of that name."""


def read_selection(arguments: list[str]) -> Selection:
    """What a command line names: ``SUITE``, or ``SUITE::Class::test``; nothing for all suites.

    Raises:
        UnknownSuiteError: With the names that there are.
    """
    selection: dict[str, tuple[str, ...]] = {}
    for argument in arguments or SUITES:
        suite, _, test = argument.partition("::")
        if suite not in SUITES:
            msg = f"There is no suite {suite}: name one of {', '.join(SUITES)}, or a test of one, SUITE::Class::test."
            raise UnknownSuiteError(msg)
        selection[suite] = (*selection.get(suite, ()), test) if test else ()
    return selection
