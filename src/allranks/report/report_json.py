"""Writes report.json, the verdicts of a run in a form for programs, job by job.

The file has one object. Each suite has its ``tests`` in the order of the report; texts and output are in ``junit.xml``.
A later version may add keys, but it removes keys only if it increments ``schema``.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Self

from allranks.protocol.repetitions import RepetitionTally, interval
from allranks.protocol.xml_text import MESSAGE_LIMIT, cut
from allranks.report.judged import CellSuite, MergedRun
from allranks.report.results import PassedRanks, TestVerdict, Verdict, compact
from allranks.report.untrusted import head, remove_existing

SCHEMA: Final = 1
GENERATOR: Final = "allranks"


class JsonWriter:
    """Writes the file; a context manager, which keeps the previous file unless :meth:`write` is called."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._unfinished = path.with_name(f".{path.name}.unfinished")
        self._suites = 0

    def __enter__(self) -> Self:
        self._file = remove_existing(self._unfinished).open("w", encoding="utf-8", newline="\n")
        self._file.write(f'{{"generator": "{GENERATOR}", "schema": {SCHEMA},\n"suites": [')
        return self

    def add(self, suite: CellSuite) -> None:
        """Write a suite with its tests, one per line."""
        self._file.write(",\n" if self._suites else "\n")
        self._suites += 1
        head = json.dumps(_suite(suite))
        self._file.write(f'{head[:-1]}, "tests": [')
        self._file.writelines(_separated(_test(test, suite) for test in suite.tests))
        self._file.write("]}")

    def write(self, merged: MergedRun) -> None:
        """Write the totals of the run, and replace the previous file."""
        rest = {
            "run_id": merged.run_id,
            "policy": merged.policy,
            "counts": merged.counts.as_object,
            "notes": list(merged.notes),
            **merged.section_objects,
        }
        self._file.write(f"\n],\n{json.dumps(rest)[1:]}\n")
        self._file.close()
        self._unfinished.replace(self._path)

    def __exit__(self, *_: object) -> None:
        self._unfinished.unlink(missing_ok=True)
        self._file.close()  # last, because it fails if the disk is full


def is_report_json(path: Path) -> bool:
    """True if allranks wrote this file, and may therefore overwrite it."""
    return f'"generator": "{GENERATOR}"'.encode() in head(path, 64)


def _separated(texts: Iterator[str]) -> Iterator[str]:
    for index, text in enumerate(texts):
        yield f",\n{text}" if index else f"\n{text}"


def _suite(suite: CellSuite) -> dict[str, Any]:
    values: Mapping[str, Any] = {
        "cell": suite.cell,
        "suite": suite.suite,
        "axes": dict(suite.axes),
        "engine": suite.engine,
        "image": suite.image,
        "attempt": suite.attempt,
        "gpus": list(suite.gpus),
        "deselected": suite.deselected,
        "share": asdict(suite.share) if suite.share else None,
        "started": suite.started,
        "elapsed": suite.elapsed,
        "notes": list(suite.notes),
    }
    return {**without_empty(values), "counts": suite.counts.as_object}


def _test(test: TestVerdict, suite: CellSuite) -> str:
    own = f'{{"nodeid": {json.dumps(test.nodeid)}, "name": {json.dumps(test.name)}, "time": {round(test.time, 6)!r}'
    if test.classname:
        own += f', "classname": {json.dumps(test.classname)}'
    if tags := suite.tags.get(test.nodeid):
        own += f', "tags": {json.dumps(tags)}'
    if tally := suite.repeated.get(test.nodeid):
        own += f', "repetitions": {json.dumps(_repetitions(tally))}'
    if isinstance(test.ranks, PassedRanks) and not test.earlier:
        return own + _passed(test.verdict, compact(test.ranks))
    return own + _rest(test.verdict, compact(test.ranks), is_flaky=test.is_flaky, earlier=test.earlier)


def _repetitions(tally: RepetitionTally) -> dict[str, Any]:
    low, high = interval(tally.bad, tally.runs)
    return {**asdict(tally), "interval": [round(low, 6), round(high, 6)]}


@lru_cache(maxsize=64)
def _passed(verdict: Verdict, ranks: str) -> str:
    """The rest of a plain pass, which is the same for nearly all tests of a job."""
    return _rest(verdict, ranks, is_flaky=False, earlier=())


def _rest(verdict: Verdict, ranks: str, *, is_flaky: bool, earlier: Sequence[TestVerdict]) -> str:
    values: Mapping[str, Any] = {
        **_verdict(verdict),
        "ranks": ranks,
        "flaky": is_flaky,
        "earlier": [_earlier(attempt) for attempt in earlier],
    }
    return f", {json.dumps(without_empty(values))[1:]}"


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "verdict": verdict.kind.value,
        "rule": verdict.rule.value,
        "reason": verdict.reason,
        "message": cut(verdict.message, MESSAGE_LIMIT),
        "leading": verdict.leading,
        "executed": verdict.executed,
        "skip_but_pass": verdict.is_skip_but_pass,
        "skip_kind": verdict.skip_kind.value if verdict.skip_kind else None,
        "skip_code": verdict.skip_code,
    }


def _earlier(attempt: TestVerdict) -> dict[str, Any]:
    return {"attempt": attempt.number, **without_empty(_verdict(attempt.verdict)), "ranks": compact(attempt.ranks)}


def without_empty(values: Mapping[str, Any]) -> dict[str, Any]:
    """Omit the values that are None, empty or False; zeros are kept."""
    return {
        name: value
        for name, value in values.items()
        if value is not None and value is not False and value not in ("", [], {})
    }
