"""Reading testcases in runs gives what expat alone would give, wherever they stand and wherever chunks end."""

from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.report import rank_xml
from allranks.report.columns import RankFile
from allranks.report.plain_cases import PlainCases
from allranks.report.rank_xml import RankReader

PLAIN = '<testcase classname="t.T" name="test_{}" time="0.{}" />'
OWN = (
    '<testcase classname="t" name="test_{0}" time="1.5"><properties>'
    '<property name="allranks.nodeid" value="t.py::test_{0}" /><property name="allranks.outcome" value="passed" />'
    '<property name="allranks.world_size" value="{1}" /><property name="allranks.at" value="1795289453.5" />'
    "</properties></testcase>"
)
NUMBERED = st.tuples(st.sampled_from([PLAIN, OWN]), st.integers(0, 5), st.integers(1, 4))
RUNS = st.lists(NUMBERED.map(lambda drawn: drawn[0].format(*drawn[1:])), min_size=1, max_size=5).map("".join)
AROUND = st.sampled_from(
    [
        "{}",
        '<testcase classname="t" name="outer">{}</testcase>',
        '<testcase classname="t" name="failed"><failure message="no">text {} text</failure></testcase>',
        "<testcase name='quoted' time='3'/>{}\n",
        "<!-- {} -->",
        "<![CDATA[{}]]>",
        "<?told {} ?>",
        "<odd attribute='{}'/>",
        "<suite><testsuite name='inner'>{}</testsuite></suite>",
        '<testcase classname="t" name="told"><system-out>{}</system-out></testcase>',
        '<failure message="of the suite">{}</failure>',
        '<testcase classname="t" name="ünï" time="1e3"/>{}<testcase classname="t" name="x" time="1,000.5" />',
        "</testsuite>{}<testsuite>",
        "</testsuites>{}",
    ]
)
PIECES = st.tuples(AROUND, RUNS).map(lambda drawn: drawn[0].format(drawn[1]))
BODIES = st.lists(PIECES, min_size=1, max_size=5).map("".join)
HEADS = st.sampled_from(["", '<?xml version="1.0" encoding="UTF-8"?>', "\ufeff", "<?xml version='1.0'?><?also this?>"])
CUTS = st.none() | st.integers(0, 2000)


def read(documents: Sequence[bytes], folder: Path, chunk: int) -> list[RankFile]:
    reader, files = RankReader(), []
    with patch.multiple(rank_xml, _CHUNK=chunk, _FIRST_CHUNK=chunk // 2):
        for number, document in enumerate(documents):
            path = folder / f"rank-{number}.xml"
            path.write_bytes(document)
            files.append(reader.read(path))
    return files


@given(
    heads=st.lists(HEADS, min_size=2, max_size=2), bodies=st.tuples(BODIES, BODIES), cut=CUTS, chunk=st.integers(2, 900)
)
def test_every_document_reads_as_expat_alone_reads_it(tmp_path_factory, heads, bodies, cut, chunk):
    folder = tmp_path_factory.mktemp("ranks")
    bodies = (bodies[0], bodies[0] + bodies[1])
    documents = [
        f"{head}<testsuites><testsuite>{body}</testsuite></testsuites>".encode()[:cut]
        for head, body in zip(heads, bodies, strict=True)
    ]
    mixed = read(documents, folder, chunk)
    with patch.object(PlainCases, "take", lambda _, chunk: chunk):
        assert mixed == read(documents, folder, 1 << 20)


@pytest.mark.parametrize("case", [PLAIN, OWN])
def test_runs_are_not_left_to_expat(tmp_path, case):
    document = "<testsuites><testsuite>" + "".join(case.format(number, 2) for number in range(100))
    with patch.object(PlainCases, "run", autospec=True, side_effect=PlainCases.run) as run:
        (file,) = read([document.encode()], tmp_path, 4096)
    assert 1 <= run.call_count <= 15
    assert [key.name for key in file.keys] == [f"test_{number}" for number in range(100)]
    assert set(file.world_sizes.values()) == ({2} if case == OWN else set())


@pytest.mark.parametrize("encoding", ["utf-16", "cp037", "cp500"])
def test_documents_in_which_bytes_are_other_letters_are_left_to_expat(tmp_path, encoding):
    head = f"<?xml version='1.0' encoding='{encoding}'?>"
    document = f"{head}<testsuites><testsuite>{PLAIN.format(1, 2) * 3}</testsuite></testsuites>".encode(encoding)
    taken, alone = read([document], tmp_path, 64), read([document], tmp_path, 1 << 20)
    assert taken == alone
