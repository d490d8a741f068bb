"""What run.json says beside the jobs: where they come from, and the rules that they are judged by."""

import shlex
import sys
from typing import Any

from allranks.matrix.expand import Expansion
from allranks.report.baseline import read_baseline


def facts_of(expansion: Expansion) -> dict[str, Any]:
    """What a manifest says beside its jobs: command, policy, dropped cells."""
    matrix = expansion.matrix
    dropped = [
        {"rule": rule.when.source, "reason": rule.reason, "count": count}
        for rule, count in expansion.dropped_by.items()
    ]
    return {
        "command": shlex.join(["allranks", *sys.argv[1:]]),
        "matrix": str(matrix.path.name),
        "policy": {
            "skip": matrix.policy.skip,
            "mixed_skip": list(matrix.policy.mixed_skip),
            "baseline": read_baseline(matrix.root / matrix.policy.baseline) if matrix.policy.baseline else None,
        },
        "dropped": dropped,
    }
