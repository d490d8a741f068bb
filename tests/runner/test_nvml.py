import os
import shutil
import subprocess
import sys
import threading

import pynvml
import pytest
from fake_nvml import FakeDevice, FakeNvml, device

from allranks.engines.gpus import Gpu, nvidia_gpus, take_inventory
from allranks.errors import DeviceError, ExitCode

# The exports of a driver on a host with a GPU, one with a MIG instance, and, if LOST is defined, a lost one.
LIBRARY = r"""
#include <string.h>
typedef const char *device;
static device at[] = {"GPU-a", "GPU-b", "GPU-c"};
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = LOST + 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device *handle) { *handle = at[index]; return index == 2 ? 15 : 0; }
int nvmlDeviceGetUUID(device handle, char *uuid, unsigned length) { strncpy(uuid, handle, length); return 0; }
int nvmlDeviceGetName(device handle, char *name, unsigned length) { strncpy(name, "NVIDIA H100", length); return 0; }
int nvmlDeviceGetMemoryInfo(device handle, unsigned long long *memory) { *memory = 80ull << 30; return 0; }
int nvmlDeviceGetMigMode(device handle, unsigned *now, unsigned *then) {
    *now = *then = handle == at[1];
    return handle == at[0] ? 3 : 0;
}
int nvmlDeviceGetMaxMigDeviceCount(device handle, unsigned *count) { *count = 7; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(device handle, unsigned index, device *instance) {
    *instance = "MIG-x";
    return index == 3 ? 0 : 6;
}
"""


def test_gpus_are_in_the_order_of_their_numbers():
    nvml = FakeNvml([device("b"), device("a", name="A100", memory=40 << 30, knows_mig=False)])
    assert nvidia_gpus(nvml) == (
        Gpu(uuid="GPU-b", name="H100", memory_mib=80 << 10, driver="580.95.05"),
        Gpu(uuid="GPU-a", name="A100", memory_mib=40 << 10, driver="580.95.05"),
    )
    assert nvml.open == 0
    assert nvidia_gpus(nvml)[1].description == "A100, 40 GiB"


def test_mig_instances_replace_their_gpu():
    one, two = (FakeDevice(uuid=f"MIG-{name}") for name in "xy")
    nvml = FakeNvml([device("a"), device("b", mig=(None, one, None, two)), device("c", mig=()), device("d")])
    assert [gpu.uuid for gpu in nvidia_gpus(nvml)] == ["GPU-a", "MIG-x", "MIG-y", "GPU-d"]


def test_display_information_is_optional():
    nvml = FakeNvml([device("a", errors={"Name": pynvml.NVML_ERROR_NOT_SUPPORTED})])
    [gpu] = nvidia_gpus(nvml)
    assert (gpu.uuid, gpu.description) == ("GPU-a", "")


def test_without_nvidias_bindings_a_host_with_cards_is_an_error_with_a_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert nvidia_gpus(has_cards=False) == ()
    with pytest.raises(DeviceError, match="bindings of NVML are not installed") as caught:
        nvidia_gpus(has_cards=True)
    assert "pip install nvidia-ml-py" in caught.value.remedy


def test_without_the_drivers_library_there_are_no_gpus():
    assert nvidia_gpus(FakeNvml([], init=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)) == ()


@pytest.mark.parametrize(
    ("nvml", "what", "why"),
    [
        (FakeNvml([], init=pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH), "cannot be initialized", "mismatch"),
        (FakeNvml([], init=pynvml.NVML_ERROR_DRIVER_NOT_LOADED), "cannot be initialized", "Driver Not Loaded"),
        (
            FakeNvml([device("a"), device("b", errors={"HandleByIndex": pynvml.NVML_ERROR_GPU_IS_LOST})]),
            "cannot identify GPU 1 of 2",
            "GPU is lost",
        ),
        (FakeNvml([device("a", errors={"UUID": 999})]), "cannot identify GPU 0 of 1", "Unknown Error"),
    ],
)
def test_an_nvml_error_is_an_infrastructure_error(nvml, what, why):
    with pytest.raises(DeviceError) as caught:
        nvidia_gpus(nvml)
    assert what in caught.value.what
    assert why in caught.value.why
    assert caught.value.exit_code is ExitCode.INFRASTRUCTURE
    assert nvml.open == 0


def test_a_hanging_library_does_not_block_the_run():
    is_over = threading.Event()
    nvml = FakeNvml([])
    nvml.nvmlInit = is_over.wait
    with pytest.raises(DeviceError, match="did not answer"):
        nvidia_gpus(nvml, limit=0.01)
    is_over.set()


ASK = "from allranks.engines.gpus import nvidia_gpus; print([gpu.uuid for gpu in nvidia_gpus()])"


@pytest.mark.compiler
@pytest.mark.parametrize(("lost", "output"), [(0, "['GPU-a', 'MIG-x']"), (1, "cannot identify GPU 2 of 3")])
def test_nvidias_bindings_call_the_drivers_library(tmp_path, lost, output):
    (tmp_path / "nvml.c").write_text(LIBRARY)
    library = ["-shared", "-fPIC", f"-DLOST={lost}", "-o", tmp_path / "libnvidia-ml.so.1", tmp_path / "nvml.c"]
    subprocess.run([shutil.which("cc"), *library], check=True)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, check=False)
    assert output in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("about", "problem"),
    [
        ({"rows": (3, 0, 0, 1)}, "its memory has a defective row and no spare rows"),
        ({"rows": (0, 1, 1, 0)}, "its memory has a defective row, which is replaced at its next reset"),
        ({"rows": (9, 0, 0, 0)}, ""),
        ({"pages": 1}, "its memory has a defective page, which is retired at its next reset"),
        ({"ecc": 2}, "its memory has had 2 uncorrectable errors since the driver was loaded"),
        ({"recovery": 1}, "the driver recommends a reset"),
        ({"recovery": 0}, ""),
        ({"errors": {"TotalEccErrors": pynvml.NVML_ERROR_GPU_IS_LOST}}, "the driver has lost it"),
        ({"errors": {"RemappedRows": pynvml.NVML_ERROR_RESET_REQUIRED}, "rows": (0, 0, 0, 0)}, "it needs a reset"),
        (
            {"errors": {"RetiredPages": pynvml.NVML_ERROR_NOT_SUPPORTED}, "ecc": 1},
            "its memory has had 1 uncorrectable error since",
        ),
    ],
)
def test_problems_reported_by_the_driver_are_found(about, problem):
    unhealthy, healthy = nvidia_gpus(FakeNvml([device("a", **about), device("b")]))
    assert unhealthy.fault.startswith(problem)
    assert bool(unhealthy.fault) == bool(problem)
    assert healthy.fault == ""


def test_an_instance_of_an_unhealthy_gpu_is_unhealthy():
    [instance] = nvidia_gpus(FakeNvml([device("a", mig=(device("i"),), rows=(0, 0, 0, 1))]))
    assert instance.fault


def test_the_inventory_has_the_unhealthy_gpus_and_the_drivers_version():
    found = take_inventory("nvidia", {}, nvml=FakeNvml([device("a", ecc=1), device("b")], driver="535.104.05"))
    assert found.version == "535.104.05"
    assert set(found.faults) == {"GPU-a"}
