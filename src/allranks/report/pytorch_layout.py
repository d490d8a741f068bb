"""Writes the merged report as PyTorch's ``--save-xml`` does, for tools that read ``test-reports``.

For each run of a test file, ``run_tests`` (torch/testing/_internal/common_utils.py) writes
``python-pytest/distributed.test_x/distributed.test_x-N.xml``, where N has 16 random digits. The class names in it have
no module; the file of a test is an attribute. Each file that allranks writes has the verdicts on the tests of one test
file in one job, and N is the same in each merge.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from allranks.errors import ResultsError
from allranks.protocol.grouping import by_key
from allranks.protocol.xml_text import MESSAGE_LIMIT, attribute, clean_cut, element_text, file_of
from allranks.report.folder import is_merged_report
from allranks.report.judged import CellSuite
from allranks.report.junit import reject_foreign
from allranks.report.junit_case import RETRIES, RETRY_LIMIT, outcome_element, shown
from allranks.report.junit_document import JUnitDocument, SuiteHead
from allranks.report.results import TestVerdict
from allranks.report.untrusted import leads_out

LAYOUT_FOLDER: Final = Path("test-reports")
_SOURCE: Final = "python-pytest"
_SUITE: Final = "pytest"
_WORKING_FOLDER: Final = "test/"
"""PyTorch's tests run in this folder, and file names are relative to it."""

_NO_FILE: Final = "allranks"
"""The file name for errors that belong to no test."""

_DIGEST: Final = 8
_LONGEST: Final = 200
"""Bytes of a file name without the digest: file systems allow 255."""


class PyTorchLayout:
    """Writes the files, job by job, below the resolved folder of the merged report."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.folder = root / LAYOUT_FOLDER
        for path in self.folder.glob(f"{_SOURCE}/*/*.xml"):  # of an earlier merge, which may have had other jobs
            if is_merged_report(path) and not leads_out(root, path):
                path.unlink()

    def add(self, suite: CellSuite) -> None:
        """Write a report for each test file of the job; ResultsError if that fails."""
        for file, tests in by_key((_file(test), test) for test in suite.tests).items():
            try:
                self._write(suite, file, tests)
            except OSError as error:
                msg = f"The PyTorch layout in {self.folder} is incomplete."
                why = f"{error.filename or file}: {error.strerror}."
                remedy = "Fix the cause and merge again; all other reports are complete."
                raise ResultsError(msg, why=why, remedy=remedy) from error

    def _write(self, suite: CellSuite, file: str, tests: Sequence[TestVerdict]) -> None:
        from hashlib import blake2b  # noqa: PLC0415 - OpenSSL takes 4 MB, and few reports need it

        stem = _dotted(file)
        digest = blake2b(f"{suite.id}\n{file}".encode(), digest_size=_DIGEST).hexdigest()
        path = self.folder / _SOURCE / stem / f"{stem}-{digest}.xml"
        if leads_out(self._root, path.parent):
            msg = f"{path.parent} points outside the results folder."
            raise ResultsError(msg, why="The PyTorch layout would be written there.", remedy="Remove the link.")
        path.parent.mkdir(parents=True, exist_ok=True)
        reject_foreign(path, is_merged_report)
        document = JUnitDocument(path)
        try:
            facts = (("cell", suite.cell), ("suite", suite.suite))
            document.begin(SuiteHead(name=_SUITE, started=suite.started, facts=facts))
            for test in tests:
                document.add(_case(test, file).encode(), test.verdict.kind, test.time)
            document.end()
            document.finish()
        finally:
            document.close()


def _file(test: TestVerdict) -> str:
    """The file of a test, or of a module that was skipped as a whole, relative to PyTorch's ``test``."""
    file = test.file or file_of(test.nodeid) or (test.nodeid if test.nodeid.endswith(".py") else _NO_FILE)
    return file.removeprefix(_WORKING_FOLDER)


def _dotted(file: str) -> str:
    name = shown(file.removesuffix(".py").replace("/", "."))
    return name.encode()[-_LONGEST:].decode(errors="ignore")


def _case(test: TestVerdict, file: str) -> str:
    # A function without a class has the name of its module, as in PyTorch's files.
    path, *classes = test.nodeid.partition("[")[0].split("::")[:-1] or [""]
    classname = classes[-1] if classes else _dotted(file).rpartition(".")[2] if path else ""
    source = f" file={attribute(file)}" if file != _NO_FILE else ""
    names = f"classname={attribute(classname)} name={attribute(shown(test.name))}"
    elements = (*_reruns(test.earlier), *outcome_element(test))
    return f'<testcase {names} time="{test.time:.3f}"{source}>{"".join(elements)}</testcase>\n'


def _reruns(earlier: Sequence[TestVerdict]) -> Iterator[str]:
    """The last earlier attempts, in the form of pytest's reruns in PyTorch's files."""
    for attempt in earlier[-RETRIES:]:
        message, text = clean_cut(attempt.verdict.message, MESSAGE_LIMIT), clean_cut(attempt.verdict.text, RETRY_LIMIT)
        yield f"<rerun message={attribute(message)}>{element_text(text)}</rerun>\n"
