"""Which tests of a suite are this job's, and a drawn order of them.

Each job collects all tests and makes the same split as the others, so that no test is lost or run twice: by what
tests have taken before, and by nothing else that could differ between them, the order of collection included.
"""

import hashlib
import heapq
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from allranks.harness.config import JobShard
from allranks.harness.program import TestOptions
from allranks.xml_text import xml_id

if TYPE_CHECKING:
    import pytest


def shuffled(items: "Sequence[pytest.Item]", seed: int) -> "list[pytest.Item]":
    """The tests in another order, those of a file and of a class together.

    Each has a place that depends on the seed and on its name alone, so that a few of them keep the order that they had
    among all.
    """
    return sorted(items, key=lambda item: _place(item, seed))


def _place(item: "pytest.Item", seed: int) -> list[str]:
    return [drawn(seed, node.nodeid) for node in item.listchain() if node.nodeid]


def drawn(seed: int, name: str) -> str:
    """What things of these names are sorted by."""
    return hashlib.sha256(f"{seed} {name}".encode(errors="surrogatepass")).hexdigest()


GANG_SECONDS = 0.2
"""What a unit costs besides its tests, its ranks' start above all: 0.1 to 0.6 s on two cores, idle to overloaded.

Without it a hundred tests of a millisecond, each in ranks of its own, would weigh no more than one of 0.1 s. With it
the longest of 2, 4 or 8 shards of torch's distributed_test is within 2 % of the mean, if 0.1 to 0.5 s is the truth.
"""

UNKNOWN_SECONDS = 1.0
"""What a test counts where nothing is known of any."""


@dataclass(frozen=True, kw_only=True)
class Unit:
    """Tests that stay together.

    Attributes:
        members: Their places in the collection.
        name: The smallest of their names, by which units of one length are told apart.
        seconds: How long they are expected to take.
    """

    members: tuple[int, ...]
    name: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class OwnShare:
    """What is this job's.

    Attributes:
        items: Its tests, in collection order.
        skipped: Its modules that skipped themselves.
        split: A digest of who runs what, the same in all jobs that made the same split.
        elsewhere: How many of the collected tests and skipped modules are other jobs'.
    """

    items: "tuple[pytest.Item, ...]"
    skipped: tuple[str, ...]
    split: str
    elsewhere: int


def take_share(
    items: "Sequence[pytest.Item]", terms: Sequence[TestOptions], skipped: Sequence[str], share: JobShard
) -> OwnShare:
    """This job's part of the collected tests.

    Args:
        items: All tests that the user's selection has left.
        terms: How each of them is run.
        skipped: Modules that skipped themselves when they were imported, by node id; the first share has them.
        share: Which part, of how many, and by which durations.
    """
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


def unit_key(item: "pytest.Item", terms: TestOptions) -> Hashable:
    """What a test has in common with those that it stays together with.

    Where ranks outlive a test, that is its file, also under ``isolation = "job"``: module fixtures are set up once, and
    a whole job would be one unit. A class that keeps its ranks is one, too; every other test is one by itself.
    """
    return ("file", str(item.path)) if terms.gang[0] in {"file", "job"} else terms.gang


def expected_seconds(names: Sequence[str], known: Mapping[str, float]) -> list[float]:
    """What each test is expected to take: what it took before, else the median of what is known."""
    # Not `statistics.median`: torch and pytest load no `statistics`, and every agent would for this.
    usual = sorted(known.values())[len(known) // 2] if known else UNKNOWN_SECONDS
    return [known.get(name, usual) for name in names]


def units(keys: Sequence[Hashable], seconds: Sequence[float], names: Sequence[str]) -> list[Unit]:
    """The tests with equal keys together."""
    members: dict[Hashable, list[int]] = {}
    for index, key in enumerate(keys):
        members.setdefault(key, []).append(index)
    return [
        Unit(
            members=tuple(indices),
            name=min(names[index] for index in indices),
            # Exact, so that another order of collection adds up to the same.
            seconds=math.fsum([GANG_SECONDS, *(seconds[index] for index in indices)]),
        )
        for indices in members.values()
    ]


def split(parts: Sequence[Unit], count: int) -> list[tuple[int, ...]]:
    """Deal units out to shares of about the same length; for each share its tests in collection order.

    The longest unit first, each to the share that has least (LPT: R. L. Graham, "Bounds on multiprocessing timing
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
    """A short text that is the same for the same shares, whatever order each was collected in."""
    lines = [f"{number} {name}" for number, names in enumerate(shares) for name in names]
    return hashlib.sha256("\n".join(sorted(lines)).encode(errors="surrogatepass")).hexdigest()[:16]
