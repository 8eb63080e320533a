"""What `cuda.core` is asked for, by a stand-in: the device of every thread, and graphs that are given back."""

import gc
import weakref
from enum import IntEnum
from threading import Thread, local
from types import SimpleNamespace
from typing import Any

import pytest

from retune.compiler.core.errors import DeviceError
from retune.compiler.runtime.cuda.driver import _CoreDriver


class Ones:
    """Properties of a device."""

    def __getattr__(self, _: str) -> int:
        return 1


class Machine:
    """Two GPUs, as `cuda.core` and `cuda.bindings.driver` show them."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.here = local()
        machine = self

        class Device:
            name = "Fake"
            compute_capability = 9, 0
            properties = Ones()

            def __init__(self, number: int) -> None:
                self.device_id = self.number = number

            @staticmethod
            def get_all_devices() -> list[Any]:
                raise RuntimeError("there is no library of NVIDIA's for the management of devices")

            def set_current(self) -> None:
                machine.asked.append(f"set {self.number}")
                machine.here.context = 100 + self.number

            def allocate(self, size: int, *, stream: Any) -> Any:
                machine.asked.append(f"allocate {size} on {self.number} for {stream}")
                return SimpleNamespace(handle=256)

        self.core = SimpleNamespace(Device=Device)
        self.bindings = SimpleNamespace(
            cuInit=lambda _: (0,),
            cuDeviceGetCount=lambda: (0, 2),
            cuCtxGetCurrent=lambda: (0, getattr(self.here, "context", 0)),
            CUstreamCaptureMode=SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED=2),
            cuStreamBeginCapture=self._does("begin"),
            cuStreamEndCapture=self._does("end", "graph"),
            cuGraphInstantiate=self._does("instantiate", "runnable"),
            cuGraphLaunch=self._does("launch"),
            cuGraphDestroy=self._does("destroy"),
            cuGraphExecDestroy=self._does("destroy"),
        )

    def _does(self, name: str, *made: object) -> Any:
        def answer(*given: object) -> tuple[object, ...]:
            self.asked.append(f"{name} {given[0]}")
            return 0, *made

        return answer


@pytest.fixture(name="machine")
def _machine() -> Machine:
    return Machine()


def test_every_thread_has_a_device_of_its_own(machine: Machine) -> None:
    cuda = _CoreDriver(machine.core, machine.bindings)
    cuda.open(0)
    failed: list[str] = []

    def elsewhere() -> None:
        try:
            cuda.allocate(64, "other")
        except DeviceError as error:
            failed.append(str(error))
        cuda.open(1)
        cuda.allocate(64, "other")

    for _ in range(2):  # a later thread may get the number of an earlier one
        thread = Thread(target=elsewhere)
        thread.start()
        thread.join()
    cuda.open(0)  # is open
    cuda.allocate(64, "mine")
    assert failed == ["no GPU is open in this thread; open one first"] * 2
    elsewhere_asked = ["set 1", "allocate 64 on 1 for other"]
    assert machine.asked == ["set 0", *elsewhere_asked, *elsewhere_asked, "allocate 64 on 0 for mine"]


def test_devices_are_those_that_cuda_shows(machine: Machine) -> None:
    """The package's own list needs a library that containers may lack, and knows nothing of CUDA_VISIBLE_DEVICES."""
    found = _CoreDriver(machine.core, machine.bindings).devices()
    assert [(one.number, one.arch) for one in found] == [(0, "sm_90a"), (1, "sm_90a")]


def test_driver_without_devices_raises_a_clear_error(machine: Machine) -> None:
    class Code(IntEnum):
        CUDA_ERROR_NO_DEVICE = 100

    machine.bindings.cuInit = lambda _: (Code.CUDA_ERROR_NO_DEVICE,)
    with pytest.raises(DeviceError, match="it names no GPU: check CUDA_VISIBLE_DEVICES and the container's devices"):
        _CoreDriver(machine.core, machine.bindings)


def test_what_other_libraries_do_to_the_current_device_is_noticed(machine: Machine) -> None:
    cuda = _CoreDriver(machine.core, machine.bindings)
    cuda.open(0)
    cuda.open(0)
    assert machine.asked == ["set 0"]
    machine.here.context = 101  # torch.cuda.set_device(1)
    cuda.open(0)
    assert machine.asked == ["set 0"] * 2
    assert machine.here.context == 100
    machine.here.context = 0  # a library that pops its own
    cuda.open(0)
    cuda.open(0)
    assert machine.asked == ["set 0"] * 3


def test_work_that_cannot_be_captured_ends_the_capture_and_says_why(machine: Machine) -> None:
    def fails() -> None:
        raise DeviceError("the reason")

    cuda = _CoreDriver(machine.core, machine.bindings)
    with pytest.raises(DeviceError, match="the reason"):
        cuda.capture(SimpleNamespace(handle=7), fails)
    assert machine.asked == ["begin 7", "end 7", "destroy graph"]


def test_a_graph_keeps_what_it_runs(machine: Machine) -> None:
    class Kernels:
        """Code on the device."""

        def __call__(self) -> None:
            machine.asked.append("work")

    work = Kernels()
    lives = weakref.ref(work)
    run = _CoreDriver(machine.core, machine.bindings).capture(SimpleNamespace(handle=7), work)
    del work
    gc.collect()
    assert lives() is not None
    del run
    gc.collect()
    assert lives() is None


def test_unreferenced_cuda_graph_is_released(machine: Machine) -> None:
    cuda = _CoreDriver(machine.core, machine.bindings)
    stream = SimpleNamespace(handle=7)
    run = cuda.capture(stream, lambda: machine.asked.append("work"))
    run()
    assert machine.asked == ["begin 7", "work", "end 7", "instantiate graph", "destroy graph", "launch runnable"]
    del run
    gc.collect()
    assert machine.asked[-1] == "destroy runnable"
