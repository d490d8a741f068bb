import io
import tarfile

from allranks.images.builders import stream
from allranks.images.layers import Layer


def unpacked(files):
    with tarfile.open(fileobj=io.BytesIO(b"".join(stream(files)))) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}


def test_the_archive_holds_the_files_under_their_names(tmp_path):
    (tmp_path / "a").write_bytes(b"x" * 513)
    (tmp_path / "b").write_bytes(b"y")
    assert unpacked({"a": tmp_path / "a", "deep/b": tmp_path / "b"}) == {"a": b"x" * 513, "deep/b": b"y"}


def test_equal_contents_give_equal_bytes(tmp_path):
    for name, mode in (("a", 0o600), ("b", 0o755)):
        (tmp_path / name).write_text("same")
        (tmp_path / name).chmod(mode)
    assert b"".join(stream({"x": tmp_path / "a"})) == b"".join(stream({"x": tmp_path / "b"}))


def test_a_wheel_of_a_long_name_keeps_it(tmp_path):
    name = f"wheels/{'x' * 150}-1.0-{'manylinux_2_28_x86_64.' * 4}whl"
    (tmp_path / "a").write_text("x")
    assert unpacked({name: tmp_path / "a"}) == {name: b"x"}


def test_a_layer_sends_the_dockerfile_pip_and_its_wheels(tmp_path):
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/pip.whl").touch()
    wheels, tools = (tmp_path / "w/a.whl",), tmp_path / "tools"
    layer = Layer(name="torch", content=("a",), wheels=wheels, tools=tools)
    assert set(layer.files) == {"Dockerfile", "tools/pip.whl", "wheels/a.whl"}
