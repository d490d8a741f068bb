"""Leftovers of aborted builds in a real daemon, and their removal."""

import io
import os
import subprocess
import sys
import tarfile
from types import SimpleNamespace

import pytest

from allranks.images.base import DEFAULT, find_base
from allranks.images.builders import BuildRequest, build_with_sdk
from allranks.images.leftovers import LABEL, builder_of, dead_builders, end_step, remove_dead_builds
from allranks.interruption import checked_by
from allranks.ownership import image_lock, shared_lock

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("locks")]

DOCKERFILE = b"""
ARG BASE_IMAGE
FROM ${BASE_IMAGE}
ARG BUILDER
LABEL allranks.builder=${BUILDER}
USER 0:0
COPY . /context
RUN echo at work; sleep 600
"""

BUILD = """
import sys
from allranks.images.docker_client import connect
from allranks.images.builders import BuildRequest, build_with_sdk
tag, base, builder = sys.argv[1:]
request = BuildRequest(tag=tag, arguments={"BASE_IMAGE": base, "BUILDER": builder})
build_with_sdk(connect(), request, iter([sys.stdin.buffer.read()]), lambda line: print(line, flush=True))
"""


def context():
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, content in (("Dockerfile", DOCKERFILE), ("wheel", os.urandom(1000))):
            header = tarfile.TarInfo(name)
            header.size = len(content)
            tar.addfile(header, io.BytesIO(content))
    return archive.getvalue()


@pytest.fixture
def request_(docker_client):
    """A request for a build that never ends."""
    base = find_base(docker_client, DEFAULT, environ=os.environ, progress=print)
    reference = f"allranks/layer:test-{os.getpid()}"
    arguments = {"BASE_IMAGE": base.reference, "BUILDER": builder_of(reference)}
    return BuildRequest(tag=reference, arguments=arguments)


@pytest.fixture
def left(docker_client, request_):
    """The containers and images of that build, including those of its steps."""
    label = {"label": f"{LABEL}={request_.arguments['BUILDER']}"}
    api = docker_client.api
    return lambda: [*api.containers(all=True, filters=label), *api.images(all=True, filters=label)]


@pytest.mark.parametrize("step", ["COPY", "at work"])
def test_an_interrupted_build_has_ended_and_leaves_no_container(docker_client, request_, left, step):
    seen = []

    def interrupt(line):
        if line.removeprefix("Step 6/7 : ").startswith(step):
            seen.extend(left())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_with_sdk(docker_client, request_, iter([context()]), interrupt)
    assert seen
    assert not [item for item in left() if "Image" in item]
    with shared_lock(image_lock(request_.tag)):
        assert request_.arguments["BUILDER"] not in dead_builders(docker_client.api)
        assert list(remove_dead_builds(docker_client.api)) == []
    assert request_.arguments["BUILDER"] in remove_dead_builds(docker_client.api)
    assert left() == []


def test_a_build_over_its_time_limit_ends_during_a_silent_command(docker_client, request_, left):
    late, seen = TimeoutError(), []

    def check():
        if any("at work" in line for line in seen):
            raise late

    with pytest.raises(TimeoutError), checked_by(check):
        build_with_sdk(docker_client, request_, iter([context()]), seen.append)
    assert not [item for item in left() if "Image" in item]
    assert list(remove_dead_builds(docker_client.api)) == [request_.arguments["BUILDER"]]
    assert left() == []


def test_only_the_container_of_a_command_is_ended():
    """That of a step without a command is kept, since the daemon needs it."""
    removed = []
    containers = [{"Id": "1", "Command": "/bin/sh -c '#(nop) ' 'LABEL a=b'"}, {"Id": "2", "Command": "/bin/sh -c pip"}]
    client = SimpleNamespace(
        containers=lambda **_: containers, remove_container=lambda container, **_: removed.append(container)
    )
    end_step(client, "host/allranks/layer:1")
    assert removed == ["2"]


def test_what_a_killed_build_leaves_is_reaped(docker_client, request_, left):
    arguments = [request_.tag, request_.arguments["BASE_IMAGE"], request_.arguments["BUILDER"]]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", BUILD, *arguments], **pipes) as process:
        process.stdin.write(context())
        process.stdin.close()
        assert any(b"at work" in line for line in process.stdout)
        process.kill()
    assert left()
    # The daemon learns of it when it next has something to say, and puts its own container away.
    while left():
        list(remove_dead_builds(docker_client.api))
