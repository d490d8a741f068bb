"""``allranks init``: writes a matrix file and a noxfile for a repository, and a first test if it has none."""

import importlib.metadata
import importlib.util
import json
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar
from urllib.parse import unquote, urlsplit

from allranks.cli.existing_tests import STYLES, ExistingTests, find_tests
from allranks.cli.parser import CommandOptions, flag, option
from allranks.cli.printing import say, warn
from allranks.engines import AUTO
from allranks.engines.package import package_folder
from allranks.errors import DeviceError, EngineError, ExitCode, UsageError, counted
from allranks.matrix.axes import is_version
from allranks.matrix.declaration import FILE_NAME
from allranks.matrix.tables import json_schema
from allranks.matrix.toml_file import PYPROJECT, PYPROJECT_TABLE
from allranks.user_cache import write_atomically

NOXFILE = """\
# /// script
# dependencies = ["nox", {requirement}]
# ///
from allranks.nox import register

register()
"""

FIRST_TEST = '''\
"""A first test: every rank of a cell runs it, in the process group of the cell."""

import torch
import torch.distributed as dist


def test_all_reduce_sums_over_ranks(process_group, rank, world_size, device):
    tensor = torch.full((3,), float(rank), device=device)
    dist.all_reduce(tensor, group=process_group)
    assert tensor.tolist() == [sum(range(world_size))] * 3
'''

_SOURCE_FORMS = "--source CHECKOUT, --source WHEEL, or --source git+https://...@COMMIT"
_REMOTE = re.compile(r"(?:git\+(?:https|ssh|file)|https)://\S+")

DEFAULT_TORCH = "2.13.0"
"""The torch of the image if none is installed here."""

PACKAGES_OF_TORCHS_CLASSES = ("expecttest", "numpy")

_REQUIREMENTS = (
    *("requirements-test.txt", "requirements-tests.txt", "requirements_test.txt", "test-requirements.txt"),
    *("requirements/test.txt", "requirements/tests.txt", "tests/requirements.txt"),
    *("requirements-dev.txt", "dev-requirements.txt", "requirements/dev.txt", "requirements.txt"),
)
"""Files with the requirements of tests, the most likely first."""

_XDIST = re.compile(r"""(?:^|[\s"'=\[])(?:-n|--numprocesses)(?=[\s"',=\d]|auto)""", re.MULTILINE)
_COMMENT_COLUMN = 36

_SHOWN = 20
"""The maximum number of files that are listed by name."""


IGNORED = ("results/", ".nox/")
"""Folders that runs and nox create in a repository."""


@dataclass(frozen=True, kw_only=True)
class Repository:
    """What `init` finds in a repository and on its host."""

    tests: ExistingTests = field(default_factory=ExistingTests)
    folder: str = ""  # the folder for a first test, relative to the repository; empty if it has distributed tests
    requirement: str = ""  # the requirement for allranks in a new noxfile; empty if there is a noxfile
    requirements: str = ""  # a requirements file; empty for none
    has_project: bool = False  # whether the repository is a package that pip can build
    uses_xdist: bool = False  # whether its pytest configuration requests pytest-xdist's workers
    torch: str = ""  # the version of the installed torch, without a local part; empty if none is installed
    is_cpu_only: bool = False  # whether that torch was built without CUDA and ROCm
    missing: str = ""  # the first package that the tests need and this interpreter does not have
    python: str = ""  # this interpreter as the matrix file names it; empty if it has no portable name
    gpus: int = 0
    engine: tuple[str, str] = ("process", "")  # the engine of runs, and the reason

    @property
    def can_run_ranks(self) -> bool:
        """Whether ranks can run in this interpreter."""
        return bool(self.python and self.torch) and not self.missing


_WRITTEN = "what to write"
_SCHEMA = "to print a JSON schema of the matrix file, for editors"


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """The options of ``allranks init``."""

    usage: ClassVar = "allranks init [FOLDER] [options]"

    folder: Path = option(
        "FOLDER", _WRITTEN, "the repository (default: this folder)", nargs="?", type=Path, default=Path()
    )
    dry_run: bool = flag("--dry-run", _WRITTEN, "print the files, but do not write them")
    source: str | None = option(
        "--source SOURCE",
        _WRITTEN,
        "the source from which noxfile.py installs allranks: a checkout, a wheel, or git+https://...@COMMIT "
        "(default: the source of this installation)",
    )
    force: bool = flag("--force", _WRITTEN, f"overwrite an existing {FILE_NAME} or first test")
    schema: bool = flag("--schema", _SCHEMA, f"print the schema of {FILE_NAME}")
    pyproject: bool = flag(
        "--pyproject",
        _SCHEMA,
        f"with --schema: print the schema of {PYPROJECT}, where the matrix is [{'.'.join(PYPROJECT_TABLE)}]",
    )


def _show_schema(options: Options) -> ExitCode:
    schema = json_schema()
    say(json.dumps(_inside_pyproject(schema) if options.pyproject else schema, indent=2))
    return ExitCode.OK


def _inside_pyproject(schema: dict[str, object]) -> dict[str, object]:
    """A schema of pyproject.toml that allows everything outside of the matrix."""
    outer = {"$schema": schema.pop("$schema")}
    inner: dict[str, object] = schema
    for name in reversed(PYPROJECT_TABLE):
        inner = {"properties": {name: inner}}
    return outer | inner


def run(options: Options) -> ExitCode:
    """Write the files, or print the schema."""
    if options.schema:
        return _show_schema(options)
    if options.pyproject:
        msg = "--pyproject needs --schema."
        raise UsageError(msg, remedy="Write: allranks init --schema --pyproject")
    root = options.folder.absolute()
    if not root.is_dir():
        msg = f"There is no folder {options.folder}."
        raise UsageError(msg, remedy="Create it, or name the folder of your repository.")
    found = inspect_repository(root, options.source)
    texts = contents(found)
    if not options.force and not options.dry_run:
        _check_not_existing(root, texts)
    for name, text in (texts | _gitignore(root)).items():
        if options.dry_run:
            say(f"--- {name}\n{text}")
        else:
            _write(root / name, text)
            say(f"wrote {name}")
    for line in (*_classification(found.tests), *_advice(root, found)):
        warn(line)
    return ExitCode.OK


def _check_not_existing(root: Path, texts: Mapping[str, str]) -> None:
    present = [name for name in texts if name != "noxfile.py" and (root / name).exists()]
    if _pyproject_table(root, *PYPROJECT_TABLE):
        present.append(f"[{'.'.join(PYPROJECT_TABLE)}] in {PYPROJECT}")
    if present:
        msg = f"This repository already has {' and '.join(present)}. Nothing was written."
        remedy = "`allranks plan` shows its matrix. --dry-run prints the new files, --force overwrites."
        raise UsageError(msg, remedy=remedy)


def _gitignore(root: Path) -> dict[str, str]:
    """The text of .gitignore with missing lines added; empty if none are missing."""
    text = _text(root / ".gitignore")
    lines = {line.strip().strip("/") for line in text.splitlines()}
    missing = [line for line in IGNORED if line.strip("/") not in lines]
    end = "" if not text or text.endswith("\n") else "\n"
    return {".gitignore": f"{text}{end}{chr(10).join(missing)}\n"} if missing else {}


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    except OSError as error:
        msg = f"{path} cannot be written."
        raise UsageError(
            msg, why=f"{error.strerror}.", remedy="Check the permissions and the free space of its folder."
        ) from error
    except UnicodeEncodeError as error:
        msg = f"{path} cannot be written."
        why = "It would contain a path that is not UTF-8, but every TOML file is UTF-8."
        raise UsageError(msg, why=why, remedy="Rename the folder or file of tests.") from error


def _classification(tests: ExistingTests) -> Iterator[str]:
    """How the test files of the repository were classified."""
    if not tests.counts:
        return
    yield f"{counted(sum(tests.counts.values()), 'test file')}:"
    yield from (f"    {tests.counts[style]} in suites.{style}: {STYLES[style].meaning}" for style in tests.suites)
    if plain := tests.counts.get("", 0) - len(tests.unrecognized):
        yield f"    {plain} in no suite: not distributed"
    if unknown := tests.unrecognized:
        yield f"    {len(unknown)} in no suite, not recognized: they mention ranks, but it is unclear what starts them"
        yield from (f"        {path}" for path in unknown[:_SHOWN])
        if (rest := len(unknown) - _SHOWN) > 0:
            yield f"        and {rest} more"
    if tests.has_more:
        yield "There are more test files, which were not read and are in no suite."


def _advice(root: Path, found: Repository) -> Iterator[str]:
    noxfile = root / "noxfile.py"
    if noxfile.exists() and "allranks" not in _text(noxfile):
        requirement = f"allranks @ {_own_address() or 'git+https://...@COMMIT'}"
        yield "noxfile.py already exists. To add a session for each cell, add to it:"
        yield from (f"    {line}" for line in NOXFILE.format(requirement=json.dumps(requirement)).splitlines())
    if "file://" in found.requirement:
        yield "noxfile.py installs allranks from a path on this machine. For others, write allranks @ git+https://...@COMMIT."
    name, why = found.engine
    yield f"Engine: {name}{f' ({why})' if why else ''}."
    if name == "process" and not found.can_run_ranks:
        reason = f"lacks {found.missing}" if found.missing else "is neither in this repository nor on the PATH"
        yield f"Jobs will run in an environment that allranks creates, because {sys.executable} {reason}."
        if found.missing:
            yield f"To use it instead, install {found.missing}, and run allranks init --force."
    yield "Next: allranks plan, then allranks run"


def inspect_repository(root: Path, source: str | None = None) -> Repository:
    """Inspect the repository and this host."""
    tests = find_tests(root)
    torch, is_cpu_only = installed_torch()
    has_noxfile = (root / "noxfile.py").exists()
    if has_noxfile and source is not None:
        msg = "--source is only for a new noxfile.py, but there already is one."
        raise UsageError(msg, remedy="Drop --source, or remove the noxfile first.")
    needed = ("torch", "pytest", *(PACKAGES_OF_TORCHS_CLASSES if tests.need_expecttest else ()))
    return Repository(
        tests=tests,
        requirement="" if has_noxfile else _requirement(source),
        folder="" if tests.suites else f"{'test' if _is_test_folder(root) else 'tests'}/distributed",
        requirements=next((name for name in _REQUIREMENTS if (root / name).is_file()), ""),
        has_project=_has_project(root),
        uses_xdist=any(_XDIST.search(text) for text in _pytest_configurations(root)),
        torch=torch,
        is_cpu_only=is_cpu_only,
        missing=" and ".join(name for name in needed if importlib.util.find_spec(name) is None),
        python=_python(root),
        gpus=0 if is_cpu_only else _gpus(),
        engine=_engine(),
    )


def _is_test_folder(root: Path) -> bool:
    return (root / "test").is_dir() and not (root / "tests").is_dir()


def _has_project(root: Path) -> bool:
    return (root / "setup.py").is_file() or bool(
        _pyproject_table(root, "project") or _pyproject_table(root, "build-system")
    )


def _pytest_configurations(root: Path) -> Iterator[str]:
    yield str(_pyproject_table(root, "tool", "pytest"))
    for name in ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg"):
        yield "\n".join(re.findall(r"^addopts(?:.*\n(?:[ \t].*\n?)*)", _text(root / name) + "\n", re.MULTILINE))


def _pyproject_table(root: Path, *keys: str) -> object:
    """A table of pyproject.toml; None if it does not exist."""
    value: object = None
    with suppress(OSError, ValueError):
        value = tomllib.loads((root / PYPROJECT).read_text(encoding="utf-8"))
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""


def installed_torch() -> tuple[str, bool]:
    """The version of the installed torch, and whether it lacks CUDA and ROCm; without importing it."""
    spec = importlib.util.find_spec("torch")
    text = _text(Path(spec.origin).with_name("version.py")) if spec and spec.origin else ""
    values = dict(re.findall(r"^(__version__|cuda|hip)\b[^=\n]*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE))
    version = values.get("__version__", "").partition("+")[0]
    return (version, not {"cuda", "hip"} & values.keys()) if is_version(version) else ("", False)


def _python(root: Path) -> str:
    """A name of this interpreter for other machines, too: in the repository or on the PATH; empty if it has none."""
    prefix = Path(sys.prefix)
    if prefix.is_relative_to(root):
        return (prefix.relative_to(root) / "bin" / "python").as_posix()
    first = shutil.which("python3")
    return "python3" if first and Path(first).parent == Path(sys.executable).parent else ""


def _gpus() -> int:
    from allranks.engines.gpus import take_inventory  # noqa: PLC0415 - the help of `init` does not need it

    try:
        return len(take_inventory().gpus)
    except DeviceError:
        return 0


def _engine() -> tuple[str, str]:
    from allranks.engines.registry import choose_engine  # noqa: PLC0415 - see _gpus

    try:
        engine, why = choose_engine(AUTO)
    except EngineError as error:
        return "process", error.what
    engine.close()
    return engine.name, why


def _requirement(given: str | None) -> str:
    """A requirement that installs this allranks. It has a URL: ``allranks`` on an index may be another project."""
    if given is not None:
        return f"allranks @ {_address(given)}"
    if address := _own_address():
        return f"allranks @ {address}"
    msg = "noxfile.py needs the source of this installation of allranks, which is unknown."
    why = "It was installed by name, or its source no longer exists."
    raise UsageError(msg, why=why, remedy=f"Pass it: {_SOURCE_FORMS}.")


def _address(given: str) -> str:
    """The URL of a source that the user names."""
    if _REMOTE.fullmatch(given):
        return given
    path = Path(given.removeprefix("file://")).absolute()
    if (path.is_file() and path.suffix == ".whl") or _pyproject_table(path, "project", "name") == "allranks":
        return path.as_uri()
    msg = f"{given} is neither a checkout of allranks nor a wheel."
    raise UsageError(msg, remedy=f"Write {_SOURCE_FORMS}.")


def _own_address() -> str:
    """The URL of this allranks: its checkout, or the source that pip recorded (direct_url.json); empty if unknown."""
    checkout = package_folder().parents[1]
    if _pyproject_table(checkout, "project", "name") == "allranks":
        return checkout.as_uri()
    try:
        # Several may be installed: find the one whose modules are running.
        installed = importlib.metadata.distributions(name="allranks")
        own = next(dist for dist in installed if Path(str(dist.locate_file("allranks"))).resolve() == package_folder())
        direct_url = json.loads(own.read_text("direct_url.json") or "{}")
        url = str(direct_url["url"])
        if vcs := direct_url.get("vcs_info"):
            return f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
        if url.startswith("file://"):
            return url if Path(unquote(urlsplit(url).path)).exists() else ""
        return f"{url}#sha256={direct_url['archive_info']['hashes']['sha256']}"
    except (StopIteration, ValueError, LookupError, TypeError, AttributeError):
        return ""


def contents(found: Repository) -> dict[str, str]:
    """The files to write, relative to the repository, each with its text."""
    noxfile = {"noxfile.py": NOXFILE.format(requirement=json.dumps(found.requirement))} if found.requirement else {}
    test = {f"{found.folder}/test_all_reduce.py": FIRST_TEST} if found.folder else {}
    return {FILE_NAME: matrix_text(found), **noxfile, **test}


def matrix_text(found: Repository) -> str:
    """The text of the matrix file."""
    suites = found.tests.suites or {"distributed": (found.folder,)}
    tables = (_suite(style, paths, found) for style, paths in suites.items())
    parts = (_HEAD, _axes(found), *tables, _image(found), _process(found))
    return "\n".join("\n".join(part) + "\n" for part in parts if part)


_HEAD = (
    "# The matrix of this repository. allranks runs every suite in every cell, a combination of values of [matrix].",
    "# `allranks plan` lists the cells, `allranks run` runs them, and `allranks init --schema` helps editors.",
)


def _axes(found: Repository) -> list[str]:
    gpus = [count for count in (1, 2) if count <= found.gpus]
    lines = ["[matrix]"]
    if gpus:
        lines.append(_line("backend", ["gloo", "nccl"], "the backends of the process group"))
        lines.append(_line("world_size", [1, 2], "numbers of ranks"))
        lines.append(_line("gpu_count", [0, *gpus], "numbers of GPUs"))
        return [*lines, "", *_GPU_RULES]
    lines.append(_line("backend", ["gloo"], 'the backends of the process group; "nccl" is another'))
    lines.append(_line("world_size", [1, 2], "numbers of ranks"))
    return [*lines, '# For NCCL on GPUs, add "nccl" to backend, and:', *(f"# {line}".rstrip() for line in _MORE_GPUS)]


_GPU_RULES = (
    "# `when` compares axes: ==, !=, <, in, and, or, not. The reason is shown with each dropped cell.",
    "[[matrix.exclude]]",
    "when   = \"backend == 'nccl' and gpu_count != world_size\"",
    'reason = "NCCL needs a GPU for each rank"',
    "",
    "[[matrix.exclude]]",
    "when   = \"backend == 'gloo' and gpu_count > 0\"",
    'reason = "gloo is tested only with CPU tensors"',
)
_MORE_GPUS = ("gpu_count  = [0, 1, 2]", *_GPU_RULES[1:])


def _suite(name: str, paths: Sequence[str], found: Repository) -> list[str]:
    style = STYLES[name]
    lines = [f"[suites.{name}]", f"# {style.meaning[0].upper()}{style.meaning[1:]}."]
    if len(paths) == 1:
        lines.append(_line("path", paths[0], "or a list of folders, files and globs"))
    else:
        lines += ["path = [", *(f"    {json.dumps(path, ensure_ascii=False)}," for path in paths), "]"]
    lines += [_line(key, value, "see docs/existing-tests.md") for key, value in style.keys.items()]
    if style.starts_ranks and found.gpus != 1:
        lines.append(_line("when", "world_size == 2", "these tests choose their number of ranks themselves"))
    if not style.keys and not style.starts_ranks:
        lines.append(_line("isolation", "file", 'the lifetime of ranks: "test", "file" or "job"'))
    if found.uses_xdist:
        lines.append(_line("pytest_args", ["-n", "0"], "allranks distributes the tests itself; keep pytest-xdist off"))
    return lines


def _image(found: Repository) -> list[str]:
    here = "as here" if found.engine[0] == "docker" else "not here"
    lines = [
        f"# If a Docker daemon is available ({here}), cells run in containers of an image with this content,",
        "# which the first run builds; otherwise they run as processes.",
        "[images.default]",
        _line("torch", found.torch or DEFAULT_TORCH, "an exact version"),
    ]
    if found.requirements:
        lines.append(_line("requirements", found.requirements, "the requirements of the tests"))
    if found.tests.need_expecttest:
        lines.append(_line("packages", [*PACKAGES_OF_TORCHS_CLASSES], "torch's test classes import them"))
    elif not found.requirements:
        lines.append(f"# {_line('packages', ['numpy'], 'other packages that the tests need')}")
    if found.has_project:
        lines.append(_line("project", ".", "your own code, installed from a wheel"))
    return lines


def _process(found: Repository) -> list[str]:
    if not found.can_run_ranks:
        return []
    kind = "for CPUs" if found.is_cpu_only else "for GPUs"
    return [
        "# The interpreter for processes. Without this table, allranks creates an environment like the image.",
        "[process]",
        _line("python", found.python, f"it has torch {found.torch} {kind}"),
    ]


def _line(key: str, value: object, comment: str) -> str:
    """A TOML key with a comment; JSON's strings are also valid in TOML, except for a few control characters."""
    return f"{f'{key:<10} = {json.dumps(value, ensure_ascii=False)}':<{_COMMENT_COLUMN}} # {comment}"
