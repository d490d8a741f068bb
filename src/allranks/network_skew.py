"""What ``--network`` does to connections between nodes: drawn from a seed, or named one by one."""

import math
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

from allranks.network_helper import LOST
from allranks.skew import OFF, milliseconds

_NAMED: Final = re.compile(
    r"(?P<one>\d{1,4})-(?P<other>\d{1,4}):"
    r"((?P<kind>late|loss|rate|cut):(?P<value>\d{1,6}(\.\d{1,6})?)(?P<unit>ms|%|mbit)(:(?P<first>[1-9]\d{0,8}))?|cut)",
    re.ASCII,
)

_UNITS: Final = {"late": ("ms", 1e-3), "loss": ("%", 1e-2), "rate": ("mbit", 1e6), "cut": ("ms", 1e-3)}
"""How a kind's value is written, and what one of these units is."""

_FIRST: Final = 64
"""A partition that is drawn begins before this packet of a node."""


@dataclass(frozen=True, kw_only=True)
class NetworkLevel:
    """How much connections are disturbed.

    Attributes:
        most: Seconds that what one node receives from another is delayed by in a repetition, at most.
        ranges: For each kind, the least and the most of its value.
    """

    most: float
    ranges: dict[str, tuple[float, float]]


NETWORK_LEVELS: Final = {
    "light": NetworkLevel(
        most=1.0, ranges={"late": (1e-4, 0.02), "loss": (0.002, 0.02), "rate": (5e7, 1e9), "cut": (0.005, 0.2)}
    ),
    "heavy": NetworkLevel(
        most=4.0, ranges={"late": (1e-3, 0.2), "loss": (0.01, 0.1), "rate": (1e6, 1e8), "cut": (0.02, 1.5)}
    ),
}
"""The longest partition costs less than `most`: TCP tries again after up to twice its time."""

MOST_NAMED: Final = 30.0
"""Seconds, see :class:`NetworkLevel`, of a disturbance that is named; a partition has its own end, or none."""


@dataclass(frozen=True, kw_only=True)
class Disturbance:
    """What happens to packets between two nodes, in both directions.

    Attributes:
        kind: ``late``, ``loss``, ``rate`` or ``cut``.
        value: Seconds, a share of packets, bits in a second, or seconds.
        first: The packet of each node from which on it holds, from 1.
    """

    one: int
    other: int
    kind: str
    value: float
    first: int = 1

    def __str__(self) -> str:
        """``0-1:late:20ms``, as ``--network`` takes it."""
        if math.isinf(self.value):
            return f"{self.one}-{self.other}:{self.kind}"
        unit, size = _UNITS[self.kind]
        since = "" if self.first == 1 else f":{self.first}"
        return f"{self.one}-{self.other}:{self.kind}:{float(f'{self.value / size:.3g}'):g}{unit}{since}"

    @property
    def words(self) -> str:
        """``a partition of 800 ms between nodes 0 and 1, from packet 7 on``."""
        match self.kind:
            case "late":
                what = f"a delay of {milliseconds(self.value)} ms"
            case "loss":
                what = f"a loss of {100 * self.value:.3g} %"
            case "rate":
                what = f"a rate of {self.value / 1e6:.3g} Mbit/s"
            case _:
                what = "a partition" if math.isinf(self.value) else f"a partition of {milliseconds(self.value)} ms"
        since = "" if self.first == 1 else f", from packet {self.first} on"
        return f"{what} between nodes {self.one} and {self.other}{since}"


def disturbances(network: str, seed: int, nodes: int) -> tuple[Disturbance, ...]:
    """What is disturbed in the repetition with this seed: of a level, half of all pairs of nodes, in one way each.

    Args:
        network: ``off``, a level, or disturbances as :func:`network_of` writes them.
        seed: The repetition's.
        nodes: How many there are.
    """
    if network not in NETWORK_LEVELS:
        return named_disturbances(network)
    level, found = NETWORK_LEVELS[network], []
    for one, other in combinations(range(nodes), 2):
        draw = random.Random(f"{seed}:{one}-{other}")  # noqa: S311 - replayed by its seed
        if draw.random() < 0.5:
            continue
        kind = tuple(level.ranges)[int(len(level.ranges) * draw.random())]
        least, most = level.ranges[kind]
        value = least * (most / least) ** draw.random()
        first = int(_FIRST ** draw.random()) if kind == "cut" else 1
        found.append(Disturbance(one=one, other=other, kind=kind, value=value, first=first))
    return tuple(found)


def named_disturbances(network: str) -> tuple[Disturbance, ...]:
    """Disturbances that are named one by one; none for ``off``.

    Raises:
        ValueError: The text names none.
    """
    return () if network == OFF else tuple(map(_parsed, network.split(",")))


def network_of(named: Iterable[Disturbance]) -> str:
    """The text of disturbances that :func:`named_disturbances` reads."""
    return ",".join(map(str, named)) or OFF


def nodes_needed(network: str) -> int:
    """How many nodes a cell needs for that."""
    return 2 if network in NETWORK_LEVELS else 1 + max(each.other for each in named_disturbances(network))


def network_stretch(network: str, nodes: int) -> float:
    """Seconds that disturbances may add to a repetition: nodes may wait for each other, one after the other."""
    if network in NETWORK_LEVELS:
        return NETWORK_LEVELS[network].most * nodes * (nodes - 1)
    ends = (2 * each.value + LOST if each.kind == "cut" else MOST_NAMED for each in named_disturbances(network))
    return sum(2 * seconds for seconds in ends if not math.isinf(seconds))


def links(network: str, seed: int, found: Sequence[Disturbance], node: int) -> dict[str, dict[str, Any]]:
    """The terms of what a node receives, for its helper (:class:`allranks.network_helper.IncomingLink`), by sender."""
    most = NETWORK_LEVELS[network].most if network in NETWORK_LEVELS else MOST_NAMED
    pairs = [(each, each.other if node == each.one else each.one) for each in found if node in {each.one, each.other}]
    return {
        str(peer): {
            "kind": each.kind,
            "value": each.value,
            "first": each.first,
            "most": most,
            "seed": f"{seed}:{peer}-{node}",
        }
        for each, peer in pairs
    }


def _parsed(text: str) -> Disturbance:
    found = _NAMED.fullmatch(text)
    if found is not None and found["kind"] is None:
        value = math.inf
    elif found is not None and found["unit"] == _UNITS[found["kind"]][0]:
        value = float(found["value"]) * _UNITS[found["kind"]][1]
    else:
        value = 0.0
    if found is None or not value or int(found["one"]) >= int(found["other"]):
        msg = f"{text!r} is no disturbance: write 0-1:late:20ms, 0-1:loss:2%, 0-1:rate:10mbit, 0-1:cut:800ms or 0-1:cut"
        raise ValueError(msg)
    first = int(found["first"] or 1)
    return Disturbance(
        one=int(found["one"]), other=int(found["other"]), kind=found["kind"] or "cut", value=value, first=first
    )
