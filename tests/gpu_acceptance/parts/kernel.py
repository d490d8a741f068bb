"""The kernel: which of the features that allranks relies on it has."""

from allranks.agent import kernel
from gpu_acceptance.bench import Bench


def features(bench: Bench) -> str:
    """The features that are there, and what is done without the others."""
    found = kernel.check()
    bench.check(not found.refusal, f"{found.refusal} {kernel.REMEDY}")
    bench.figure = f"{len(found.found)} of {len(found.found) + len(found.missing)} features"
    return found.summary
