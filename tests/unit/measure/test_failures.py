"""Every way in which a candidate can fail, brought about by the real code generator or by its object code."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from retune.compiler import te
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.driver.build import build_kernel
from retune.compiler.measure.builder import LocalBuilder
from retune.compiler.measure.measurer import LocalMeasurer
from retune.compiler.measure.options import MeasureOptions
from retune.compiler.measure.record import Measurement, MeasureStatus
from retune.compiler.measure.remote.fleet import FleetRunner
from retune.compiler.measure.runner import LocalRunner
from retune.compiler.runtime.artifact import KernelArtifact
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default.cpu import default_steps
from retune.compiler.schedule.primitives import compute_at, parallel
from retune.compiler.schedule.state import State
from retune.compiler.schedule.steps import Split, Step, steps_of
from retune.compiler.schedule.task import SearchTask

OPTIONS = MeasureOptions(repeat=1, min_repeat_ms=0.1, build_timeout_s=60.0, run_timeout_s=5.0)


@pytest.fixture(scope="module")
def measurer() -> Iterator[LocalMeasurer]:
    with LocalMeasurer.with_options(OPTIONS, n_parallel=1) as shared:
        yield shared


def double(elements: int = 1000, dtype: str = "float32") -> SearchTask:
    """b = 2 * a"""
    a = te.placeholder((elements,), dtype, name="a")
    b = te.compute((elements,), lambda i: a[i] * 2, "b")
    return SearchTask("double", ComputeDAG([a, b]), Target.host(), HardwareParams(num_cores=1))


def untuned(task: SearchTask) -> KernelArtifact:
    return build_kernel(task, default_steps(task.dag), "kernel")


def built(artifact: KernelArtifact) -> Measurement:
    return Measurement(artifact=artifact)


def failure(runner: LocalRunner | FleetRunner, task: SearchTask, artifact: KernelArtifact) -> Measurement:
    """The result of a bad kernel; the good one after it must not suffer."""
    bad, good = runner.run(task, [built(artifact), built(untuned(task))])
    assert good.status is MeasureStatus.OK, good.error
    assert bad.costs == ()
    return bad


def test_instantiation_the_steps_do_not_apply(measurer: LocalMeasurer) -> None:
    task = double()
    wrong: Sequence[Step] = (Split(7, 0, 1000, (8,), True),)
    bad, good = measurer.measure(task, [wrong, default_steps(task.dag)])
    assert bad.status is MeasureStatus.INSTANTIATION
    assert bad.error.startswith("ScheduleError")
    assert "Traceback" in bad.error
    assert good.status is MeasureStatus.OK


def test_compile_host_the_code_generator_refuses(measurer: LocalMeasurer) -> None:
    """A buffer of 448 KB in each of 256 parallel iterations fits neither the stack of a thread nor the workspace."""
    a = te.placeholder((1 << 17,), name="a")
    b = te.compute((1 << 17,), lambda i: a[i] * 2.0, "b")
    c = te.compute((256, 8), lambda i, j: b[j * (1 << 14) + i], "c")
    task = SearchTask("far apart", ComputeDAG([a, c]), Target.host(), HardwareParams(num_cores=2))
    state, _ = parallel(compute_at(State.initial(task.dag), "b", "c", "i"), "c", "i")
    (bad,) = measurer.measure(task, [steps_of(state)])
    assert bad.status is MeasureStatus.COMPILE_HOST
    assert bad.error.startswith("LoweringError")


def test_build_timeout_the_compiler_takes_too_long() -> None:
    """A builder that never ends; starting a worker and importing, slow as they may be, are not part of its time."""
    task = double()
    endless = "tests.support.ir_kernels:endless_build"
    with LocalBuilder(timeout=1.0, n_parallel=1, build_func=endless) as builder:
        (bad,) = builder.build(task, [default_steps(task.dag)])
    assert bad.status is MeasureStatus.BUILD_TIMEOUT
    assert bad.error == "the build took more than 1 s"


def test_compile_device_the_object_code_is_for_another_cpu(measurer: LocalMeasurer) -> None:
    task = double()
    foreign = replace(task, target=Target("llvm -mtriple=aarch64-linux-gnu"))
    bad = failure(measurer.runner, task, untuned(foreign))
    assert bad.status is MeasureStatus.COMPILE_DEVICE
    assert "code for another kind of CPU" in bad.error


def test_runtime_device_the_kernel_writes_past_its_output(measurer: LocalMeasurer) -> None:
    """Code for 8192 elements that claims to be for 1024."""
    task, larger = double(1024), double(8192)
    lying = replace(untuned(larger), args=untuned(task).args)
    bad = failure(measurer.runner, task, lying)
    assert bad.status is MeasureStatus.RUNTIME_DEVICE
    assert bad.error.startswith("the kernel crashed: the worker process was ended by SIGSEGV")


def test_runtime_device_the_stack_overflows(measurer: LocalMeasurer) -> None:
    """The code generator's own limit is lifted, not the thread's."""
    a = te.placeholder((4, 1 << 22), name="a")
    b = te.compute((4, 1 << 22), lambda i, j: a[i, j] * 2.0, "b")
    c = te.compute((4, 1 << 22), lambda i, j: b[i, (1 << 22) - 1 - j], "c")
    hardware = HardwareParams(num_cores=1)
    task = SearchTask("turned", ComputeDAG([a, c]), Target.host(), hardware)
    careless = replace(task, hardware=replace(hardware, stack_bytes=1 << 30))
    state = compute_at(State.initial(task.dag), "b", "c", "i")
    (bad,) = measurer.runner.run(task, [built(build_kernel(careless, steps_of(state), "kernel"))])
    assert bad.status is MeasureStatus.RUNTIME_DEVICE
    assert "SIGSEGV" in bad.error


def test_runtime_device_there_is_no_memory_for_the_temporary_buffers(measurer: LocalMeasurer) -> None:
    task = double()
    hungry = replace(untuned(task), workspace_bytes=1 << 45)
    bad = failure(measurer.runner, task, hungry)
    assert bad.status is MeasureStatus.RUNTIME_DEVICE
    assert bad.error.startswith("MemoryError: the temporary buffers of the kernel need 32768.0 GiB")


def test_runtime_device_there_is_no_memory_for_the_tensors(measurer: LocalMeasurer) -> None:
    """All candidates of the task fail, and say why; no process is ended for it, and other tasks go on."""
    task = double(1 << 42)
    runner = measurer.runner
    assert isinstance(runner, LocalRunner)
    before = runner._worker.pid
    (bad,) = measurer.runner.run(task, [built(replace(untuned(double()), args=_args(task)))])
    assert bad.status is MeasureStatus.RUNTIME_DEVICE
    assert "MemoryError: the buffers of" in bad.error
    assert measurer.measure(double(), [default_steps(double().dag)])[0].status is MeasureStatus.OK
    assert before in (None, runner._worker.pid)


def _args(task: SearchTask) -> tuple:  # type: ignore[type-arg]
    small = untuned(double()).args
    return tuple(replace(arg, shape=task.dag.outputs[0].shape) for arg in small)


def test_run_timeout_the_program_is_endless_for_our_purposes(measurer: LocalMeasurer) -> None:
    """The maximum of 2^60 numbers for each of a thousand, in a kernel that should double them."""
    task = double(1024)
    a = te.placeholder((1024,), name="a")
    k, m, n = (te.reduce_axis(1 << 20, name) for name in "kmn")
    endless = te.compute((1024,), lambda i: te.max(a[(i + k * m + n) % 1024], [k, m, n]), "b")
    slow = SearchTask("endless", ComputeDAG([a, endless]), Target.host(), HardwareParams(num_cores=1))
    bad = failure(measurer.runner, task, untuned(slow))
    assert bad.status is MeasureStatus.RUN_TIMEOUT
    assert bad.error == "the kernel took more than 5 s"


def test_wrong_answer_it_is_another_computation(measurer: LocalMeasurer) -> None:
    task = double(1024)
    a = te.placeholder((1024,), name="a")
    other = te.compute((1024,), lambda i: a[i] * te.if_then_else(i < 1000, 2.0, 2.5), "b")
    triple = SearchTask("other", ComputeDAG([a, other]), Target.host(), HardwareParams(num_cores=1))
    bad = failure(measurer.runner, task, untuned(triple))
    assert bad.status is MeasureStatus.WRONG_ANSWER
    assert bad.error.startswith("wrong answer in b: 24 of 1024 elements differ")


def test_the_names_and_numbers_are_those_of_tvm() -> None:
    names = {int(status): status.tvm_name for status in MeasureStatus}
    assert names == {
        0: "NoError",
        1: "InstantiationError",
        2: "CompileHostError",
        3: "CompileDeviceError",
        4: "RuntimeDeviceError",
        5: "WrongAnswerError",
        6: "BuildTimeoutError",
        7: "RunTimeoutError",
        8: "UnknownError",
    }
