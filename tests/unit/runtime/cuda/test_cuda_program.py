"""Calls of kernels on a GPU, of which a double stands for one."""

import gc
import weakref
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.core.errors import DeviceError
from retune.compiler.core.target import Target
from retune.compiler.driver.build import build_kernel
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.lower.gpu.pipeline import lower_for_gpu
from retune.compiler.runtime.cuda.array import DeviceArray
from retune.compiler.runtime.cuda.program import DeviceProgram
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import Annotation, replay
from retune.compiler.schedule.steps import Annotate, ComputeAt, Split
from retune.compiler.schedule.task import SearchTask
from tests.support.fake_cuda import FakeDriver
from tests.support.small_computations import doubled
from tests.support.workloads import GPU


def doubling() -> tuple[DeviceProgram, FakeDriver]:
    """y = 2 x, of 16 numbers."""
    task = SearchTask("t", doubled(16), Target("cuda"), GPU)
    steps = (Annotate(1, 0, Annotation.THREAD_X),)
    driver = FakeDriver([lower_for_gpu(replay(task.dag, steps), "k", GPU)])
    return DeviceProgram(driver, "stream", build_kernel(task, steps, "k")), driver


def test_what_a_kernel_writes_must_be_nothing_else() -> None:
    program, driver = doubling()
    both = DeviceArray.allocate(driver, "stream", 0, (32,), "float32")
    first, middle, last = (both.view(start, (16,), "float32") for start in (0, 32, 64))
    program.bind([first, last])
    for wrong in ([first, first], [first, middle], [last, middle]):
        with pytest.raises(DeviceError, match="k: x and y share memory, and one of them is written"):
            program.bind(wrong)
    with pytest.raises(DeviceError, match=r"k: y lies on cuda\(1\), x on cuda\(0\)"):
        program.bind([first, DeviceArray.allocate(driver, "stream", 1, (16,), "float32")])


def test_a_driver_that_takes_no_machine_code_assembles_what_it_was_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    task = SearchTask("t", doubled(16), Target("cuda"), GPU)
    steps = (Annotate(1, 0, Annotation.THREAD_X),)
    driver = FakeDriver([lower_for_gpu(replay(task.dag, steps), "k", GPU)])
    built = build_kernel(task, steps, "k")
    assert built.device is not None
    loaded: list[tuple[bytes, str]] = []
    load = driver.load

    def older(code: bytes, kind: str, shared: Mapping[str, int]) -> dict[str, Any]:
        loaded.append((code, kind))
        if kind == "cubin":
            raise DeviceError("CUDA: CUDA_ERROR_INVALID_IMAGE", lasting="lasting" in str(code))
        return load(code, kind, shared)

    monkeypatch.setattr(driver, "load", older)
    machine = replace(built, object_code=b"machine code", device=replace(built.device, kind="cubin", ptx="text"))
    arrays = [DeviceArray.allocate(driver, "stream", 0, (16,), "float32") for _ in range(2)]
    arrays[0].write(np.ones(16, "float32"))
    DeviceProgram(driver, "stream", machine).bind(arrays)()
    assert arrays[1].numpy().sum() == 32
    assert loaded == [(b"machine code", "cubin"), (b"text", "ptx")]
    alone = replace(machine, device=replace(built.device, kind="cubin"))
    for refused in (replace(machine, object_code=b"lasting"), alone):
        with pytest.raises(DeviceError, match="INVALID_IMAGE"):
            DeviceProgram(driver, "stream", refused)


def test_a_call_keeps_its_arrays() -> None:
    program, driver = doubling()
    given = [DeviceArray.allocate(driver, "stream", 0, (16,), "float32") for _ in range(2)]
    kept = [weakref.ref(array) for array in given]
    call = program.bind(given)
    del given
    gc.collect()
    assert all(one() is not None for one in kept)
    del call
    gc.collect()
    assert all(one() is None for one in kept)


def test_a_kernel_with_much_shared_memory_is_launched_with_it() -> None:
    """y[i] = x[n - 1 - i] + 1, of which x + 1 lies in shared memory, all of it."""
    n, threads = 1 << 14, 1024
    x = te.placeholder((n,), name="x")
    more = te.compute((n,), lambda i: x[i] + 1.0, "more")
    dag = ComputeDAG([x, te.compute((n,), lambda i: more[n - 1 - i], "y")])
    steps = (
        Split(2, 0, n, (n // threads, threads)),
        Annotate(2, 0, Annotation.BLOCK_X),
        Annotate(2, 2, Annotation.THREAD_X),
        ComputeAt(1, 2, 0),
        Split(1, 0, n, (threads,)),
        Annotate(1, 1, Annotation.THREAD_X),
    )
    target = Target("cuda -arch=sm_90")
    task = SearchTask("t", dag, target, hardware_of(target, 1))
    artifact = build_kernel(task, steps, "k")
    assert artifact.device is not None
    assert [launch.shared for launch in artifact.device.launches] == [4 * n]
    driver = FakeDriver([lower_for_gpu(replay(dag, steps), "k", task.hardware)])
    arrays = [DeviceArray.allocate(driver, "stream", 0, (n,), "float32") for _ in range(2)]
    values = np.arange(n, dtype="float32")
    arrays[0].write(values)
    DeviceProgram(driver, "stream", artifact).bind(arrays)()
    np.testing.assert_array_equal(arrays[1].numpy(), values[::-1] + 1)
    assert driver.given == {"k_kernel0": 4 * n}
