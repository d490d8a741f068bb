"""What GitHub keeps between the jobs of a run: artifacts, and caches, as the actions of its own that we use keep them.

Semantics are those of actions/upload-artifact and actions/download-artifact from version 4 on, and of actions/cache.
"""

import fnmatch
import glob
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

FORBIDDEN_IN_NAMES = re.compile(r'["*:<>|?\r\n\\/]')
FORBIDDEN_IN_FILES = re.compile(r'["*:<>|?\r\n]')


class ActionError(Exception):
    """An action that ends with an error, and so its step."""


@dataclass(frozen=True)
class Artifact:
    """What was uploaded: a folder of the service's own. The name is unique in an attempt, and no further."""

    name: str
    attempt: int
    content: Path


@dataclass
class Service:
    """The store of one workflow run; caches are kept by key, the newest last.

    Args:
        folder: Where contents are kept.
    """

    folder: Path
    artifacts: list[Artifact] = field(default_factory=list)
    caches: dict[str, dict[str, Path]] = field(default_factory=dict)
    _count: int = 0

    def copy(self) -> "Service":
        """Another history from here on; contents are never changed, and are shared."""
        return Service(self.folder, list(self.artifacts), dict(self.caches), self._count + 1000)

    def lose(self, pattern: str) -> list[str]:
        """Lose artifacts: they expired, or somebody deleted them."""
        lost = [artifact.name for artifact in self.artifacts if fnmatch.fnmatch(artifact.name, pattern)]
        self.artifacts = [artifact for artifact in self.artifacts if artifact.name not in lost]
        return lost

    def upload(self, inputs: Mapping[str, str], attempt: int, workspace: Path) -> str:
        """actions/upload-artifact."""
        _only(
            inputs, "name", "path", "if-no-files-found", "compression-level", "retention-days", "include-hidden-files"
        )
        name = inputs["name"]
        if FORBIDDEN_IN_NAMES.search(name):
            msg = f"The artifact name is not valid: {name}"
            raise ActionError(msg)
        if any(artifact.name == name and artifact.attempt == attempt for artifact in self.artifacts):
            msg = f"Failed to CreateArtifact: an artifact with this name already exists on the workflow run: {name}"
            raise ActionError(msg)
        files = _files(inputs["path"].splitlines(), workspace, hidden=inputs.get("include-hidden-files") == "true")
        if not files:
            if inputs.get("if-no-files-found", "warn") == "error":
                msg = f"No files were found with the provided path: {inputs['path']}. No artifacts will be uploaded."
                raise ActionError(msg)
            return "warning: no files were found"
        content = self._keep(files)
        self.artifacts.append(Artifact(name, attempt, content))
        return f"{len(files)} files as {name}"

    def download(self, inputs: Mapping[str, str], workspace: Path) -> str:
        """actions/download-artifact; of artifacts with one name, from several attempts, the newest."""
        _only(inputs, "name", "pattern", "path", "merge-multiple")
        newest = {artifact.name: artifact for artifact in sorted(self.artifacts, key=lambda artifact: artifact.attempt)}
        into = workspace / inputs.get("path", ".")
        if name := inputs.get("name"):
            if name not in newest:
                msg = f"Unable to download artifact(s): Artifact not found for name: {name}"
                raise ActionError(msg)
            _copy(newest[name].content, into)
            return f"{name} to {into}"
        found = [item for item in newest.values() if fnmatch.fnmatch(item.name, inputs.get("pattern") or "*")]
        # Several have a folder each; one that is alone has none, by whatever it was found (the action's own rule).
        together = len(found) == 1 or inputs.get("merge-multiple") == "true"
        for artifact in found:
            _copy(artifact.content, into if together else into / artifact.name)
        return f"{len(found)} artifacts to {into}"

    def restore(self, inputs: Mapping[str, str], workspace: Path) -> str | None:
        """actions/cache/restore: the key that was found, its own or the newest that begins with a restore key."""
        _only(inputs, "path", "key", "restore-keys")
        wanted = [inputs["key"], *inputs.get("restore-keys", "").split()]
        for prefix in wanted:
            for key in reversed(self.caches):
                if key.startswith(prefix) and set(self.caches[key]) == set(inputs["path"].splitlines()):
                    for path, content in self.caches[key].items():
                        _copy(content, workspace / path)
                    return key
        return None

    def save(self, inputs: Mapping[str, str], workspace: Path) -> str:
        """actions/cache/save: a key is never written twice, and nothing is no error."""
        _only(inputs, "path", "key", "restore-keys")
        there = {path: workspace / path for path in inputs["path"].splitlines() if (workspace / path).exists()}
        if inputs["key"] in self.caches or not there:
            return "nothing was saved"
        self.caches[inputs["key"]] = {
            path: self._keep({Path("kept"): source}) / "kept" for path, source in there.items()
        }
        return f"saved {inputs['key']}"

    def _keep(self, files: Mapping[Path, Path]) -> Path:
        self._count += 1
        content = self.folder / str(self._count)
        for target, source in files.items():
            _copy(source, content / target)
        return content


def _only(inputs: Mapping[str, str], *known: str) -> None:
    if unknown := set(inputs) - set(known):
        msg = f"the stand-in knows nothing of {sorted(unknown)}"
        raise ActionError(msg)


def _files(lines: Sequence[str], workspace: Path, *, hidden: bool) -> dict[Path, Path]:
    """The files that patterns find, by their place in the artifact: below what all patterns have in common."""
    roots = [_root(workspace / line.strip()) for line in lines if line.strip()]
    found = [
        file
        for line in lines
        if line.strip()
        for path in glob.glob(str(workspace / line.strip()), include_hidden=hidden)  # noqa: PTH207 - absolute patterns
        for file in _below(Path(path))
    ]
    top = _common(roots)
    files = {file.relative_to(top): file for file in found}
    kept = {place: file for place, file in files.items() if hidden or not any(p.startswith(".") for p in place.parts)}
    for place in kept:
        if FORBIDDEN_IN_FILES.search(str(place)):
            msg = f"The path for one of the files in artifact is not valid: {place}"
            raise ActionError(msg)
    return kept


def _below(path: Path) -> list[Path]:
    """Links are followed, and what they lead to is uploaded."""
    return [file for file in sorted(path.rglob("*")) if file.is_file()] if path.is_dir() else [path]


def _root(pattern: Path) -> Path:
    parts = []
    for part in pattern.parts:
        if any(sign in part for sign in "*?["):
            return Path(*parts)
        parts.append(part)
    return pattern if pattern.is_dir() else pattern.parent


def _common(roots: Sequence[Path]) -> Path:
    top = roots[0]
    while not all(root.is_relative_to(top) for root in roots):
        top = top.parent
    return top


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copyfile(source, target)
