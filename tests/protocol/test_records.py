"""What a line of a record may be, and that whatever is none is said to be none."""

import contextlib
import dataclasses
import json
import math
from typing import get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.protocol.choices import NoticeKind
from allranks.protocol.outcomes import Outcome, SkipKind
from allranks.protocol.records import (
    LINE_LIMIT,
    Collected,
    EnteredCollective,
    FailureKind,
    Finished,
    JobStarted,
    Location,
    Notice,
    Passed,
    PhaseEnd,
    RankEnded,
    Record,
    decode,
    encode,
)
from allranks.protocol.repetitions import RepetitionTally
from allranks.protocol.typed_json import RecordError

KINDS = list({kind.__name__: kind for kind in Record.__subclasses__()}.values())  # a dataclass with slots is made twice
TEXT = st.text(st.characters(exclude_categories=[]), max_size=20)
WHOLE = st.integers(-(2**63), 2**63 - 1)
VALUES = {
    bool: st.booleans(),
    float: st.floats(-1e12, 1e12),
    int: WHOLE,
    int | None: st.none() | WHOLE,
    str: TEXT,
    Outcome: st.sampled_from(Outcome),
    SkipKind | None: st.none() | st.sampled_from(SkipKind),
    FailureKind: st.sampled_from(FailureKind),
    NoticeKind | None: st.none() | st.sampled_from(get_args(NoticeKind)),
}


PARTS = {kind.__name__: kind for kind in (PhaseEnd, EnteredCollective, Location, RepetitionTally)}
"""What records have in their fields."""


def values_of(hint):
    if get_origin(hint) is tuple:
        return st.lists(values_of(get_args(hint)[0]), max_size=3).map(tuple)
    return records_of(hint) if hint in PARTS.values() else VALUES[hint]


def records_of(kind):
    return st.builds(kind, **{field.name: values_of(field.type) for field in dataclasses.fields(kind)})


RECORDS = st.sampled_from(KINDS).flatmap(records_of)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


@given(RECORDS)
def test_a_record_is_read_as_it_was_written(record):
    assert decode(encode(record)) == record


@given(RECORDS)
def test_a_line_has_no_line_feed_and_no_record_separator(record):
    assert not {ord("\n"), 0x1E} & set(encode(record))


@given(RECORDS)
def test_fields_that_have_their_defaults_are_left_out(record):
    _, fields = json.loads(encode(record))
    for field in dataclasses.fields(record):
        if getattr(record, field.name) == field.default:
            assert field.name not in fields


def spoiled(value):
    """Values that differ from one of JSON's in type, and can stand for none of it."""
    if isinstance(value, bool):
        return [0, 1, "true", None, [], {}]
    if isinstance(value, int):
        return [value + 0.5, str(value), True, [value], {}, 2**63, -(2**63) - 1, 10**400]
    if isinstance(value, float):
        return [str(value), True, [value], {}, 1e13, -1e13]
    if isinstance(value, str):
        return [0, 1.5, True, [value], {value: value}]
    if isinstance(value, dict):  # fields may have defaults, so {} may stand for it
        return [0, "", True, [], [value], {"unknown": 1}]
    return [0, "", "text", True, {}, [[]], [None], [{"unknown": 1}]]


def corruptions(record):
    """Each line that differs from the record's in one field alone."""
    name = type(record).__name__
    whole = json.loads(encode(record))[1]
    for field in dataclasses.fields(record):
        value = whole.get(field.name, getattr(record, field.name))
        value = list(value) if isinstance(value, tuple) else getattr(value, "value", value)
        optional = type(None) in get_args(field.type)
        for bad in spoiled(0 if optional and value is None else value):
            yield field.name, json.dumps([name, {**whole, field.name: bad}])
        if not optional:
            yield field.name, json.dumps([name, {**whole, field.name: None}])
        if field.default is dataclasses.MISSING:
            yield field.name, json.dumps([name, {key: each for key, each in whole.items() if key != field.name}])
    yield "another", json.dumps([name, {**whole, "another": 1}])


@given(RECORDS)
def test_a_record_with_one_field_spoiled_is_none_and_the_error_names_the_field(record):
    for field, line in corruptions(record):
        with pytest.raises(RecordError) as error:
            decode(line.encode())
        assert any(name in str(error.value) for name in (field, *PARTS)), (line, error.value)


PHASE = PhaseEnd(when="call", outcome=Outcome.FAILED, seconds=1.0)
ENDED = RankEnded(nodeid="t", rank=0, outcome=Outcome.FAILED, world_size=2, arrived=1.0, phases=(PHASE,))


@pytest.mark.parametrize("name", ["when", "outcome", "seconds", "another"])
def test_a_phase_is_looked_at_as_a_record_is(name):
    kind, fields = json.loads(encode(ENDED))
    fields["phases"][0][name] = ["no", "such"]
    with pytest.raises(RecordError, match=f"{name}.*PhaseEnd|PhaseEnd.*{name}"):
        decode(json.dumps([kind, fields]).encode())


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 1e308])
def test_what_no_clock_can_say_is_no_time(number):
    with pytest.raises(RecordError, match="as at of Finished"):
        decode(json.dumps(["Finished", {"status": 0, "at": number}]).encode())


def assert_reads_or_refuses(line):
    """What is read can be written, and is read as the same again; no error but the one comes of what cannot."""
    with contextlib.suppress(RecordError):
        record = decode(line)
        assert decode(encode(record)) == record


@given(st.binary(max_size=200))
def test_any_bytes_are_a_record_or_a_record_error(line):
    assert_reads_or_refuses(line)


@given(st.sampled_from([kind.__name__ for kind in KINDS] + ["Nothing"]), JSON)
def test_any_json_is_a_record_or_a_record_error(name, fields):
    for value in ([name, fields], fields, [name], {name: fields}):
        assert_reads_or_refuses(json.dumps(value).encode())


@given(RECORDS, st.data())
def test_a_damaged_line_is_a_record_or_a_record_error(record, data):
    line = bytearray(encode(record))
    place = data.draw(st.integers(0, len(line) - 1))
    line[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    assert_reads_or_refuses(bytes(line))


@given(RECORDS, st.data())
def test_a_torn_line_is_none(record, data):
    line = encode(record)
    with pytest.raises(RecordError):
        decode(line[: data.draw(st.integers(0, len(line) - 1))])


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"1" * 5_000, "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b"{}", "is not a record"),
        (b'["Finished"]', "is not a record"),
        (b'[["Finished"], {}]', "is not a record"),
        (b'["Nothing", {}]', "is of an unknown kind: 'Nothing'"),
        (b'["PhaseEnd", {"when": "call", "outcome": "passed"}]', "is of an unknown kind"),
        (b'["Finished", []]', "has no object as its Finished"),
        (b'["Finished", {}]', "lacks status of Finished"),
        (b'["Finished", {"status": "0"}]', "has '0' as status of Finished"),
        (b'["Finished", {"status": 0, "more": 1}]', "has a field that Finished does not have: 'more'"),
    ],
)
def test_the_error_says_why_a_line_is_no_record(line, why):
    with pytest.raises(RecordError) as error:
        decode(line)
    assert str(error.value).startswith(why)


def test_a_line_that_is_too_long_is_none_whatever_it_holds():
    fits = encode(Notice(text="x" * (LINE_LIMIT - 100)))
    assert decode(fits)
    with pytest.raises(RecordError, match="bytes, over the limit of"):
        decode(fits + b" " * 100)


def test_an_error_is_short_whatever_the_line_holds():
    for line in (json.dumps(["x" * 10_000, {}]), json.dumps(["Finished", {"y" * 10_000: 1}])):
        with pytest.raises(RecordError) as error:
            decode(line.encode())
        assert len(str(error.value)) < 200


def test_a_simple_record_is_one_short_line():
    assert encode(Finished(status=0)) == b'["Finished",{"status":0}]'
    passed = Passed(nodeid="t", ranks=(0, 1), arrived=(1.0, 2.0), seconds=(0.1, 0.2), world_size=2)
    assert len(encode(passed)) < 120
    assert encode(Collected()) == b'["Collected",{}]'


def test_a_rank_has_taken_as_long_as_its_phases_together():
    phases = tuple(PhaseEnd(when="call", outcome=Outcome.PASSED, seconds=each) for each in (0.5, 1.0, 0.25))
    assert dataclasses.replace(ENDED, phases=phases).seconds == 1.75


def test_a_journal_begins_with_the_job_that_it_is_of():
    started = JobStarted(schema=2, run_id="r", cell="c", suite="s", attempt=1, world_size=2)
    assert decode(encode(started)) == started
