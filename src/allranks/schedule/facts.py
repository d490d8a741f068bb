"""What run.json says beside the jobs: where they come from, and the rules that they are judged by."""

import shlex
import sys

from allranks.matrix.expand import Expansion
from allranks.report.baseline import read_baseline
from allranks.report.run_files import DroppedCells, Manifest, Policy


def facts_of(expansion: Expansion) -> Manifest:
    """What a manifest says beside its jobs: command, policy, dropped cells."""
    matrix = expansion.matrix
    policy = matrix.policy
    return Manifest(
        command=shlex.join(["allranks", *sys.argv[1:]]),
        matrix=matrix.path.name,
        policy=Policy(
            skip=policy.skip,
            mixed_skip=policy.mixed_skip,
            baseline=read_baseline(matrix.root / policy.baseline) if policy.baseline else {},
        ),
        dropped=tuple(
            DroppedCells(rule=rule.when.source, reason=rule.reason, count=len(cells))
            for rule, cells in expansion.dropped.items()
        ),
    )
