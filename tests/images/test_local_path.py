import pytest

from allranks.images.recipe import names_local_path, requirement_lines


@pytest.mark.parametrize(
    "requirement",
    [
        ".",
        ".[test]",
        "./lib",
        "./lib[test] ; python_version > '3'",
        "../x",
        "/abs/lib",
        "lib/sub",
        "lib/",
        "~/lib",
        "file:lib",
        "file:///abs/lib",
        "FILE:///abs/lib",
        "git+file:///abs/lib",
        "x @ file:///abs/x.whl",
        "x[extra]@file:x",
        "x @ ./lib",
        "x-1.0-py3-none-any.whl",
        "x-1.0-py3-none-any.whl[extra]",
        "x-1.0.tar.gz --hash=sha256:00",
        "wheels/x.whl",
        "-e .",
        "-e.",
        "-e ./lib",
        "-e lib",
        '-e "./lib"',
        "--editable .",
        "--editable=../x",
        "--editable file:///abs/lib",
        "${ALLRANKS_NOT_SET}/lib",
    ],
)
def test_a_path_of_this_host_is_detected(requirement):
    assert names_local_path(requirement)


@pytest.mark.parametrize(
    "requirement",
    [
        "numpy",
        "numpy==2.0.*",
        "numpy>=1,<3 ; platform_machine == 'a/b'",
        "zope.interface[test]~=5.0",
        "my.zipper",
        "numpy --hash=sha256:00 --hash=sha256:11",
        'numpy --config-settings="--build-option=/x"',
        "foo @ https://example.org/foo-1.0-py3-none-any.whl",
        "foo[a,b]@https://example.org/foo.whl#sha256=00",
        "foo @ git+https://example.org/file/foo@main",
        "foo @ git+ssh://git@example.org/foo.git ; python_version > '3'",
        "https://example.org/foo-1.0-py3-none-any.whl",
        "git+https://example.org/foo@main#egg=foo",
        "-e git+https://example.org/foo@main#egg=foo",
        "--editable=git+https://example.org/foo@main#egg=foo",
        "-r other.txt",
        "-r ./deep/other.txt",
        "--requirement=other.txt",
        "-c constraints.txt",
        "--constraint ../constraints.txt",
        "-i https://example.org/simple",
        "--index-url https://example.org/simple",
        "--extra-index-url https://example.org/simple",
        "--find-links ./wheels",
        "-f /srv/wheels",
        "--pre",
        "--no-binary :all:",
    ],
)
def test_an_ordinary_requirement_is_no_path(requirement):
    assert not names_local_path(requirement)


def test_a_variable_of_the_environment_counts_as_pip_reads_it(monkeypatch):
    monkeypatch.setenv("WHERE", "https://example.org")
    assert not names_local_path("${WHERE}/x-1.0-py3-none-any.whl")


def test_lines_are_read_as_pip_reads_them():
    text = "# all\n\n  numpy # fast\nx#y\n-e \\\n  ./lib\n"
    assert list(requirement_lines(text)) == ["numpy", "x#y", "-e   ./lib"]
