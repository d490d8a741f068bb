import pytest

from allranks.errors import ImageError
from allranks.images.builders import (
    BuildRequest,
    build_with_buildkit,
    build_with_sdk,
    builder_of_host,
    buildkit_command,
    shortened,
)

REQUEST = BuildRequest(tag="allranks/layer:k", arguments={"BASE_IMAGE": "debian"})


@pytest.fixture
def docker_command(tmp_path, monkeypatch):
    """Replace the docker command by a shell script."""

    def install(script):
        folder = tmp_path / "bin"
        folder.mkdir()
        (folder / "docker").write_text(f"#!/bin/sh\n{script}\n")
        (folder / "docker").chmod(0o755)
        monkeypatch.setenv("PATH", str(folder), prepend=":")

    return install


def test_the_legacy_build_gets_the_context_and_no_network(daemon, progress):
    build_with_sdk(daemon, REQUEST, [b"con", b"text"], progress)
    assert daemon.contexts == [b"context"]
    assert daemon.builds[0]["network_mode"] == "none"
    assert daemon.builds[0]["buildargs"] == {"BASE_IMAGE": "debian"}


def test_the_legacy_build_leaves_no_container_even_when_it_fails(daemon, progress):
    build_with_sdk(daemon, REQUEST, [], progress)
    assert daemon.builds[0]["rm"]
    assert daemon.builds[0]["forcerm"]


def test_a_failed_legacy_build_is_an_error_with_its_last_lines(daemon, progress):
    daemon.build_events = [{"stream": f"line {number}\n"} for number in range(100)]
    daemon.build_events.append({"error": "The command '/bin/sh -c long\nscript' returned a non-zero code: 7"})
    with pytest.raises(ImageError) as error:
        build_with_sdk(daemon, REQUEST, [], progress)
    assert error.value.why.endswith("line 99\na step of the build ended with code 7")
    assert "line 50\n" not in error.value.why


def test_a_refused_legacy_build_is_an_error(daemon, progress):
    daemon.build_events = [{"message": "dockerfile parse error"}]
    with pytest.raises(ImageError, match="dockerfile parse error"):
        build_with_sdk(daemon, REQUEST, [], progress)


def test_a_full_disk_has_its_own_remedy(daemon, progress):
    daemon.build_events = [{"error": "write /x: no space left on device"}]
    with pytest.raises(ImageError) as error:
        build_with_sdk(daemon, REQUEST, [], progress)
    assert "allranks clean --images" in error.value.remedy


def test_progress_has_steps_but_not_the_builders_bookkeeping(daemon, progress):
    daemon.build_events = [{"stream": "Step 1/2 : FROM x\n"}, {"stream": " ---> 12ab\n"}, {"stream": "\n"}, {"aux": {}}]
    build_with_sdk(daemon, REQUEST, [], progress)
    assert progress == ["Step 1/2 : FROM x"]


def test_a_line_that_comes_in_pieces_is_one_line(daemon, progress):
    pieces = ["\x1b[91mE\x1b[0m", "\x1b[91m: \x1b[0m", "\x1b[91mUnable to locate\n\x1b[0m", "and more"]
    daemon.build_events = [*({"stream": piece} for piece in pieces), {"error": "code 100"}]
    with pytest.raises(ImageError) as error:
        build_with_sdk(daemon, REQUEST, [], progress)
    assert progress == ["E: Unable to locate"]
    assert error.value.why == "E: Unable to locate\nand more\ncode 100"


def test_a_build_that_fails_by_itself_is_not_waited_for(daemon, progress):
    daemon.build_events = [{"error": "no"}]
    with pytest.raises(ImageError):
        build_with_sdk(daemon, REQUEST, [], progress)
    assert progress == []


def test_progress_is_free_of_colours(daemon, progress):
    daemon.build_events = [{"stream": "\x1b[91mWARNING: old\n\x1b[0m"}]
    build_with_sdk(daemon, REQUEST, [], progress)
    assert progress == ["WARNING: old"]


def test_the_text_of_a_failed_script_is_not_repeated():
    assert (
        shortened("The command '/bin/sh -c a\nb' returned a non-zero code: 2")
        == "a step of the build ended with code 2"
    )


def test_a_long_line_is_cut():
    assert len(shortened("x" * 5000)) < 300


def test_buildkit_reads_the_context_from_standard_input_and_has_no_network():
    command = buildkit_command(REQUEST)
    assert command[-1] == "-"
    assert "--network=none" in command
    assert "--build-arg=BASE_IMAGE=debian" in command


def test_buildkit_gets_the_context(docker_command, daemon, progress, tmp_path):
    docker_command(
        f'cat > {tmp_path}/context; echo "#1 done"; test "$DOCKER_BUILDKIT" = 1 && test -z "$BUILDX_BUILDER"'
    )
    daemon.present = {REQUEST.tag: "sha256:1"}
    build_with_buildkit(daemon, REQUEST, [b"con", b"text"], progress)
    assert (tmp_path / "context").read_bytes() == b"context"
    assert progress == ["#1 done"]


def test_a_failed_buildkit_build_is_an_error_with_its_last_lines(docker_command, daemon, progress):
    docker_command("echo 'ERROR: no such stage' >&2; exit 1")
    with pytest.raises(ImageError, match="no such stage"):
        build_with_buildkit(daemon, REQUEST, [b"x" * (1 << 20)] * 4, progress)


def test_a_build_in_another_daemon_is_an_error_that_names_docker_host(docker_command, daemon, progress):
    docker_command("cat >/dev/null")
    with pytest.raises(ImageError, match="DOCKER_HOST"):
        build_with_buildkit(daemon, REQUEST, [], progress)


@pytest.mark.parametrize(("status", "builder"), [(0, build_with_buildkit), (1, build_with_sdk)])
def test_buildkit_is_used_where_the_command_line_has_it(docker_command, status, builder):
    docker_command(f'test "$*" = "buildx version" && exit {status}')
    assert builder_of_host() is builder


def test_the_sdk_builds_where_there_is_no_docker_command(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert builder_of_host() is build_with_sdk
