"""A test that is collected three times fails the first time on rank 1, and passes later."""

from pathlib import Path

TRUTH = {
    "tests": {"test_attack": {"ranks": ["any", "any"], "one_is_bad": True, "count": 3, "may_be_absent": True}},
}


def test_attack(rank):
    seen = Path("rank-1-was-here")
    if rank == 1 and not seen.exists():
        seen.touch()
        raise AssertionError
