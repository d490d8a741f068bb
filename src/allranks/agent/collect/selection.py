"""Sharding and shuffling of a suite's tests.

Each job collects all tests and computes the same split, so that no test is lost or run twice. The split depends on the
tests and their known durations, and on nothing that could differ between jobs, such as the order of collection.
"""

import hashlib
import heapq
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from allranks.agent.program import ItemOptions
from allranks.protocol.config import JobShard
from allranks.protocol.grouping import by_key
from allranks.protocol.xml_text import xml_id

if TYPE_CHECKING:
    import pytest


def shuffled(items: "Sequence[pytest.Item]", seed: int) -> "list[pytest.Item]":
    """Shuffle tests, but keep those of each file and class together.

    A test's position depends only on the seed and its name, so any subset of the tests keeps its relative order.
    """
    return sorted(items, key=lambda item: [random_key(seed, node.nodeid) for node in item.listchain() if node.nodeid])


def random_key(seed: int, name: str) -> str:
    """The sort key of a name under this seed."""
    return hashlib.sha256(f"{seed} {name}".encode(errors="surrogatepass")).hexdigest()


GANG_SECONDS = 0.2
"""Assumed overhead of a unit, mostly the start of its ranks; measured: 0.1 s to 0.6 s on two cores, idle or overloaded.

Without it, a hundred tests of a millisecond, each in its own ranks, would count as much as one of 0.1 s. With it, the
longest of 2, 4 or 8 shards of torch's distributed_test is within 2 % of the mean if the true value is 0.1 to 0.5 s.
"""

UNKNOWN_SECONDS = 1.0
"""Assumed duration of a test if no durations are known."""


@dataclass(frozen=True, kw_only=True)
class Unit:
    """Tests that must be in the same shard."""

    members: tuple[int, ...]  # their indices in the collection
    name: str  # the smallest of their names, which breaks ties between units of equal length
    seconds: float  # expected duration


@dataclass(frozen=True, kw_only=True)
class OwnShard:
    """This job's shard of the suite."""

    items: "tuple[pytest.Item, ...]"  # its tests, in collection order
    skipped: tuple[str, ...]  # its modules that skipped themselves
    split: str  # a digest of all shards, equal in all jobs that computed the same split
    in_other_shards: int  # the number of collected tests and skipped modules


def take_shard(
    items: "Sequence[pytest.Item]", options: Sequence[ItemOptions], skipped: Sequence[str], shard: JobShard
) -> OwnShard:
    """Select this job's shard of the collected tests; the first shard reports modules that skipped themselves."""
    names = [xml_id(item.nodeid) for item in items]
    keys = [unit_key(item, item_options) for item, item_options in zip(items, options, strict=True)]
    shards = split(units(keys, expected_seconds(names, shard.seconds), names), shard.count)
    own = shards[shard.number - 1]
    own_skipped = tuple(skipped) if shard.number == 1 else ()
    return OwnShard(
        items=tuple(items[index] for index in own),
        skipped=own_skipped,
        split=digest([[*skipped], *([names[index] for index in members] for members in shards)]),
        in_other_shards=len(items) - len(own) + len(skipped) - len(own_skipped),
    )


def unit_key(item: "pytest.Item", options: ItemOptions) -> Hashable:
    """The key of a test's unit; tests with equal keys stay together.

    If ranks are kept for several tests, the unit is the file, so that module fixtures are set up once. This includes
    ``isolation = "job"``, where the whole job would otherwise be one unit. A class that keeps its ranks is one unit.
    Every other test is its own unit.
    """
    return ("file", str(item.path)) if options.gang[0] in {"file", "job"} else options.gang


def expected_seconds(names: Sequence[str], known: Mapping[str, float]) -> list[float]:
    """The expected duration of each test: its known duration, or the median of all known ones."""
    # Not `statistics.median`: neither torch nor pytest imports `statistics`, so it would take extra time in each agent.
    median = sorted(known.values())[len(known) // 2] if known else UNKNOWN_SECONDS
    return [known.get(name, median) for name in names]


def units(keys: Sequence[Hashable], seconds: Sequence[float], names: Sequence[str]) -> list[Unit]:
    """Group the tests with equal keys into units."""
    return [
        Unit(
            members=tuple(indices),
            name=min(names[index] for index in indices),
            # fsum is exact, so the sum does not depend on the order of collection.
            seconds=math.fsum([GANG_SECONDS, *(seconds[index] for index in indices)]),
        )
        for indices in by_key((key, index) for index, key in enumerate(keys)).values()
    ]


def split(parts: Sequence[Unit], count: int) -> list[tuple[int, ...]]:
    """Distribute units over shards of about equal length; returns each shard's tests in collection order.

    Units are assigned in order of decreasing length, each to the shortest shard so far (LPT: R. L. Graham, "Bounds on
    multiprocessing timing anomalies", 1969). The longest shard is at most 4/3 - 1/(3 count) times as long as in an
    optimal split.
    """
    shards: list[list[int]] = [[] for _ in range(count)]
    loads = [(0.0, number) for number in range(count)]
    for unit in sorted(parts, key=lambda unit: (-unit.seconds, unit.name, unit.members)):
        load, number = loads[0]
        shards[number] += unit.members
        heapq.heapreplace(loads, (load + unit.seconds, number))
    return [tuple(sorted(members)) for members in shards]


def digest(shards: Sequence[Sequence[str]]) -> str:
    """A short digest of shards that ignores the order of tests within each."""
    lines = [f"{number} {name}" for number, names in enumerate(shards) for name in names]
    return hashlib.sha256("\n".join(sorted(lines)).encode(errors="surrogatepass")).hexdigest()[:16]
