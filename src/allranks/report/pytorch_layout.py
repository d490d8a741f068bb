"""The merged report in the files of PyTorch's ``--save-xml``, for tools that read ``test-reports``.

For each run of a file, ``run_tests`` (torch/testing/_internal/common_utils.py) writes
``python-pytest/distributed.test_x/distributed.test_x-N.xml``, where N has 16 random digits, and names the test's file
beside a class without its module. Here such a file has the verdicts on the tests of one file in one job, and N is the
same in each merge.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from allranks.errors import ResultsError
from allranks.protocol.xml_text import MESSAGE_LIMIT, attribute, clean_cut, element_text, file_of
from allranks.report.folder import is_merged_report
from allranks.report.judged import CellSuite
from allranks.report.junit import refuse_foreign
from allranks.report.junit_case import RETRIES, RETRY_LIMIT, outcome_element, shown
from allranks.report.junit_document import JUnitDocument, SuiteHead
from allranks.report.results import TestVerdict
from allranks.report.untrusted import leads_out

LAYOUT_FOLDER: Final = Path("test-reports")
_SOURCE: Final = "python-pytest"
_SUITE: Final = "pytest"
_WORKING_FOLDER: Final = "test/"
"""PyTorch's tests run in this folder, and name their files below it."""

_NO_FILE: Final = "allranks"
"""Takes the place of the file for errors that belong to no test."""

_DIGEST: Final = 8
_LONGEST: Final = 200
"""Bytes of a file's name: file systems allow 255, and the digest is in it, too."""


class PyTorchLayout:
    """Writes the files, job by job, below the folder of the merged report, whose path is resolved."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.folder = root / LAYOUT_FOLDER
        for path in self.folder.glob(f"{_SOURCE}/*/*.xml"):  # of an earlier merge, which may have had other jobs
            if is_merged_report(path) and not leads_out(root, path):
                path.unlink()

    def add(self, suite: CellSuite) -> None:
        """Write a file for each file of the job; one that cannot be written is a ResultsError."""
        files: dict[str, list[TestVerdict]] = {}
        for test in suite.tests:
            files.setdefault(_file(test), []).append(test)
        for file, tests in files.items():
            try:
                self._write(suite, file, tests)
            except OSError as error:
                msg = f"PyTorch's layout in {self.folder} is not complete."
                why = f"{error.filename or file}: {error.strerror}."
                raise ResultsError(
                    msg, why=why, remedy="Correct that, and merge again: the report is complete."
                ) from error

    def _write(self, suite: CellSuite, file: str, tests: Sequence[TestVerdict]) -> None:
        from hashlib import blake2b  # noqa: PLC0415 - OpenSSL takes 4 MB, and few reports need it

        stem = _dotted(file)
        digest = blake2b(f"{suite.id}\n{file}".encode(), digest_size=_DIGEST).hexdigest()
        path = self.folder / _SOURCE / stem / f"{stem}-{digest}.xml"
        if leads_out(self._root, path.parent):
            msg = f"{path.parent} points out of the results folder."
            raise ResultsError(msg, why="PyTorch's layout would be written there.", remedy="Remove that link.")
        path.parent.mkdir(parents=True, exist_ok=True)
        refuse_foreign(path, is_merged_report)
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
    """The file of a test, or the module that was skipped as a whole, below PyTorch's ``test``."""
    file = test.file or file_of(test.nodeid) or (test.nodeid if test.nodeid.endswith(".py") else _NO_FILE)
    return file.removeprefix(_WORKING_FOLDER)


def _dotted(file: str) -> str:
    name = shown(file.removesuffix(".py").replace("/", "."))
    return name.encode()[-_LONGEST:].decode(errors="ignore")


def _case(test: TestVerdict, file: str) -> str:
    # A function without a class has the name of its module, as in PyTorch's files.
    path, *classes = test.nodeid.partition("[")[0].split("::")[:-1] or [""]
    classname = classes[-1] if classes else _dotted(file).rpartition(".")[2] if path else ""
    place = f" file={attribute(file)}" if file != _NO_FILE else ""
    names = f"classname={attribute(classname)} name={attribute(shown(test.name))}"
    told = (*_reruns(test.earlier), *outcome_element(test))
    return f'<testcase {names} time="{test.time:.3f}"{place}>{"".join(told)}</testcase>\n'


def _reruns(earlier: Sequence[TestVerdict]) -> Iterator[str]:
    """The last attempts before the one that counts, as pytest's reruns are in PyTorch's files."""
    for attempt in earlier[-RETRIES:]:
        message, text = clean_cut(attempt.verdict.message, MESSAGE_LIMIT), clean_cut(attempt.verdict.text, RETRY_LIMIT)
        yield f"<rerun message={attribute(message)}>{element_text(text)}</rerun>\n"
