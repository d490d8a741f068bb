"""``allranks init``: writes a matrix file and a noxfile for the tests of a repository, or a first test."""

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
"""Files with what tests need, the likeliest first."""

_XDIST = re.compile(r"""(?:^|[\s"'=\[])(?:-n|--numprocesses)(?=[\s"',=\d]|auto)""", re.MULTILINE)
_COMMENT_COLUMN = 36

_SHOWN = 20
"""Files that are named one by one."""


IGNORED = ("results/", ".nox/")
"""What runs and nox write into a repository."""


@dataclass(frozen=True, kw_only=True)
class Repository:
    """What `init` finds in a repository and on its host."""

    tests: ExistingTests = field(default_factory=ExistingTests)
    folder: str = ""  # where a first test goes, relative to the repository; empty if it has distributed tests
    requirement: str = ""  # what installs allranks for the new noxfile; empty if there is a noxfile
    requirements: str = ""  # a requirements file; empty for none
    has_project: bool = False  # True if the repository is a package that pip can build
    uses_xdist: bool = False  # True if its pytest configuration asks for pytest-xdist's workers
    torch: str = ""  # the version of the installed torch, without a local part; empty if none is installed
    is_cpu_only: bool = False  # True if that torch was built without CUDA and ROCm
    lacks: str = ""  # the first package that the tests need and this interpreter does not have
    python: str = ""  # this interpreter as the matrix file names it; empty if it has no stable name
    gpus: int = 0
    engine: tuple[str, str] = ("process", "")  # where runs take place: ``docker`` or ``process``, and why

    @property
    def is_runner(self) -> bool:
        """Whether the ranks can run in this interpreter."""
        return bool(self.python and self.torch) and not self.lacks


_WRITTEN = "what to write"
_SCHEMA = "instead: a JSON schema of the matrix file, for editors"


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """The options of ``allranks init``."""

    usage: ClassVar = "allranks init [FOLDER] [options]"

    folder: Path = option("FOLDER", _WRITTEN, "the repository (default: here)", nargs="?", type=Path, default=Path())
    dry_run: bool = flag("--dry-run", _WRITTEN, "print the files, and write nothing")
    source: str | None = option(
        "--source SOURCE",
        _WRITTEN,
        "where noxfile.py installs allranks from: the path of a checkout or wheel, or git+https://...@COMMIT "
        "(default: where this allranks was installed from)",
    )
    force: bool = flag("--force", _WRITTEN, f"overwrite an existing {FILE_NAME} or first test")
    schema: bool = flag("--schema", _SCHEMA, f"print the schema of {FILE_NAME}")
    pyproject: bool = flag(
        "--pyproject",
        _SCHEMA,
        f"with --schema: that of {PYPROJECT}, in which the matrix is [{'.'.join(PYPROJECT_TABLE)}]",
    )


def _show_schema(options: Options) -> ExitCode:
    schema = json_schema()
    say(json.dumps(_inside_pyproject(schema) if options.pyproject else schema, indent=2))
    return ExitCode.OK


def _inside_pyproject(schema: dict[str, object]) -> dict[str, object]:
    """A schema of pyproject.toml that allows everything beside the matrix."""
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
    found = look_around(root, options.source)
    texts = contents(found)
    if not options.force and not options.dry_run:
        _refuse_existing(root, texts)
    for name, text in (texts | _ignoring(root)).items():
        if options.dry_run:
            say(f"--- {name}\n{text}")
        else:
            _write(root / name, text)
            say(f"wrote {name}")
    for line in (*_classification(found.tests), *_advice(root, found)):
        warn(line)
    return ExitCode.OK


def _refuse_existing(root: Path, texts: Mapping[str, str]) -> None:
    present = [name for name in texts if name != "noxfile.py" and (root / name).exists()]
    if _tool_table(root, *PYPROJECT_TABLE):
        present.append(f"[{'.'.join(PYPROJECT_TABLE)}] in {PYPROJECT}")
    if present:
        msg = f"This repository already has {' and '.join(present)}, and nothing was written."
        remedy = "`allranks plan` shows its matrix. --dry-run prints the files, and --force overwrites."
        raise UsageError(msg, remedy=remedy)


def _ignoring(root: Path) -> dict[str, str]:
    """The text of .gitignore with what it lacks; nothing if it has all."""
    text = _text(root / ".gitignore")
    lines = {line.strip().strip("/") for line in text.splitlines()}
    lacking = [line for line in IGNORED if line.strip("/") not in lines]
    end = "" if not text or text.endswith("\n") else "\n"
    return {".gitignore": f"{text}{end}{chr(10).join(lacking)}\n"} if lacking else {}


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        msg = f"{path} cannot be written."
        raise UsageError(msg, why=f"{error.strerror}.", remedy="Check the permissions of its folder.") from error


def _classification(tests: ExistingTests) -> Iterator[str]:
    """What the test files of the repository were taken for, and those that nothing was recognized of."""
    if not tests.counts:
        return
    yield f"{counted(sum(tests.counts.values()), 'test file')}:"
    yield from (f"    {tests.counts[style]} in suites.{style}: {STYLES[style].meaning}" for style in tests.suites)
    if plain := tests.counts.get("", 0) - len(tests.unrecognized):
        yield f"    {plain} in no suite: nothing of these is distributed"
    if unknown := tests.unrecognized:
        yield f"    {len(unknown)} in no suite, not recognized: these mention ranks, and do not say who starts them"
        yield from (f"        {path}" for path in unknown[:_SHOWN])
        if (rest := len(unknown) - _SHOWN) > 0:
            yield f"        and {rest} more"
    if tests.has_more:
        yield "There are more test files, which were not read: they are in no suite."


def _advice(root: Path, found: Repository) -> Iterator[str]:
    noxfile = root / "noxfile.py"
    if noxfile.exists() and "allranks" not in _text(noxfile):
        requirement = f"allranks @ {_own_address() or 'git+https://...@COMMIT'}"
        yield "noxfile.py is there already; for sessions of the cells add to it:"
        yield from (f"    {line}" for line in NOXFILE.format(requirement=json.dumps(requirement)).splitlines())
    if "file://" in found.requirement:
        yield "noxfile.py installs allranks from a path of this machine. For others write allranks @ git+https://...@COMMIT."
    name, why = found.engine
    yield f"Engine: {name}{f' ({why})' if why else ''}."
    if name == "process" and not found.is_runner:
        reason = f"lacks {found.lacks}" if found.lacks else "is neither in this repository nor on the PATH"
        yield f"Jobs will run in an environment that allranks makes, since {sys.executable} {reason}."
    yield "Next: allranks plan, then allranks run"


def look_around(root: Path, source: str | None = None) -> Repository:
    """What the repository and this host have."""
    tests = find_tests(root)
    torch, is_cpu_only = installed_torch()
    has_noxfile = (root / "noxfile.py").exists()
    if has_noxfile and source is not None:
        msg = "There is a noxfile.py already, and --source tells what a new one installs."
        raise UsageError(msg, remedy="Leave out --source, or remove the noxfile first.")
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
        lacks=next((name for name in needed if importlib.util.find_spec(name) is None), ""),
        python=_python(root),
        gpus=0 if is_cpu_only else _gpus(),
        engine=_engine(),
    )


def _is_test_folder(root: Path) -> bool:
    return (root / "test").is_dir() and not (root / "tests").is_dir()


def _has_project(root: Path) -> bool:
    return (root / "setup.py").is_file() or bool(_tool_table(root, "project") or _tool_table(root, "build-system"))


def _pytest_configurations(root: Path) -> Iterator[str]:
    yield str(_tool_table(root, "tool", "pytest"))
    for name in ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg"):
        yield "\n".join(re.findall(r"^addopts(?:.*\n(?:[ \t].*\n?)*)", _text(root / name) + "\n", re.MULTILINE))


def _tool_table(root: Path, *keys: str) -> object:
    """A table of pyproject.toml; None if there is none, or no such file."""
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
    """The installed torch, without importing it: its version, and whether it lacks CUDA and ROCm."""
    spec = importlib.util.find_spec("torch")
    text = _text(Path(spec.origin).with_name("version.py")) if spec and spec.origin else ""
    values = dict(re.findall(r"^(__version__|cuda|hip)\b[^=\n]*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE))
    version = values.get("__version__", "").partition("+")[0]
    return (version, not {"cuda", "hip"} & values.keys()) if is_version(version) else ("", False)


def _python(root: Path) -> str:
    """This interpreter, by a name that is good on other machines, too: below the repository, or on the PATH."""
    prefix = Path(sys.prefix)
    if prefix.is_relative_to(root):
        return (prefix.relative_to(root) / "bin" / "python").as_posix()
    first = shutil.which("python3")
    return "python3" if first and Path(first).parent == Path(sys.executable).parent else ""


def _gpus() -> int:
    from allranks.engines.gpus import take_inventory  # noqa: PLC0415 - no other command line part needs it so early

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
    """A requirement that installs this allranks. It always has an address: the name on an index may be a stranger's."""
    if given is not None:
        return f"allranks @ {_address(given)}"
    if address := _own_address():
        return f"allranks @ {address}"
    msg = "Where this allranks was installed from cannot be determined, and noxfile.py has to name it."
    why = "It was installed by its name, or what it was installed from is gone."
    raise UsageError(msg, why=why, remedy=f"Pass it: {_SOURCE_FORMS}.")


def _address(given: str) -> str:
    """The address of a source that the user names."""
    if _REMOTE.fullmatch(given):
        return given
    path = Path(given.removeprefix("file://")).absolute()
    if (path.is_file() and path.suffix == ".whl") or _tool_table(path, "project", "name") == "allranks":
        return path.as_uri()
    msg = f"{given} is neither a checkout of allranks nor a wheel."
    raise UsageError(msg, remedy=f"Write {_SOURCE_FORMS}.")


def _own_address() -> str:
    """The checkout of this allranks, or what its installation recorded (direct_url.json); empty if that is unknown."""
    checkout = package_folder().parents[1]
    if _tool_table(checkout, "project", "name") == "allranks":
        return checkout.as_uri()
    try:
        # Another one may be installed, too: this one has the modules that run.
        every = importlib.metadata.distributions(name="allranks")
        own = next(each for each in every if Path(str(each.locate_file("allranks"))).resolve() == package_folder())
        said = json.loads(own.read_text("direct_url.json") or "{}")
        address = str(said["url"])
        if of_repository := said.get("vcs_info"):
            return f"{of_repository['vcs']}+{address}@{of_repository['commit_id']}"
        if address.startswith("file://"):
            return address if Path(unquote(urlsplit(address).path)).exists() else ""
        return f"{address}#sha256={said['archive_info']['hashes']['sha256']}"
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
    of_suites = (_suite(style, paths, found) for style, paths in suites.items())
    parts = (_HEAD, _axes(found), *of_suites, _image(found), _process(found))
    return "\n".join("\n".join(part) + "\n" for part in parts if part)


_HEAD = (
    "# The matrix of this repository. allranks runs every suite in every cell: a combination of values of [matrix].",
    "# `allranks plan` lists the cells, `allranks run` runs them, and `allranks init --schema` helps editors.",
)


def _axes(found: Repository) -> list[str]:
    gpus = [count for count in (1, 2) if count <= found.gpus]
    lines = ["[matrix]"]
    if gpus:
        lines.append(_line("backend", ["gloo", "nccl"], "the backends of the process group"))
        lines.append(_line("world_size", [1, 2], "ranks: one process each"))
        lines.append(_line("gpu_count", [0, *gpus], "GPUs of a cell"))
        return [*lines, "", *_GPU_RULES]
    lines.append(_line("backend", ["gloo"], 'the backends of the process group: also "nccl"'))
    lines.append(_line("world_size", [1, 2], "ranks: one process each"))
    return [*lines, "# For NCCL on GPUs, add it to the backends, and:", *(f"# {line}".rstrip() for line in _MORE_GPUS)]


_GPU_RULES = (
    "# `when` compares axes: ==, !=, <, in, and, or, not. The reason is shown with each dropped cell.",
    "[[matrix.exclude]]",
    "when   = \"backend == 'nccl' and gpu_count != world_size\"",
    'reason = "NCCL needs a GPU for each rank"',
    "",
    "[[matrix.exclude]]",
    "when   = \"backend == 'gloo' and gpu_count > 0\"",
    'reason = "gloo is tested on CPU tensors"',
)
_MORE_GPUS = ("gpu_count  = [0, 1, 2]", *_GPU_RULES[1:])


def _suite(name: str, paths: Sequence[str], found: Repository) -> list[str]:
    style = STYLES[name]
    lines = [f"[suites.{name}]", f"# {style.meaning[0].upper()}{style.meaning[1:]}."]
    if len(paths) == 1:
        lines.append(_line("path", paths[0], "or a list of folders, files and patterns"))
    else:
        lines += ["path = [", *(f"    {json.dumps(path, ensure_ascii=False)}," for path in paths), "]"]
    lines += [_line(key, value, "see docs/existing-tests.md") for key, value in style.keys.items()]
    if style.starts_ranks and found.gpus != 1:
        lines.append(_line("when", "world_size == 2", "they choose their number of ranks themselves"))
    if not style.keys and not style.starts_ranks:
        lines.append(_line("isolation", "file", 'how long ranks live: "test", "file" or "job"'))
    if found.uses_xdist:
        lines.append(_line("pytest_args", ["-n", "0"], "pytest-xdist cannot be used: the ranks are the processes"))
    return lines


def _image(found: Repository) -> list[str]:
    here = "as here" if found.engine[0] == "docker" else "not here"
    lines = [
        f"# Where a Docker daemon answers ({here}), cells run in containers of an image with this content,",
        "# which the first run builds; elsewhere they run as processes.",
        "[images.default]",
        _line("torch", found.torch or DEFAULT_TORCH, "one exact version"),
    ]
    if found.requirements:
        lines.append(_line("requirements", found.requirements, "what the tests need"))
    if found.tests.need_expecttest:
        lines.append(_line("packages", [*PACKAGES_OF_TORCHS_CLASSES], "torch's test classes import them"))
    elif not found.requirements:
        lines.append(f"# {_line('packages', ['numpy'], 'what else the tests need')}")
    if found.has_project:
        lines.append(_line("project", ".", "your own code, installed from a wheel"))
    return lines


def _process(found: Repository) -> list[str]:
    if not found.is_runner:
        return []
    kind = "for CPUs" if found.is_cpu_only else "for GPUs"
    return [
        "# The interpreter for processes. Without this table allranks makes an environment with the image's content.",
        "[process]",
        _line("python", found.python, f"it has torch {found.torch} {kind}"),
    ]


def _line(key: str, value: object, comment: str) -> str:
    """A key with a comment; the strings of TOML and JSON are the same but for a few characters that are escaped."""
    return f"{f'{key:<10} = {json.dumps(value, ensure_ascii=False)}':<{_COMMENT_COLUMN}} # {comment}"
