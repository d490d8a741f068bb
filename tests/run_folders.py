"""Fixtures that create run folders, for the tests of reports and of plug-ins."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from allranks.protocol.xml_text import legal, split_nodeid, xml_id

_ELEMENTS = {"passed": None, "xpassed": None, "failed": "failure", "skipped": "skipped", "xfailed": "skipped"}


@dataclass
class RunFolder:
    """Writes the files of a run."""

    path: Path

    def manifest(self, *jobs: str, policy: Mapping[str, Any] | None = None, **changes: Any) -> None:
        """``run.json`` with these job ids (``cell/suite``)."""
        cells = {job.partition("/")[0]: {"backend": "gloo", "world_size": 2} for job in jobs}
        planned = [dict(zip(("cell", "suite"), job.split("/"), strict=True), id=job, image="cpu") for job in jobs]
        document = {
            "schema": 2,
            "run_id": "r1",
            "allranks": "0",
            "policy": policy,
            "cells": cells,
            "jobs": planned,
            **changes,
        }
        (self.path / "run.json").write_text(json.dumps(document))

    def attempt(self, job: str, number: int = 1) -> Path:
        """The folder of an attempt, which is created if necessary."""
        folder = self.path / "cells" / job / f"attempt-{number}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def job(self, job: str, *, number: int = 1, **changes: Any) -> None:
        """``job.json`` of an attempt."""
        cell, suite = job.split("/")
        record = {
            "schema": 2, "id": job, "cell": cell, "suite": suite, "attempt": number, "engine": "process", "spec": {},
            "gpus": [], "world_size": 2, "exit_status": 0, "error": None, "started": 1000.0, "finished": 1002.5,
            "collected": None, "deselected": 0, "not_run": [], **changes,
        }  # fmt: skip
        (self.attempt(job, number) / "job.json").write_text(json.dumps(record))

    def rank(self, job: str, rank: int, tests: Mapping[str, Any], *, number: int = 1, world_size: Any = 2) -> Path:
        """``rank-N.xml``: for each node id an outcome, or a mapping with ``outcome`` and other fields."""
        properties = {"allranks.rank": rank, **({} if world_size is None else {"allranks.world_size": world_size})}
        path = self.attempt(job, number) / f"rank-{rank}.xml"
        path.write_bytes(rank_xml(tests, properties))
        return path

    def both(self, job: str, tests: Mapping[str, Any], **changes: Any) -> None:
        """A job whose two ranks have the same outcomes."""
        self.job(job, **{"collected": list(tests), **changes})
        for rank in range(2):
            self.rank(job, rank, tests)


def rank_xml(tests: Mapping[str, Any], suite_properties: Mapping[str, object]) -> bytes:
    root = ET.Element("testsuites")
    suite = ET.SubElement(root, "testsuite", name="pytest")
    _properties(suite, suite_properties)
    for nodeid, fields in tests.items():
        suite.append(_case(nodeid, {"outcome": fields} if isinstance(fields, str) else dict(fields)))
    return ET.tostring(root, encoding="utf-8", xml_declaration=True)


def _case(nodeid: str, fields: dict[str, Any]) -> ET.Element:
    outcome, message, text = fields.pop("outcome"), fields.pop("message", ""), fields.pop("text", "")
    classname, name = split_nodeid(xml_id(nodeid))
    case = ET.Element("testcase", classname=classname, name=name, time=str(fields.pop("time", 0.25)))
    stdout = fields.pop("stdout", "")
    _properties(case, {"allranks.nodeid": xml_id(nodeid), "allranks.outcome": outcome, **_prefixed(fields)})
    if tag := _ELEMENTS.get(outcome, "error"):
        kind = "pytest.xfail" if outcome == "xfailed" else "pytest.skip" if outcome == "skipped" else ""
        ET.SubElement(case, tag, message=legal(message), type=kind).text = legal(text)
    if stdout:
        ET.SubElement(case, "system-out").text = stdout
    return case


def _prefixed(fields: Mapping[str, object]) -> dict[str, object]:
    return {f"allranks.{name}": value for name, value in fields.items()}


def _properties(parent: ET.Element, values: Mapping[str, object]) -> None:
    element = ET.SubElement(parent, "properties")
    for name, value in values.items():
        ET.SubElement(element, "property", name=name, value=legal(str(value)))


@pytest.fixture
def part(tmp_path: Path) -> Callable[[str], RunFolder]:
    """Creates the run folders of several machines in one folder."""

    def make(place: str) -> RunFolder:
        folder = tmp_path / "gathered" / place
        folder.mkdir(parents=True, exist_ok=True)
        return RunFolder(folder)

    return make


@pytest.fixture
def run_folder(tmp_path: Path) -> RunFolder:
    folder = tmp_path / "results" / "r1"
    folder.mkdir(parents=True)
    return RunFolder(folder)


@pytest.fixture
def write_ranks(tmp_path: Path) -> Callable[[str, Sequence[str]], Path]:
    """Writes the XML files of another test runner."""
    root = tmp_path / "foreign"

    def write(place: str, cases: Sequence[str]) -> Path:
        path = root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"<testsuites><testsuite name='s'>{''.join(cases)}</testsuite></testsuites>")
        return root

    return write
