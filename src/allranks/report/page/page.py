"""The page as one document: a frame with the counts, and the data from which its script shows the rest.

All text from tests and ranks is escaped, or packed in base64. Anything that slipped through would still not run: the
page's own policy allows one style and one script, by their hashes, and no outgoing requests.
"""

import base64
import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from string import Template
from typing import Final

from allranks.protocol.xml_text import clipped, readable
from allranks.report.judged import Counts, MergedRun
from allranks.report.status import Status
from allranks.report.summary import times

_SHOWN_NOTES: Final = 100
_FACT: Final = 500

_FAILURES: Final = (
    '<section id="failures" class="js-only" aria-labelledby="failures-title"><h2 id="failures-title">Failures</h2>'
    '<div id="failures-body"><p class="none">No failure.</p></div></section>'
)
_MATRIX: Final = (
    '<section id="matrix" class="js-only" aria-labelledby="matrix-title"><h2 id="matrix-title">Matrix <small>cells by '
    'suites</small></h2><div class="wide" id="matrix-body" tabindex="0" role="region" aria-label="Cells by suites">'
    "</div></section>"
)

_UNRULY: Final = {code: f"\\u{code:04x}" for code in (*range(0x2028, 0x202F), *range(0x2066, 0x206A))}
"""Line separators and bidirectional marks that elements do not contain: they would reverse the text around them."""


@dataclass(frozen=True, kw_only=True)
class Static:
    """The static part of the page."""

    merged: MergedRun
    listed: str = ""  # a sentence for what the page leaves out; empty for nothing

    @property
    def title(self) -> str:
        """The title of the browser's tab."""
        bad = self.merged.counts.bad
        return f"{f'{bad:,} went wrong' if bad else 'all good'} · {readable(self.merged.run_id)} · allranks"

    @property
    def header(self) -> str:
        """The result of the run, in a sentence and in numbers."""
        counts = self.merged.counts
        bad = counts.bad
        state = "bad" if bad else "good" if counts.passed else "idle"
        return (
            f'<h1 class="{state}">{_sentence(counts)}</h1>'
            f'<p class="run">Run <bdi>{escaped(self.merged.run_id)}</bdi>: {_extent(self.merged)}</p>'
            f'<dl class="facts">{"".join(_facts(self.merged))}</dl>'
            f'<ul class="counts" id="counts">{"".join(_counts(counts))}</ul>'
            + (f'<p class="listed">{escaped(self.listed)}</p>' if self.listed else "")
        )

    @property
    def sections(self) -> str:
        """Failures, then the matrix; a run without failures begins with the matrix."""
        return "\n".join((_FAILURES, _MATRIX) if self.merged.counts.bad else (_MATRIX, _FAILURES))

    @property
    def added(self) -> str:
        """The sections of plug-ins; empty if there are none."""
        return "\n".join(
            f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">'
            f"{escaped(section.title)} <small>{escaped(section.headline)}</small></h2>{section.html}</section>"
            for name, section in self.merged.shown_sections.items()
        )

    @property
    def notes(self) -> str:
        """Remarks that belong to no testcase."""
        notes = self.merged.notes
        more = [f"And {len(notes) - _SHOWN_NOTES} more, in summary.md."] if len(notes) > _SHOWN_NOTES else []
        return "".join(f"<li>{escaped(note)}</li>" for note in (*notes[:_SHOWN_NOTES], *more))


def escaped(text: str) -> str:
    """``text`` as inert HTML, which does not even change the direction of the text beside it."""
    return html.escape(readable(text).translate(_UNRULY))


def _sentence(counts: Counts) -> str:
    bad = counts.bad
    if bad:
        return f"{bad:,} of {_number(counts.tests, 'test')} went wrong"
    if not counts.tests:
        return "There is no test in this run"
    return f"All good: {counts.passed:,} of {_number(counts.tests, 'test')} passed"


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _extent(merged: MergedRun) -> str:
    cells = len({row.cell for row in merged.suites})
    suites = len({row.share.suite if row.share else row.suite for row in merged.suites})
    policy = "; environment skips count as passed" if merged.policy == "pass" else ""
    return f"{_number(cells, 'cell')}, {_number(suites, 'suite')}, {times(merged)}{policy}"


def _facts(merged: MergedRun) -> Iterator[str]:
    """What the run was of and where it ran, as far as that is known."""
    run = merged.manifest
    told = {
        "date": run.started.replace("T", " ").replace("+00:00", " UTC") if run else "",
        "host": run.host if run else "",
        "commit": run.commit if run else "",
        "torch": ", ".join(sorted({row.torch for row in merged.suites if row.torch})),
        "engine": ", ".join(sorted({row.engine for row in merged.suites if row.engine})),
        "allranks": run.allranks if run else "",
        "command": run.command if run else "",
    }
    yield from (
        f"<div><dt>{name}</dt> <dd><bdi>{escaped(clipped(value, _FACT))}</bdi></dd></div>"
        for name, value in told.items()
        if value
    )


def _counts(counts: Counts) -> Iterator[str]:
    for status, count in (
        (Status.FAILED, counts.failed),
        (Status.ERROR, counts.errors),
        (Status.FLAKY, counts.flaky),
        (Status.PASSED, counts.passed - counts.skip_but_pass),
        (Status.PASSED_SKIP, counts.skip_but_pass),
        (Status.SKIPPED, counts.skipped),
    ):
        if count or status not in {Status.FLAKY, Status.PASSED_SKIP}:
            yield f'<li class="v-{status}{"" if count else " none"}"><b>{count:,}</b> {status.word_for(count)}</li>'


GENERATOR: Final = '<meta name="generator" content="allranks">'
"""The mark by which a page of allranks is recognized."""

_DATA: Final = "application/octet-stream"
"""A script type that no browser executes."""


def document(static: Static, index: str, chunks: Sequence[str]) -> str:
    """The whole page, with all testcases and the details that they show when opened, packed."""
    style, script = _resource("page.css"), _resource("page.js")
    return Template(_resource("page.html")).substitute(
        generator=GENERATOR,
        policy=_policy(style, script),
        title=escaped(static.title),
        style=style,
        header=static.header,
        junit=escaped(static.merged.junit.name),
        sections=static.sections,
        added=static.added,
        notes=static.notes,
        data="\n".join([_island("index", index), *(_island(f"chunk-{n}", chunk) for n, chunk in enumerate(chunks))]),
        script=script,
    )


def _policy(style: str, script: str) -> str:
    return (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    import hashlib  # noqa: PLC0415 - OpenSSL takes 4 MB, which the merge before this does not need

    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _island(name: str, packed: str) -> str:
    return f'<script type="{_DATA}" id="{name}">{packed}</script>'


@cache
def _resource(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
