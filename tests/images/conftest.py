"""Fixtures of the tests of images: a fake daemon, tiny wheels, and a separate cache."""

import base64
import hashlib
import os
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import docker.errors
import pytest

from allranks import ownership
from allranks.images import pip_settings


@dataclass
class FakeDaemon:
    """The methods of ``docker.DockerClient`` that :mod:`allranks.images` uses.

    Attributes:
        present: Image id by reference.
        registry: Image id by reference, of what a pull gives.
        digests: Names by a registry's digest, by reference.
        pull_events: What the stream of a pull says before it ends.
        build_events: What the stream of a build says; a build makes the image unless the last one is an error.
        touched: References that were given.
        root: Where it says that it keeps its images.
        remains: Ids of untagged images by label; each build leaves one.
    """

    present: dict = field(default_factory=dict)
    registry: dict = field(default_factory=dict)
    digests: dict = field(default_factory=dict)
    pull_events: list = field(default_factory=list)
    build_events: list = field(default_factory=lambda: [{"stream": "Step 1/1 : FROM x\n"}])
    builds: list = field(default_factory=list)
    contexts: list = field(default_factory=list)
    pulls: list = field(default_factory=list)
    touched: list = field(default_factory=list)
    root: str = "/nowhere"
    remains: dict = field(default_factory=dict)

    @property
    def images(self):
        return SimpleNamespace(get=self._get)

    @property
    def api(self):
        return SimpleNamespace(
            base_url="http+docker://localhost",
            pull=self._pull,
            build=self._build,
            tag=self._tag,
            images=lambda filters: [{"Id": image_id} for image_id in self.remains.get(filters["label"], [])],
            containers=lambda **_: [],
            remove_image=self._remove,
        )

    def info(self):
        return {"DockerRootDir": self.root}

    def _get(self, reference):
        if reference not in self.present:
            msg = f"No such image: {reference}"
            raise docker.errors.ImageNotFound(msg)
        return SimpleNamespace(id=self.present[reference], attrs={"RepoDigests": self.digests.get(reference)})

    def _remove(self, image):
        for images in self.remains.values():
            images[:] = [other for other in images if other != image]

    def _pull(self, reference, **_):
        self.pulls.append(reference)
        if reference in self.registry:
            self.present[reference] = self.registry[reference]
            return iter(self.pull_events)
        return iter([*self.pull_events, {"error": "no such host"}])

    def _build(self, *, fileobj, tag, **options):
        self.contexts.append(b"".join(fileobj))
        self.builds.append({"tag": tag, **options})
        if "error" not in self.build_events[-1]:
            self.present[tag] = f"sha256:{tag}"
        self.remains[f"allranks.builder={options['buildargs'].get('BUILDER')}"] = ["sha256:step"]
        return iter(self.build_events)

    def _tag(self, image, repository, tag):
        self.touched.append(f"{repository}:{tag}")
        self.present[f"{repository}:{tag}"] = self.present.get(image, image)


@pytest.fixture
def daemon():
    return FakeDaemon()


@pytest.fixture
def progress():
    """A list that appends the argument when it is called."""

    class Lines(list):
        __call__ = list.append

    return Lines()


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    (tmp_path / "locks").mkdir()
    monkeypatch.setattr(ownership, "lock_folder", lambda: tmp_path / "locks")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("ALLRANKS_BASE_IMAGE", raising=False)
    return tmp_path / "cache"


ASK = pip_settings._query


@pytest.fixture
def asks_pip(monkeypatch):
    """Query pip itself for its settings."""
    monkeypatch.setattr(pip_settings, "_query", ASK)


@pytest.fixture(autouse=True)
def quick_answer_of_pip(monkeypatch):
    """Take pip's settings only from its variables, for speed."""

    def ask(_python):
        found = [
            ("", name[4:].lower().replace("_", "-"), pip_settings.without_logins(value))
            for name, value in os.environ.items()
            if name.startswith("PIP_") and value
        ]
        return [], [setting for setting in found if setting[1] not in pip_settings._IRRELEVANT]

    monkeypatch.setattr(pip_settings, "_query", ask)


@pytest.fixture
def make_wheel():
    """Write a real, small wheel: ``make_wheel(folder, "name", "1.0", requires=[...], files={...})``."""

    def make(
        folder: Path,
        name: str,
        version: str,
        *,
        requires=(),
        files=None,
        time=(2020, 1, 1, 0, 0, 0),
        tag="py3-none-any",
    ):
        folder.mkdir(parents=True, exist_ok=True)
        info = f"{name}-{version}.dist-info"
        metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}"]
        metadata += [f"Requires-Dist: {text}" for text in requires]
        contents = {
            **(files or {f"{name}.py": ""}),
            f"{info}/METADATA": "\n".join(metadata) + "\n",
            f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n",
        }
        record = [f"{path},sha256={_record_hash(text)},{len(text)}" for path, text in contents.items()]
        contents[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,"]) + "\n"
        wheel = folder / f"{name}-{version}-{tag}.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            for path, text in contents.items():
                archive.writestr(zipfile.ZipInfo(path, time), text)
        return wheel

    return make


def _record_hash(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


@pytest.fixture
def locks_are_free():
    """Whether no image is locked."""
    return lambda: not any(ownership.is_held(path) for path in ownership.lock_folder().glob("image-*"))
