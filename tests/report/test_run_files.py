"""run.json and job.json: what is written is what is read, and what cannot be true is refused by name."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.report.folder import read_attempts_at, read_manifest
from allranks.report.judged import Share
from allranks.report.run_files import DroppedCells, JobError, JobRecord, JudgingPolicy, Manifest, PlannedJob, as_json
from allranks.report.untrusted import parsed

texts = st.text(alphabet="aé &<>\"'/:-\n", max_size=8)
many = st.lists(texts, max_size=3).map(tuple)
counts = st.integers(0, 9)
moments = st.none() | st.floats(0, 4e9)

manifests = st.builds(
    Manifest,
    **dict.fromkeys(("run_id", "allranks", "python", "started", "command", "matrix"), texts),
    seed=st.integers(-(2**40), 2**40),
    policy=st.builds(
        JudgingPolicy,
        skip=st.sampled_from([None, "skip", "pass"]),
        mixed_skip=many,
        baseline=st.dictionaries(texts, st.dictionaries(texts, counts, max_size=2), max_size=2),
    ),
    dropped=st.lists(st.builds(DroppedCells, rule=texts, reason=texts, count=counts), max_size=2).map(tuple),
    cells=st.dictionaries(texts, st.dictionaries(texts, texts | counts, max_size=2), max_size=2),
    jobs=st.lists(
        st.builds(PlannedJob, id=texts, cell=texts, suite=texts, image=texts, pytest_args=many), max_size=2
    ).map(tuple),
)
records = st.builds(
    JobRecord,
    **dict.fromkeys(("id", "run_id", "cell", "suite", "engine", "image", "stop_reason"), texts),
    **dict.fromkeys(("attempt", "continues", "deselected"), counts),
    nodes=st.integers(1, 64),
    **dict.fromkeys(("gpus", "not_run", "notes"), many),
    spec=st.none() | st.just({"code": "/c", "gpus": ["a"], "resources": {"pids": 1, "seconds": 1.5}}),
    world_size=st.integers(1, 64),
    exit_status=st.none() | st.integers(-64, 255),
    error=st.none() | st.builds(JobError, kind=st.just("agent"), what=texts, why=texts, remedy=texts),
    started=moments,
    finished=moments,
    collected=st.none() | many,
    share=st.none() | st.builds(Share, suite=texts, number=st.just(1), count=st.just(2), split=texts, elsewhere=counts),
)


@given(st.one_of(manifests, records))
def test_what_is_written_is_what_is_read(document):
    text = json.dumps(as_json(document))
    assert parsed(type(document), json.loads(text)) == document


@pytest.mark.parametrize("document", [Manifest(run_id=""), JobRecord(world_size=2)], ids=["manifest", "record"])
def test_every_field_is_in_the_file(document):
    assert as_json(document).keys() == {"schema", *vars(document)}


@pytest.mark.parametrize("schema", [0, 1, 3, 99, 1000000000])
def test_a_file_of_another_schema_is_left_to_the_version_that_wrote_it(run_folder, schema):
    run_folder.manifest("c/s", schema=schema)
    run_folder.job("c/s", schema=schema)
    why = f"is of schema {schema}, but this version of allranks reads schema 2: merge with the version that wrote it."
    assert read_manifest(run_folder.path, run_folder.path)[:2] == (None, f"run.json {why}")
    [attempt] = read_attempts_at(run_folder.path, "c", "s")
    assert (attempt.record, attempt.problem) == (None, f"job.json {why}")


def test_a_member_that_is_there_twice_is_damage(run_folder):
    run_folder.job("c/s")
    path = run_folder.attempt("c/s") / "job.json"
    path.write_text(
        path.read_text().replace('"error": null', '"error": {"kind": "agent", "what": "died"}, "error": null')
    )
    [attempt] = read_attempts_at(run_folder.path, "c", "s")
    assert attempt.record is None
    assert attempt.problem.startswith("job.json is damaged: one of these keys occurs twice")
