"""Which tests of a suite are this job's, and a drawn order of them.

Each job collects all tests and computes the same split as the others, so that no test is lost or run twice. The split
depends on the tests and their known durations, but on nothing that could differ between jobs, such as their order.
"""

import hashlib
import heapq
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from allranks.agent.program import ItemOptions
from allranks.protocol.config import JobShard
from allranks.protocol.xml_text import xml_id

if TYPE_CHECKING:
    import pytest


def shuffled(items: "Sequence[pytest.Item]", seed: int) -> "list[pytest.Item]":
    """Shuffle tests, but keep those of a file and of a class together.

    A test's position depends only on the seed and its name, so any subset of the tests keeps its relative order.
    """
    return sorted(items, key=lambda item: _place(item, seed))


def _place(item: "pytest.Item", seed: int) -> list[str]:
    return [drawn(seed, node.nodeid) for node in item.listchain() if node.nodeid]


def drawn(seed: int, name: str) -> str:
    """The sort key of a name under this seed."""
    return hashlib.sha256(f"{seed} {name}".encode(errors="surrogatepass")).hexdigest()


GANG_SECONDS = 0.2
"""Overhead of a unit, mostly the start of its ranks: 0.1 to 0.6 s on two cores, idle to overloaded.

Without it, a hundred tests of a millisecond, each in its own ranks, would weigh no more than one of 0.1 s. With it, the
longest of 2, 4 or 8 shards of torch's distributed_test is within 2 % of the mean if the true value is 0.1 to 0.5 s.
"""

UNKNOWN_SECONDS = 1.0
"""The assumed duration of a test if no durations are known."""


@dataclass(frozen=True, kw_only=True)
class Unit:
    """Tests that stay together."""

    members: tuple[int, ...]  # their indices in the collection
    name: str  # the smallest of their names, which breaks ties between units of equal length
    seconds: float


@dataclass(frozen=True, kw_only=True)
class OwnShare:
    """This job's part of the suite."""

    items: "tuple[pytest.Item, ...]"  # its tests, in collection order
    skipped: tuple[str, ...]  # its modules that skipped themselves
    split: str  # a digest of all shares, equal in all jobs that computed the same split
    elsewhere: int  # the number of collected tests and skipped modules that belong to other jobs


def take_share(
    items: "Sequence[pytest.Item]", terms: Sequence[ItemOptions], skipped: Sequence[str], share: JobShard
) -> OwnShare:
    """Select this job's part of the collected tests; the first share reports modules that skipped themselves."""
    names = [xml_id(item.nodeid) for item in items]
    keys = [unit_key(item, each) for item, each in zip(items, terms, strict=True)]
    shares = split(units(keys, expected_seconds(names, share.seconds), names), share.count)
    own = shares[share.number - 1]
    own_skipped = tuple(skipped) if share.number == 1 else ()
    return OwnShare(
        items=tuple(items[index] for index in own),
        skipped=own_skipped,
        split=digest([[*skipped], *([names[index] for index in members] for members in shares)]),
        elsewhere=len(items) - len(own) + len(skipped) - len(own_skipped),
    )


def unit_key(item: "pytest.Item", terms: ItemOptions) -> Hashable:
    """The key of a test's unit: tests with equal keys stay together.

    If ranks outlive a test, its unit is its file, so that module fixtures are set up once. That includes
    ``isolation = "job"``, where the whole job would else be one unit. A class that keeps its ranks is a unit; so is
    every other test.
    """
    return ("file", str(item.path)) if terms.gang[0] in {"file", "job"} else terms.gang


def expected_seconds(names: Sequence[str], known: Mapping[str, float]) -> list[float]:
    """The expected duration of each test: its known duration, else the median of all known ones."""
    # Not `statistics.median`: neither torch nor pytest imports `statistics`, so each agent would have to.
    usual = sorted(known.values())[len(known) // 2] if known else UNKNOWN_SECONDS
    return [known.get(name, usual) for name in names]


def units(keys: Sequence[Hashable], seconds: Sequence[float], names: Sequence[str]) -> list[Unit]:
    """Group the tests with equal keys into units."""
    members: dict[Hashable, list[int]] = {}
    for index, key in enumerate(keys):
        members.setdefault(key, []).append(index)
    return [
        Unit(
            members=tuple(indices),
            name=min(names[index] for index in indices),
            # fsum is exact, so the sum does not depend on the order of collection.
            seconds=math.fsum([GANG_SECONDS, *(seconds[index] for index in indices)]),
        )
        for indices in members.values()
    ]


def split(parts: Sequence[Unit], count: int) -> list[tuple[int, ...]]:
    """Distribute units over shares of about equal length; returns each share's tests in collection order.

    The longest unit goes first, each to the shortest share so far (LPT: R. L. Graham, "Bounds on multiprocessing timing
    anomalies", 1969): the longest share is at most 4/3 - 1/(3 count) times as long as in the best split.
    """
    shares: list[list[int]] = [[] for _ in range(count)]
    loads = [(0.0, number) for number in range(count)]
    for unit in sorted(parts, key=lambda unit: (-unit.seconds, unit.name, unit.members)):
        load, number = loads[0]
        shares[number] += unit.members
        heapq.heapreplace(loads, (load + unit.seconds, number))
    return [tuple(sorted(members)) for members in shares]


def digest(shares: Sequence[Sequence[str]]) -> str:
    """A short digest of shares that ignores the order of collection within each."""
    lines = [f"{number} {name}" for number, names in enumerate(shares) for name in names]
    return hashlib.sha256("\n".join(sorted(lines)).encode(errors="surrogatepass")).hexdigest()[:16]
