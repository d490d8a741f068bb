"""``rank-N.xml``: the events of one rank, rendered in pytest's JUnit dialect.

The agent renders it at the end of a job; when the agent is dead, the orchestrator does, from the same
events and with the same function. The standard library is enough.
"""

import heapq
import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree as ET

from allranks.harness.events import JOURNAL, Event, folders_with_ranks, rank_events, read_events
from allranks.harness.outcome import Outcome

_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_LIKE_ESCAPED = re.compile("#(?=x(?:[01][0-9A-F]|23|D[89A-F][0-9A-F]{2}|FFF[EF]))")
_ELEMENT = {
    Outcome.FAILED: "failure",
    Outcome.SKIPPED: "skipped",
    Outcome.XFAILED: "skipped",
    Outcome.ERRORED: "error",
    Outcome.CRASHED: "error",
    Outcome.TIMED_OUT: "error",
    Outcome.ABORTED: "error",
    Outcome.MISSING: "error",
}


@dataclass
class RankTest:
    """One test on one rank, put together from its events.

    Attributes:
        phases: ``phase`` events.
        ended: The agent's ``rank_ended`` event, where the rank could not finish.
        arrived: The leading agent's ``arrived`` event.
        output: The ``output`` event: what the rank printed in the test, where it did not pass.
        world_size: The size of the world that the test ran in; None where no event says.
    """

    nodeid: str
    phases: list[Event] = field(default_factory=list)
    ended: Event | None = None
    arrived: Event | None = None
    finished: bool = False
    output: Event | None = None
    world_size: int | None = None

    @property
    def deciding(self) -> Event:
        """The event that says what the rank came to."""
        # What goes wrong while a condemned gang tears down is a consequence of what condemned it.
        timely = [phase for phase in self.phases if not phase.get("late")]
        bad = next((phase for phase in timely if Outcome(phase["outcome"]).is_bad), None)
        if bad is not None:
            return bad
        if self.ended is not None and not (self.finished and self.ended["outcome"] == Outcome.ABORTED):
            return self.ended
        if not self.finished and not self._has_torn_down:
            return {"outcome": Outcome.MISSING, "message": "nothing came back: job and rank ended in this test"}
        notable = next((phase for phase in timely if phase["outcome"] != Outcome.PASSED), None)
        return notable or {"outcome": Outcome.PASSED}

    @property
    def _has_torn_down(self) -> bool:
        return any(phase["when"] == "teardown" for phase in self.phases)

    @property
    def duration(self) -> float:
        """Seconds over all phases."""
        return sum(float(phase["duration"]) for phase in self.phases)


def write_rank_xml(results: Path, rank: int, *, cell: str, suite: str, world_size: int) -> None:
    """Write ``rank-<rank>.xml`` from the events in a results folder.

    Raises:
        OSError: The folder cannot be written.
    """
    tests = rank_tests(results, rank)
    properties = {
        "allranks.rank": str(rank),
        "allranks.world_size": str(world_size),
        "allranks.cell": cell,
        "allranks.suite": suite,
    }
    target = results / f"rank-{rank}.xml"
    draft = target.with_suffix(".xml.part")
    ET.ElementTree(_document(tests, properties)).write(draft, encoding="utf-8", xml_declaration=True)
    draft.replace(target)


def rank_tests(results: Path, rank: int) -> list[RankTest]:
    """The tests that one rank began, in their order; of one whose own events are lost, what the journal has."""
    tests: dict[str, RankTest] = {}
    for event in _events_of_rank(results, rank):
        if nodeid := event.get("nodeid"):
            _add(tests.setdefault(nodeid, RankTest(nodeid)), event)
    for event in _arrivals(results):
        if event["rank"] == rank:
            test = tests.setdefault(event["nodeid"], RankTest(event["nodeid"], ended=event))
            test.arrived = event
    return list(tests.values())


def _arrivals(results: Path) -> Iterator[Event]:
    """What the leading agent wrote down of each rank's outcome of each test; what makes no sense is left out."""
    for event in read_events(results / JOURNAL):
        known = event["event"] == "arrived" and event.get("outcome") in list(Outcome)
        if known and isinstance(event.get("rank"), int) and isinstance(event.get("nodeid"), str):
            yield event


def _events_of_rank(results: Path, rank: int) -> Iterator[Event]:
    """The events of a rank, in their order; those of tests that overlapped by their times."""
    own, *of_lanes = [read_events(rank_events(folder, rank)) for folder in folders_with_ranks(results)]
    return heapq.merge(own, *of_lanes, key=lambda event: event["at"]) if of_lanes else iter(own)


def _add(test: RankTest, event: Event) -> None:
    match event["event"]:
        case "phase":
            test.phases.append(event)
        case "rank_ended":
            test.ended = event
        case "test_finished":
            test.finished = True
        case "test_started":
            test.world_size = event.get("world_size")
        case "output":
            test.output = event


def ranks_with_events(results: Path) -> list[int]:
    """The ranks that have written an event: tests that start their ranks themselves may have more than the job."""
    files = (path for folder in folders_with_ranks(results) for path in folder.glob("events-*.jsonl"))
    names = {path.name.removeprefix("events-").removesuffix(".jsonl") for path in files}
    return sorted(int(name) for name in names if name.isdecimal())


def ranks_heard_of(results: Path) -> list[int]:
    """The ranks of which anything is known: those with events of their own, and those that the journal names."""
    return sorted({*ranks_with_events(results), *(event["rank"] for event in _arrivals(results))})


def _document(tests: Sequence[RankTest], properties: Mapping[str, str]) -> ET.Element:
    root = ET.Element("testsuites", name="pytest tests")
    suite = ET.SubElement(root, "testsuite", _totals(tests))
    _add_properties(suite, properties)
    for test in tests:
        suite.append(_testcase(test))
    return root


def _totals(tests: Sequence[RankTest]) -> dict[str, str]:
    elements = [_ELEMENT.get(Outcome(test.deciding["outcome"])) for test in tests]
    began = min((phase["at"] for test in tests for phase in test.phases), default=0.0)
    return {
        "name": "pytest",
        "errors": str(elements.count("error")),
        "failures": str(elements.count("failure")),
        "skipped": str(elements.count("skipped")),
        "tests": str(len(tests)),
        "time": f"{sum(test.duration for test in tests):.3f}",
        "timestamp": datetime.fromtimestamp(began, UTC).isoformat(),
        "hostname": socket.gethostname(),
    }


def _testcase(test: RankTest) -> ET.Element:
    classname, name = split_nodeid(xml_id(test.nodeid))
    case = ET.Element("testcase", classname=classname, name=name, time=f"{test.duration:.3f}")
    deciding = test.deciding
    _add_properties(case, dict(_case_properties(test, deciding)))
    outcome = Outcome(deciding["outcome"])
    if outcome in _ELEMENT:
        case.append(_outcome_element(outcome, deciding))
    if outcome is not Outcome.PASSED:
        _add_output(case, test)
    return case


def _case_properties(test: RankTest, deciding: Event) -> Iterator[tuple[str, str]]:
    yield "allranks.nodeid", xml_id(test.nodeid)
    yield "allranks.outcome", deciding["outcome"]
    if test.world_size is not None:
        yield "allranks.world_size", str(test.world_size)
    if test.arrived is not None:
        yield "allranks.at", f"{test.arrived.get('at', 0.0):.6f}"
        if test.arrived.get("consequence"):
            yield "allranks.consequence", "1"
            if test.arrived.get("caused_by") is not None and deciding.get("caused_by") is None:
                yield "allranks.caused_by", str(test.arrived["caused_by"])
    for key, name in (
        ("caused_by", "caused_by"),
        ("skip_kind", "skip_kind"),
        ("skip_code", "skip_code"),
        ("when", "phase"),
    ):
        if deciding.get(key) is not None:
            yield f"allranks.{name}", str(deciding[key])


def _outcome_element(outcome: Outcome, deciding: Event) -> ET.Element:
    message = legal(str(deciding.get("message") or outcome))
    element = ET.Element(_ELEMENT[outcome], message=message)
    if outcome in (Outcome.SKIPPED, Outcome.XFAILED):
        element.set("type", "pytest.skip" if outcome is Outcome.SKIPPED else "pytest.xfail")
    element.text = legal(str(deciding.get("text") or message))
    return element


def _add_output(case: ET.Element, test: RankTest) -> None:
    for key, tag in (("stdout", "system-out"), ("stderr", "system-err")):
        # The agent reads what a rank prints; a phase has text of its own only where a plugin put it there.
        sources = [test.output or {}, *reversed(test.phases)]
        text = next((source[key] for source in sources if source.get(key)), "")
        if text:
            ET.SubElement(case, tag).text = legal(text)


def _add_properties(parent: ET.Element, properties: Mapping[str, str]) -> None:
    element = ET.SubElement(parent, "properties")
    for name, value in properties.items():
        ET.SubElement(element, "property", name=name, value=legal(value))


def split_nodeid(nodeid: str) -> tuple[str, str]:
    """``classname`` and ``name`` of a node id, as pytest's own JUnit report has them.

    ``pkg/test_a.py::TestB::test_c[x::y]`` gives ``("pkg.test_a.TestB", "test_c[x::y]")``, and a module that was
    skipped as a whole, ``pkg/test_a.py``, gives ``("", "pkg.test_a")``.
    """
    path, bracket, parameters = nodeid.partition("[")
    file, *names = path.split("::")
    module = file.removesuffix(".py").replace(os.sep, ".")
    if not names:
        return "", module
    *classes, name = names
    return ".".join((module, *classes)), name + bracket + parameters


def legal(text: str) -> str:
    """`text` with the characters that XML 1.0 forbids written as ``#xNN``."""
    return _ILLEGAL.sub(lambda match: f"#x{ord(match.group()):02X}", text)


def xml_id(nodeid: str) -> str:
    """A node id, or another name, as reports have it: :func:`legal`, and different for each id.

    What an id has that already looks like such a ``#xNN`` gets ``#x23`` for its ``#``. All other ids are as they were.
    """
    return legal(_LIKE_ESCAPED.sub("#x23", nodeid))
