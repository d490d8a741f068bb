import json
from types import SimpleNamespace

import docker.errors
import pytest

from allranks.errors import ImageError
from allranks.images.base import DEFAULT, LOCAL, Base, find_base, platform_tags, python_of, read_probe
from allranks.images.leftovers import builder_of
from allranks.ownership import image_lock, is_held

PROBE = {
    "python": [3, 11],
    "abi_flags": "",
    "libc": ["glibc", "2.36"],
    "markers": {"platform_python_implementation": "CPython", "platform_machine": "x86_64", "python_version": "3.11"},
}


def find(daemon, name=DEFAULT, environ=None):
    return find_base(daemon, name, environ=environ or {}, progress=lambda _: None)


def test_a_base_that_the_daemon_has_is_not_pulled(daemon):
    daemon.present = {DEFAULT: "sha256:d", LOCAL: "sha256:l"}
    assert find(daemon) == Base(reference=DEFAULT, id="sha256:d")
    assert daemon.pulls == []


def test_the_local_base_goes_before_a_pull_of_the_default(daemon):
    daemon.present = {LOCAL: "sha256:l"}
    daemon.registry = {DEFAULT: "sha256:d"}
    base = find(daemon)
    assert (base.reference, base.id) == (LOCAL, "sha256:l")
    assert DEFAULT in base.reason
    assert daemon.pulls == []


def test_the_default_base_is_pulled_where_there_is_none(daemon):
    daemon.registry = {DEFAULT: "sha256:d"}
    assert find(daemon).id == "sha256:d"


def test_a_named_base_is_never_replaced_by_the_local_one(daemon):
    daemon.present = {LOCAL: "sha256:l"}
    with pytest.raises(ImageError, match="nvidia/cuda"):
        find(daemon, "nvidia/cuda:13")


def test_the_hosts_variable_replaces_the_default_base(daemon):
    daemon.present = {DEFAULT: "sha256:d", "mine:1": "sha256:m"}
    base = find(daemon, environ={"ALLRANKS_BASE_IMAGE": "mine:1"})
    assert base == Base(reference="mine:1", id="sha256:m", reason="set by ALLRANKS_BASE_IMAGE")


def test_a_build_starts_from_the_digest_of_a_registry_and_from_the_name_where_there_is_none(daemon):
    """Another image with the same name may be pulled between the lookup and the build."""
    daemon.present = {LOCAL: "sha256:l"}
    assert find(daemon).pinned == LOCAL
    daemon.registry = {"python:3.13": "sha256:p"}
    daemon.digests = {"python:3.13": ["mirror/python@sha256:2", "python@sha256:1"]}
    for _ in ("pulled", "there"):
        base = find(daemon, "python:3.13")
        assert (base.reference, base.pinned) == ("python:3.13", "python@sha256:1")


def test_the_hosts_variable_does_not_replace_a_named_base(daemon):
    daemon.present = {"nvidia/cuda:13": "sha256:n", "mine:1": "sha256:m"}
    assert find(daemon, "nvidia/cuda:13", {"ALLRANKS_BASE_IMAGE": "mine:1"}).id == "sha256:n"


def test_a_default_base_not_to_be_had_is_an_error_with_the_ways_out(daemon):
    with pytest.raises(ImageError) as error:
        find(daemon)
    assert "no such host" in error.value.why
    assert "scripts/base-image" in error.value.remedy
    assert "base = " in error.value.remedy


def test_a_daemon_that_fails_is_an_image_error():
    def fail(_reference):
        msg = "500 Server Error"
        raise docker.errors.APIError(msg, explanation="disk on fire")

    broken = SimpleNamespace(images=SimpleNamespace(get=fail))
    with pytest.raises(ImageError, match="disk on fire"):
        find(broken)


def test_a_malformed_name_is_an_error_that_repeats_it():
    def refuse(_reference):
        response = SimpleNamespace(status_code=400)
        msg = "400 Client Error"
        raise docker.errors.APIError(msg, response=response, explanation="invalid reference format")

    with pytest.raises(ImageError, match="'UPPER case' is not a valid name of an image"):
        find(SimpleNamespace(images=SimpleNamespace(get=refuse)), "UPPER case")


def test_a_wrong_variable_is_named_in_the_remedy(daemon):
    with pytest.raises(ImageError, match="Correct ALLRANKS_BASE_IMAGE"):
        find(daemon, environ={"ALLRANKS_BASE_IMAGE": "gone:1"})


def test_platform_tags_go_from_the_bases_glibc_down_to_manylinux2014():
    assert platform_tags("2.19", "aarch64") == (
        "manylinux_2_19_aarch64",
        "manylinux_2_18_aarch64",
        "manylinux_2_17_aarch64",
        "manylinux2014_aarch64",
        "linux_aarch64",
    )


def test_a_free_threaded_python_has_its_own_abi():
    python = read_probe(json.dumps({**PROBE, "python": [3, 14], "abi_flags": "t"}), base="x")
    assert (python.version, python.abi) == ((3, 14), "cp314t")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"python": [3, 10]}, r"CPython 3\.10 on glibc"),
        ({"libc": ["", ""]}, "a C library other than glibc"),
        ({"markers": {"platform_python_implementation": "PyPy", "platform_machine": "x86_64"}}, "PyPy"),
    ],
)
def test_an_unsupported_python_is_an_error_with_its_version(change, text):
    with pytest.raises(ImageError, match=text):
        read_probe(json.dumps({**PROBE, **change}), base="x")


class FakeContainer:
    """A container that ends immediately; ``started`` records the calls."""

    def __init__(self, *, status=0, output=b"", start_error=None):
        self.status, self.output, self.start_error, self.removed = status, output, start_error, False

    def start(self):
        if self.start_error:
            raise self.start_error

    def wait(self, timeout):
        assert timeout
        return {"StatusCode": self.status}

    def logs(self, **_):
        return self.output

    def remove(self, *, force):
        self.removed = force


def client_of(containers):
    remaining = iter(containers)

    def create(*_, labels, **__):
        assert labels["allranks.builder"] == builder_of("python-of-1")
        assert is_held(image_lock("python-of-1"))
        return next(remaining)

    return SimpleNamespace(containers=SimpleNamespace(create=create))


def test_the_python_of_a_base_is_asked_once():
    container = FakeContainer(output=json.dumps(PROBE).encode())
    client = client_of([container])
    base = Base(reference="x", id="sha256:1")
    assert python_of(client, base) == python_of(client, base)
    assert container.removed


def test_a_base_without_python_is_an_error_and_leaves_no_container():
    refusal = docker.errors.APIError("400", explanation='exec: "python3": executable file not found in $PATH')
    container = FakeContainer(start_error=refusal)
    with pytest.raises(ImageError, match="python3") as error:
        python_of(client_of([container]), Base(reference="debian:12", id="sha256:1"))
    assert "debian:12" in error.value.what
    assert container.removed


def test_a_python_that_does_not_work_is_an_error_with_its_output_and_is_asked_again():
    broken = FakeContainer(status=1, output=b"no module named encodings")
    client = client_of([broken, FakeContainer(output=json.dumps(PROBE).encode())])
    base = Base(reference="x", id="sha256:1")
    with pytest.raises(ImageError, match="encodings"):
        python_of(client, base)
    assert python_of(client, base).abi == "cp311"
