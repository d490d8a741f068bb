"""Finds torch's launcher test cases, where a suite has imported them, and has their ranks started as ours are."""

import sys
from collections.abc import Iterator

MODULE = "torch.testing._internal.common_distributed"
"""Where torch has its test cases."""


def adapt_torch_cases() -> Iterator[str]:
    """Adapt torch's base classes, once; to be called when the suite has been imported.

    Nothing of torch is imported for this: a suite that has not imported torch's module has no test of its classes.

    Yields:
        A notice for each class that this version of torch has in a form that is not known here, and that is left alone.
    """
    module = sys.modules.get(MODULE)
    if module is not None:
        from allranks.harness.torch_cases.kinds import adapt_all  # noqa: PLC0415 - 50 ms that most suites need not pay

        yield from adapt_all(module)
