"""``allranks doctor --gpus``: who holds each GPU."""

import json

from allranks.runner.gpu_leases import Holder, try_lease


def test_leases_are_shown_with_their_holders(allranks, tmp_path, monkeypatch):
    monkeypatch.setenv("ALLRANKS_GPUS", "GPU-a,GPU-b")
    monkeypatch.setattr("allranks.runner.gpu_leases.lock_folder", lambda: tmp_path)
    with try_lease(("GPU-b",), 1, Holder(run_id="r1", job_id="cell/suite", pid=7, since=0.0)):
        _, out, _ = allranks("doctor", "--gpus")
    assert out == ("GPU-a: free\nGPU-b: held by cell/suite of run r1 (process 7) since 1970-01-01 00:00:00+00:00\n")


def test_a_host_without_gpus_has_no_leases(allranks, tmp_path, monkeypatch):
    monkeypatch.setenv("ALLRANKS_GPUS", "")
    monkeypatch.setattr("allranks.runner.gpu_leases.lock_folder", lambda: tmp_path)
    code, out, _ = allranks("doctor", "--gpus")
    assert (code, out) == (0, "this host has no GPUs that allranks can lease\n")


def test_leases_can_be_printed_as_json(allranks, tmp_path, monkeypatch):
    monkeypatch.setenv("ALLRANKS_GPUS", "GPU-a,GPU-b,GPU-c")
    monkeypatch.setattr("allranks.runner.gpu_leases.lock_folder", lambda: tmp_path)
    holder = Holder(run_id="r1", job_id="cell/suite", pid=7, since=0.0)
    with try_lease(("GPU-b",), 1, holder), try_lease(("GPU-c",), 1, Holder()):
        _, out, err = allranks("doctor", "--gpus", "--json")
    known = {"run_id": "r1", "job": "cell/suite", "pid": 7, "since": "1970-01-01T00:00:00+00:00"}
    assert err == ""
    assert json.loads(out) == {
        "schema": 1,
        "gpus": [
            {"gpu": "GPU-a", "holder": None},
            {"gpu": "GPU-b", "holder": known},
            {"gpu": "GPU-c", "holder": dict.fromkeys(known)},
        ],
    }
