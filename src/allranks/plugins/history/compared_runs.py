"""Reads the outcomes of a run to compare: a results folder, ``report.json``, any ``junit.xml``."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from allranks.errors import ResultsError, UsageError
from allranks.plugins.history.comparison import ComparedJob, ComparedOutcome, together
from allranks.plugins.history.history_recorder import code_of
from allranks.protocol.outcomes import Outcome
from allranks.protocol.xml_text import cut, first_line
from allranks.report.accounting import account, damaged_manifest
from allranks.report.declared import details_of
from allranks.report.folder import ROOTS, is_merged_report
from allranks.report.gathering import gather
from allranks.report.judged import CellSuite
from allranks.report.junit_document import report_parts
from allranks.report.outcome_words import element_said, is_bad
from allranks.report.rank_names import timeless
from allranks.report.rank_xml import RankReader
from allranks.report.report_json import SCHEMA, is_report_json
from allranks.report.run_files import JudgingPolicy
from allranks.report.untrusted import open_regular, other_schema
from allranks.report.verdict import VerdictPolicy

_MESSAGE = 300
_SHARD = re.compile(r"@\d+of\d+$")
_LETTERS = {"passed": "P", "skipped": "S", "failure": "F", "error": "E"}


def read_jobs_of(path: Path) -> list[ComparedJob]:
    """The outcomes of a run.

    Args:
        path: A results folder, a downloaded report in a folder, ``report.json``, or an XML file.

    Raises:
        UsageError: There is no result, or it cannot be read.
    """
    try:
        jobs = list(_from_folder(path.resolve()) if path.is_dir() else _from_file(path))
    except (OSError, ResultsError) as error:
        raise _unreadable(path, getattr(error, "strerror", None) or str(error)) from error
    except (ValueError, LookupError, TypeError, AttributeError, ET.ParseError, RecursionError) as error:
        raise _unreadable(path, f"it is damaged ({type(error).__name__}: {error})") from error
    if any(job.tests for job in jobs):
        return jobs
    raise _unreadable(path, "there is no result in it")


def _from_folder(folder: Path) -> Iterator[ComparedJob]:
    gathered = gather(folder)
    if gathered.attempts or gathered.manifest:
        told = gathered.manifest.policy if gathered.manifest else JudgingPolicy()
        setting = VerdictPolicy(skip=told.skip or "skip", mixed_skip=told.mixed_skip)
        for job in map(_from_suite, account(gathered, setting)):
            # XML from elsewhere has the folder's own name for a cell, which is another one in each run.
            yield job if gathered.is_own or job.cell != folder.name else replace(job, cell="")
    else:
        reports = (folder / name for name in ("report.json", "junit.xml"))
        found = next((report for report in reports if report.is_file()), None)
        if found is None:
            return
        yield from _from_file(found)
    if gathered.problems:
        yield _from_suite(damaged_manifest(gathered.problems))


def _unreadable(path: Path, why: str) -> UsageError:
    remedy = "Give the folder of a run, its report.json, or a junit.xml."
    return UsageError(f"{path} cannot be compared.", why=f"{why[:1].upper()}{why[1:]}.", remedy=remedy)


def _from_suite(suite: CellSuite) -> ComparedJob:
    tests = {
        test.nodeid: ComparedOutcome(code_of(test).letter, cut(first_line(test.verdict.message), _MESSAGE))
        for test in suite.tests
    }
    return ComparedJob(
        cell=suite.cell, suite=timeless(suite.whole_suite), axes=_axes(suite.axes), tests=_reached(tests)
    )


def _axes(axes: Mapping[str, Any]) -> dict[str, str]:
    return {axis: str(value) for axis, value in axes.items()}


def _reached(tests: Mapping[str, ComparedOutcome]) -> dict[str, ComparedOutcome]:
    return {nodeid: outcome for nodeid, outcome in tests.items() if outcome.letter != "-"}


def _from_file(path: Path) -> Iterator[ComparedJob]:
    if not is_report_json(path):
        yield from _from_xml(path)
        return
    with open_regular(path) as file:
        document = json.load(file)
    if document["schema"] != SCHEMA:
        raise _unreadable(path, f"it is {other_schema(document['schema'], SCHEMA)}")
    yield from map(_from_json, document["suites"])


def _from_json(suite: Mapping[str, Any]) -> ComparedJob:
    tests = {}
    for test in suite["tests"]:
        is_reached = test.get("rule") != 6 or test.get("executed") or test["verdict"] != "skipped"
        is_skip = test.get("skip_but_pass") or test["verdict"] == "skipped"
        letter = "f" if test.get("flaky") else "S" if is_skip else _LETTERS[test["verdict"]]
        message = cut(first_line(test.get("message", "")), _MESSAGE)
        tests[test["nodeid"]] = ComparedOutcome(letter if is_reached else "-", message)
    name = timeless(str((suite.get("share") or {}).get("suite") or suite["suite"]))
    return ComparedJob(cell=str(suite["cell"]), suite=name, axes=_axes(suite.get("axes", {})), tests=_reached(tests))


def problem_of(report: Path) -> str:
    """Why the XML of another writer cannot be trusted, as where ranks' XML is merged; empty if it can."""
    return "" if is_merged_report(report) else RankReader().read(report).problem


def _from_xml(path: Path) -> Iterator[ComparedJob]:
    for part in report_parts(path):
        if problem := problem_of(part):
            yield ComparedJob(cell="", suite="report", tests={"allranks::report": ComparedOutcome("E", problem)})
        with open_regular(part) as file:
            for _, element in ET.iterparse(file):  # noqa: S314 - expat limits entities by itself
                element.tag = element.tag.rpartition("}")[2]
                if element.tag in ROOTS:
                    _add_case_of_suite(element)
                    if any(each.tag not in ROOTS for each in element):
                        yield _from_suite_element(element, path.stem)
                    element.clear()
        if element.tag not in ROOTS:
            msg = f"its root element is <{element.tag[:40]}>"
            raise ValueError(msg)


def _add_case_of_suite(suite: ET.Element) -> None:
    """Make one testcase of what went wrong in the suite itself, as merging does."""
    inside = {each for case in suite.iter("testcase") for each in case.iter()}
    outside = (each for each in suite.iterfind(".//*") if each not in inside)
    if found := [each for each in outside if is_bad(each.tag) or any(element_said(each.tag, each.attrib, ""))]:
        case = ET.SubElement(suite, "testcase", classname=suite.get("name", ""), name="(suite)")
        case.extend(found)


def _from_suite_element(element: ET.Element, name: str) -> ComparedJob:
    """The job of a suite."""
    facts = _facts(element)
    axes = {name.removeprefix("axis."): value for name, value in facts.items() if name.startswith("axis.")}
    tests = _reached(together(_case(case, _facts(case)) for case in element.iter("testcase")))
    suite = timeless(_SHARD.sub("", facts.get("suite") or element.get("name") or name))
    return ComparedJob(cell=facts.get("cell", ""), suite=suite, axes=axes, tests=tests)


def _facts(element: ET.Element) -> dict[str, str]:
    found = element.iterfind("properties/property")
    return {each.get("name", "").removeprefix("allranks."): each.get("value", "") for each in found}


def _case(case: ET.Element, facts: Mapping[str, str]) -> tuple[str, ComparedOutcome]:
    """A testcase, judged as where ranks' XML is merged."""
    details = details_of(case)
    nodeid = facts.get("nodeid") or "::".join(filter(None, (case.get("classname"), case.get("name"))))
    outcome, message, _ = details.worst
    if outcome.is_bad:
        letter = "F" if outcome is Outcome.FAILED else "E"
    elif outcome in {Outcome.SKIPPED, Outcome.XFAILED}:
        letter = "-" if message.startswith("not run: ") else "S"
    else:
        letter = "f" if details.reruns else "S" if "skip_but_pass" in facts else "P"
    return nodeid, ComparedOutcome(letter, cut(first_line(message), _MESSAGE))
