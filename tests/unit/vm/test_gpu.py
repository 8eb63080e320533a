"""Programs whose regions run on a GPU, of which a double stands for one: any shapes, branches and loops."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from retune.compiler import vm
from retune.compiler.core.errors import DeviceError, OptionError
from retune.compiler.driver.compile_network import BuildError, ChosenProgram, build_in_process
from retune.compiler.ir.kernel import DeviceFunction
from retune.compiler.lower.gpu.pipeline import lower_for_gpu
from retune.compiler.runtime.artifact import KernelArtifact
from retune.compiler.runtime.cuda.driver import why_not
from retune.compiler.runtime.device import cpu, cuda, opencl
from retune.compiler.runtime.executor import executors
from retune.compiler.schedule.state import replay
from retune.compiler.vm import kernel_store, specialize, subgraph
from tests.support.dynamic_models import branching, floats, model, reference, staying, tensor
from tests.support.fake_cuda import FakeDriver

GPU = "cuda -arch=sm_90"


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """Two GPUs that know every kernel that is built from now on."""
    functions: list[DeviceFunction] = []

    def build(requests: Sequence[ChosenProgram]) -> list[KernelArtifact | BuildError]:
        for request in requests:
            if request.task.target.is_gpu:
                state = replay(request.task.dag, request.steps)
                functions.append(lower_for_gpu(state, request.task.name, request.task.hardware))
        return build_in_process(requests)

    made, store = FakeDriver(functions, count=2), kernel_store.KernelStore()
    monkeypatch.setattr(kernel_store, "build_in_process", build)
    monkeypatch.setattr(subgraph, "STORE", store)
    monkeypatch.setattr(specialize, "STORE", store)
    monkeypatch.setattr(executors, "driver", lambda: made)
    return made


def dense(rows: int | str = "n") -> onnx.ModelProto:
    """relu(x w) for a number of rows."""
    weights = {"w": np.arange(12, dtype=np.float32).reshape(4, 3) - 5}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("Relu", ["y"], ["out"])]
    return model(nodes, [tensor("x", [rows, 4])], [tensor("out", [rows, 3])], weights)


def test_any_number_of_rows(driver: FakeDriver, tmp_path: Path) -> None:
    vm.compile(dense(), GPU).export_library(tmp_path / "dense.vm")
    machine = vm.VirtualMachine(vm.Executable.load(tmp_path / "dense.vm"), cuda(1))
    for rows in (2, 5, 2):
        x = floats(rows, 4)
        np.testing.assert_allclose(machine.run(x=x), reference(dense(), {"x": x})[0], rtol=1e-5, atol=1e-6)
    assert len(driver.launches()) >= 3
    assert "open 0" not in driver.asked
    assert [each.shapes for each in machine.specializations()] == [{"x": (5, 4)}, {"x": (2, 4)}]
    assert len(machine.benchmark(cuda(1), floats(2, 4), repeat=2, number=1).results) == 2
    with pytest.raises(OptionError, match=r"this machine runs on cuda\(1\), not on cuda\(0\)"):
        machine.benchmark(cuda(0), floats(2, 4))


def test_branches_and_loops(driver: FakeDriver) -> None:
    for rows in (3, "n"):
        source = staying(rows)
        machine = vm.VirtualMachine(vm.compile(source, GPU), cuda())
        for iterations in (0, 3):
            given = {"count": np.array(iterations), "x": floats(3, 4, seed=iterations)}
            np.testing.assert_allclose(machine.run(**given), reference(source, given)[0], rtol=2e-5, atol=1e-5)
    machine = vm.VirtualMachine(vm.compile(branching(), GPU), [cpu(), cuda()])
    for sign in (1, -1):
        x = sign * np.ones(5, np.float32)
        np.testing.assert_array_equal(machine.run(x=x), reference(branching(), {"x": x})[0])
    assert driver.launches()


def test_known_shapes_are_compiled_when_they_run(driver: FakeDriver) -> None:
    executable = vm.compile(dense(2), GPU)
    assert executable.library.kernels == ()
    machine = vm.VirtualMachine(executable)
    assert driver.asked == []
    x = floats(2, 4)
    for _ in range(2):
        np.testing.assert_allclose(machine.run(x), reference(dense(2), {"x": x})[0], rtol=1e-5, atol=1e-6)
    assert len([line for line in driver.asked if line.startswith("load ")]) == 1


def test_devices_that_an_executable_is_not_for(driver: FakeDriver) -> None:
    on_gpu, on_host = vm.compile(dense(), GPU), vm.compile(dense())
    for given in (cpu(), [cuda(0), cuda(1)]):
        with pytest.raises(OptionError, match=r"compiled for cuda runs on a GPU alone, such as cuda\(0\), not on"):
            vm.VirtualMachine(on_gpu, given)
    with pytest.raises(OptionError, match=r"programs run on cpu\(0\) and on GPUs such as cuda\(0\), not on opencl"):
        vm.VirtualMachine(on_gpu, opencl())
    with pytest.raises(OptionError, match=r"compiled for llvm runs on .*such as cpu\(0\), not on cuda\(0\)"):
        vm.VirtualMachine(on_host, cuda())
    with pytest.raises(DeviceError, match="there is no GPU number 7; this machine has 2"):
        vm.VirtualMachine(on_gpu, cuda(7))
    assert driver.asked == []


def test_without_a_gpu_a_machine_says_what_is_missing() -> None:
    if why_not() == "":
        pytest.skip("there is a GPU here")
    with pytest.raises(DeviceError, match=r"packages for CUDA are missing|no NVIDIA driver|no GPU"):
        vm.VirtualMachine(vm.compile(dense(), GPU))
