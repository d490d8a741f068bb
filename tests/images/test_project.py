from allranks.images import project
from allranks.images.project import build_wheel


def test_setuptools_builds_outside_of_the_project(tmp_path, monkeypatch, progress, make_wheel):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    requests = []

    def run_pip(request, _progress):
        requests.append(request)
        make_wheel(scratch, "hello", "1.0")

    monkeypatch.setattr(project, "run_pip", run_pip)
    assert build_wheel(tmp_path, into=scratch, progress=progress).name == "hello-1.0-py3-none-any.whl"
    configuration = (scratch / "setuptools.cfg").read_text()
    assert requests[0].environ["DIST_EXTRA_CONFIG"] == str(scratch / "setuptools.cfg")
    assert f"build_base = {scratch}" in configuration
