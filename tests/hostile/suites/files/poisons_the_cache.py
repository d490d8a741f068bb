"""Rank 1 writes what pytest's cache never holds into it."""

import reach

TRUTH = {"tests": {"test_attack": ["honest", "any"]}}


def test_attack(rank, request):
    if rank == 1:
        folder = reach.Path(str(request.config.cache.mkdir("hostile"))).parent.parent
        for name in ("lastfailed", "nodeids", "stepwise"):
            path = folder / "v" / "cache" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b'{"\xff": [[[NaN')
