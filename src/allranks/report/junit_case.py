"""One testcase of the merged report, in the wide and in the narrow form.

The order and the shape of the elements are what clients make necessary (``tests/report/clients`` shows each with the
client itself): one outcome element, which has attributes and a text; and, before the retries of a test that passed in
the end, what went wrong with it in words, because xunit-viewer takes the first element that it does not know for the
outcome.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final

from allranks.report.columns import compact
from allranks.report.judged import JobFacts
from allranks.report.junit_form import JUnitForm, Schema
from allranks.report.junit_names import Name
from allranks.report.model import EarlierAttempt, RankResult, Rule, TestVerdict, Verdict, VerdictKind
from allranks.report.xml_text import MESSAGE_LIMIT, TEXT_LIMIT, attribute, clean_cut, cut, element_text, readable

RETRY_LIMIT: Final = 16 * 1024
"""Characters that a text of an earlier attempt may have."""

RETRIES: Final = 20
"""Earlier attempts that are told in full: a rerun until it passes may have had thousands."""

_ELEMENTS: Final = {VerdictKind.FAILURE: "failure", VerdictKind.ERROR: "error", VerdictKind.SKIPPED: "skipped"}
_ORDER: Final = ("failure", "rerunFailure", "flakyFailure", "skipped", "error", "rerunError", "flakyError")
"""The order of Surefire's schema, which is a sequence."""

Fact = tuple[str, object]
"""Name and value of what is known; a value that is None or empty is not told."""

Element = tuple[str, str]
"""A tag, and the whole element as XML."""


def render_case(test: TestVerdict, name: Name, suite: JobFacts, form: JUnitForm) -> str:
    """A testcase as XML.

    Args:
        test: What it came to.
        name: Its class name and name, which are unique in the suite.
        suite: The job that it belongs to.
        form: The form of the report.
    """
    classname, own = name
    start = f'<testcase classname={attribute(classname)} name={attribute(own)} time="{test.time:.6g}">\n'
    body = _BODIES[form.schema](test, suite)
    return f"{start}{body}</testcase>\n"


def properties(said: Iterable[Fact]) -> str:
    """A ``properties`` element with those facts that have a value; nothing where none has."""
    lines = "".join([property_line(name, value) for name, value in said if is_told(value)])
    return f"<properties>{lines}</properties>\n" if lines else ""


def property_line(name: str, value: object) -> str:
    """A fact as a ``property`` element."""
    text = str(value)
    shown = attribute(text if len(text) <= TEXT_LIMIT else clean_cut(text))
    return f'<property name="allranks.{name}" value={shown}/>'


@lru_cache(maxsize=64)
def _passed(ranks: str) -> str:
    """What is told of each of a job's tests that simply passed."""
    return property_line("ranks", ranks) + property_line("rule", Rule.PASSED.value)


def is_told(value: object) -> bool:
    """Whether there is something to tell: zero is something."""
    return value is not None and value != ""


def _wide(test: TestVerdict, _: JobFacts) -> str:
    """Facts are properties; output stands after an outcome and before retries."""
    if _has_just_passed(test):
        return f"<properties>{property_line('nodeid', test.nodeid)}{_passed(compact(test.ranks))}</properties>\n"
    parts = [properties(_facts(test))]
    if test.verdict.kind in _ELEMENTS or test.earlier:
        told = (*_outcome(test, "wide"), *_output(test, ()), *_before(test), *_retries(test))
        parts.extend(xml for _, xml in told)
    return "".join(parts)


def _narrow(test: TestVerdict, suite: JobFacts) -> str:
    """The schemas know no properties of a testcase: facts are the first lines of what it printed."""
    facts = (("cell", suite.cell), ("suite", suite.suite), *_facts(test), *_type_of_skip(test.verdict))
    if _has_just_passed(test):
        return f"<system-out>{element_text(_lines(facts))}</system-out>\n"
    told = sorted((*_outcome(test, "narrow"), *_retries(test)), key=lambda element: _ORDER.index(element[0]))
    return "".join(xml for _, xml in (*told, *_output(test, facts)))


_BODIES: Final = {"wide": _wide, "narrow": _narrow}


def _has_just_passed(test: TestVerdict) -> bool:
    """Nearly every test: there is little to tell of it, and that is told quickly."""
    return test.verdict.rule is Rule.PASSED and test.verdict.kind is VerdictKind.PASSED and not test.earlier


def _facts(test: TestVerdict) -> Iterator[Fact]:
    yield "nodeid", test.nodeid
    yield "ranks", compact(test.ranks)
    yield "rule", str(test.verdict.rule.value)
    if test.verdict.rule is not Rule.PASSED:
        yield from _facts_of_verdict(test.verdict)
    if test.earlier:
        yield "earlier", " ".join(f"{attempt.number}:{_type(attempt.verdict)}" for attempt in test.earlier)
        yield "earlier_left_out", max(len(test.earlier) - RETRIES, 0) or None


def _facts_of_verdict(verdict: Verdict) -> Iterator[Fact]:
    yield "leading", verdict.leading
    yield "skip_kind", verdict.skip_kind
    yield "skip_code", verdict.skip_code
    if verdict.is_skip_but_pass:
        yield "skip_but_pass", clean_cut(verdict.message, MESSAGE_LIMIT) or "skipped"


def _type_of_skip(verdict: Verdict) -> Iterator[Fact]:
    """Surefire's ``skipped`` has no type, by which a skip is told from an expected failure."""
    if verdict.kind is VerdictKind.SKIPPED:
        yield "type", verdict.reason


def _type(verdict: Verdict) -> str:
    return (verdict.reason or verdict.kind.value).replace(" ", "_")


def _outcome(test: TestVerdict, schema: Schema) -> Iterator[Element]:
    verdict = test.verdict
    if verdict.kind not in _ELEMENTS:
        return
    tag = _ELEMENTS[verdict.kind]
    message, text = _message(verdict, MESSAGE_LIMIT), _text(verdict, TEXT_LIMIT)
    if tag == "skipped":
        text = "\n\n".join([text, *map(_told, _shown(test.earlier))])
    kind = "" if tag == "skipped" and schema == "narrow" else f" type={attribute(_reason(verdict))}"
    yield tag, f"<{tag} message={attribute(message)}{kind}>{element_text(text)}</{tag}>\n"


def _reason(verdict: Verdict) -> str:
    return readable(verdict.reason).strip() or verdict.kind.value


def _message(verdict: Verdict, limit: int) -> str:
    return clean_cut(verdict.message, limit).strip() or _reason(verdict)


def _text(verdict: Verdict, limit: int) -> str:
    text = clean_cut(verdict.text, limit)
    return text if text.strip() else _message(verdict, limit)


def _output(test: TestVerdict, facts: Sequence[Fact]) -> Iterator[Element]:
    """What the ranks of a bad test printed, each under its number, below what is known of the test."""
    ranks = test.ranks if test.verdict.is_bad else ()
    out, err = _streams(ranks, test.verdict.leading, TEXT_LIMIT)
    yield from _stream("system-out", _lines(facts) + out)
    yield from _stream("system-err", err)


def _lines(facts: Iterable[Fact]) -> str:
    return "".join([f"allranks.{name}: {_line(str(value))}\n" for name, value in facts if is_told(value)])


def _line(value: str) -> str:
    return clean_cut(value).replace("\n", "\n    ")


def _streams(ranks: Sequence[RankResult], leading: int | None, limit: int) -> tuple[str, str]:
    """Standard output and standard error, the leading rank's first: what is cut is somebody else's."""
    ordered = sorted(ranks, key=lambda rank: rank.rank != leading)
    printed = ([(rank.rank, rank.stdout) for rank in ordered], [(rank.rank, rank.stderr) for rank in ordered])
    out, err = (
        "\n".join(f"--- rank {rank} ---\n{output}" for rank, output in stream if output.strip()) for stream in printed
    )
    return clean_cut(out, limit), clean_cut(err, limit)


def _stream(tag: str, text: str) -> Iterator[Element]:
    if text:
        yield tag, f"<{tag}>{element_text(text)}</{tag}>\n"


def _before(test: TestVerdict) -> Iterator[Element]:
    """One line for each earlier attempt at a test that passed in the end."""
    if test.earlier and test.verdict.kind is VerdictKind.PASSED:
        lines = (f"attempt {attempt.number}: {_message(attempt.verdict, MESSAGE_LIMIT)}\n" for attempt in test.earlier)
        yield from _stream("system-out", cut(f"passed in the end; before:\n{''.join(lines)}"))


def _retries(test: TestVerdict) -> Iterator[Element]:
    """The earlier attempts, as Surefire writes reruns; those of a test that is skipped in the end are in its text."""
    if test.verdict.kind is VerdictKind.SKIPPED:
        # junit-to-ctrf takes a skipped test with a flaky failure for a passed one.
        return
    word = "rerun" if test.verdict.is_bad else "flaky"
    for attempt in _shown(test.earlier):
        tag = word + ("Failure" if attempt.verdict.kind is VerdictKind.FAILURE else "Error")
        yield tag, _retry(tag, attempt)


def _shown(earlier: Sequence[EarlierAttempt]) -> Sequence[EarlierAttempt]:
    half = RETRIES // 2
    return earlier if len(earlier) <= RETRIES else (*earlier[:half], *earlier[-half:])


def _retry(tag: str, attempt: EarlierAttempt) -> str:
    verdict = attempt.verdict
    out, err = _streams(attempt.ranks, verdict.leading, RETRY_LIMIT)
    start = f"<{tag} message={attribute(_message(verdict, MESSAGE_LIMIT))} type={attribute(_reason(verdict))}>"
    stack = f"<stackTrace>{element_text(_text(verdict, RETRY_LIMIT))}</stackTrace>"
    streams = "".join(xml.rstrip("\n") for _, xml in (*_stream("system-out", out), *_stream("system-err", err)))
    return f"{start}{stack}{streams}</{tag}>\n"


def _told(attempt: EarlierAttempt) -> str:
    """An earlier attempt as plain text."""
    verdict = attempt.verdict
    streams = _streams(attempt.ranks, verdict.leading, RETRY_LIMIT)
    text = "\n".join(part for part in (_text(verdict, RETRY_LIMIT), *streams) if part)
    return f"attempt {attempt.number} ({_reason(verdict)}): {_message(verdict, MESSAGE_LIMIT)}\n{text}"
