"""Programs for a GPU, measured on a double of its driver: what is timed and how, and what is wrong with what."""

import os
from collections.abc import Iterator
from dataclasses import replace
from math import inf

import numpy as np
import pytest

from retune.compiler.core.errors import DeviceError
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.driver.build import build_kernel
from retune.compiler.lower.gpu.pipeline import lower_for_gpu
from retune.compiler.measure.measurer import LocalMeasurer
from retune.compiler.measure.options import MeasureOptions
from retune.compiler.measure.processes import cuda_worker, run_worker
from retune.compiler.measure.record import Measurement, MeasureStatus
from retune.compiler.measure.runner import CudaRunner, gpu_of_key
from retune.compiler.measure.task_buffers import TaskSetup
from retune.compiler.runtime.artifact import Array, KernelArtifact, kernel_of, kernel_row
from retune.compiler.runtime.cuda import driver as cuda
from retune.compiler.schedule.default.cpu import default_steps
from retune.compiler.schedule.state import Annotation, replay
from retune.compiler.schedule.steps import Annotate, Split, Step
from retune.compiler.schedule.task import SearchTask
from tests.support.fake_cuda import CALL_SECONDS, FakeDriver
from tests.support.workloads import GPU, double_matmul

DAG = double_matmul(16)
TASK = SearchTask("t", DAG, Target("cuda -arch=sm_90"), GPU)
BOUND: tuple[Step, ...] = tuple(
    step
    for stage in (2, 4)
    for step in (
        Split(stage, 0, 16, (8,)),
        Annotate(stage, 0, Annotation.BLOCK_X),
        Annotate(stage, 1, Annotation.THREAD_X),
    )
)
OPTIONS = MeasureOptions(min_repeat_ms=1.0)


@pytest.fixture(name="gpu")
def _gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    """A worker in this process, on a double that knows the kernels of the bound program."""
    names = ["kernel", "slow", "wrong"]
    functions = [lower_for_gpu(replay(DAG, BOUND), name, GPU) for name in names]
    double = FakeDriver(functions)
    monkeypatch.setattr(cuda, "driver", lambda: double)
    monkeypatch.setattr(cuda_worker, "driver", lambda: double)
    monkeypatch.setattr(run_worker, "set_up", lambda *_: None)
    cuda_worker.set_up((), 0)
    yield double
    cuda_worker._tasks.clear()


def prepared(options: MeasureOptions = OPTIONS) -> None:
    """Tell the worker of the task."""
    on_cpu = replace(TASK, target=Target.host(), hardware=HardwareParams(num_cores=1))
    pattern = build_kernel(on_cpu, default_steps(DAG), "reference")
    cuda_worker.prepare("key", pattern, TaskSetup(8), options)


def run(*artifacts: KernelArtifact, best: float = inf, options: MeasureOptions = OPTIONS) -> list[Measurement]:
    """What the worker says of kernels."""
    said = cuda_worker.run_stream("key", artifacts, best, options)
    return [item for item in said if isinstance(item, Measurement)]


def built(name: str = "kernel") -> KernelArtifact:
    """The bound program."""
    return build_kernel(TASK, BOUND, name)


def test_code_for_a_gpu_says_how_it_is_run() -> None:
    artifact = built()
    assert artifact.device is not None
    assert [launch.name for launch in artifact.device.launches] == ["kernel_kernel0", "kernel_kernel1"]
    assert artifact.device.launches[0].grid == (2, 1, 1)
    assert artifact.device.launches[0].block == (8, 1, 1)
    assert (artifact.device.workspace, artifact.workspace_bytes) == ((0,), 16 * 16 * 4)
    assert [arg.is_output for arg in artifact.args] == [False, False, False, True]
    assert kernel_of(kernel_row(artifact), artifact.object_code) == artifact


def test_artifacts_say_what_shared_memory_a_launch_gives() -> None:
    """Older ones do not, and none of theirs needs any; nor do they say what machine code was made of."""
    artifact = built()
    assert artifact.device is not None
    launches = tuple(replace(launch, shared=100 << 10) for launch in artifact.device.launches)
    large = replace(artifact, device=replace(artifact.device, launches=launches))
    row = kernel_row(large)
    assert kernel_of(row, large.object_code) == large
    for launch in row["device"]["launches"]:
        del launch["shared"]
    del row["device"]["ptx"]
    assert kernel_of(row, artifact.object_code) == replace(artifact, device=replace(artifact.device, ptx=""))


def test_a_right_program_is_checked_and_timed_in_graphs(gpu: FakeDriver) -> None:
    prepared()
    (result,) = run(built(), options=replace(OPTIONS, min_repeat_ms=0.9))
    assert result.status is MeasureStatus.OK, result.error
    assert result.costs == pytest.approx([2 * CALL_SECONDS] * 3)  # two kernels a call
    assert result.run_seconds > 0
    assert "graph of 10" in gpu.asked  # five calls are 0.9 milliseconds
    assert gpu.launches()[:2] == ["kernel_kernel0", "kernel_kernel1"]


def test_hopeless_program_gets_one_short_probe(gpu: FakeDriver) -> None:
    prepared()
    gpu.seconds["slow_kernel0"] = 1.0
    good, slow = run(built(), built("slow"))
    assert not good.censored
    assert slow.censored
    assert slow.costs == pytest.approx((1.0 + CALL_SECONDS,))
    assert gpu.launches().count("slow_kernel0") == 4  # checked, warmed up, looked at twice


def test_what_the_host_takes_to_queue_a_short_program_does_not_make_it_hopeless(gpu: FakeDriver) -> None:
    prepared()
    gpu.seconds.update(kernel_kernel0=2e-6, kernel_kernel1=2e-6)
    gpu.queueing = 1e-5
    (result,) = run(built(), best=4e-6)
    assert not result.censored
    assert result.costs == pytest.approx([4e-6] * 3, rel=0.1)


def test_a_program_after_one_that_broke_cuda_is_not_to_blame(gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared()
    ended: list[int] = []

    def end(code: int) -> None:
        ended.append(code)
        raise SystemExit

    def broken(*_: object) -> None:
        raise DeviceError("CUDA: ILLEGAL_ADDRESS", lasting=True)

    monkeypatch.setattr(os, "_exit", end)
    gpu.failing = broken
    with pytest.raises(SystemExit):
        list(cuda_worker.compare_stream("key", [built()], 2, OPTIONS))
    monkeypatch.setattr(gpu, "load", broken)
    with pytest.raises(SystemExit):
        run(built())
    assert ended == [cuda_worker.BROKEN] * 2


@pytest.mark.usefixtures("gpu")
def test_the_cache_is_emptied_before_each_call_and_that_is_not_timed() -> None:
    options = replace(OPTIONS, enable_cpu_cache_flush=True)
    prepared(options)
    (result,) = run(built(), options=options)
    assert result.costs == pytest.approx([2 * CALL_SECONDS] * 3)


def test_kernels_of_a_call_are_queued_as_one_while_the_cache_is_emptied(gpu: FakeDriver) -> None:
    """Else the second of two would be waited for: what it costs to queue it would be taken for its time."""
    gpu.queueing = 5e-5
    options = replace(OPTIONS, enable_cpu_cache_flush=True)
    prepared(options)
    (result,) = run(built(), options=options)
    assert result.costs == pytest.approx([2 * CALL_SECONDS + gpu.queueing] * 3)
    assert "graph of 2" in gpu.asked
    gpu.seconds["kernel_kernel0"] = 5e-3  # beside which that is nothing
    gpu.asked.clear()
    run(built(), options=options)
    assert not any(line.startswith("graph") for line in gpu.asked)


def test_wrong_answers_are_found(gpu: FakeDriver) -> None:
    prepared()

    def spoil(outputs: list[Array]) -> None:
        outputs[0][3, 4] += 1.0

    gpu.spoil = spoil
    (result,) = run(built())
    assert result.status is MeasureStatus.WRONG_ANSWER
    assert "1 of 256 elements differ; worst at (3, 4)" in result.error
    gpu.spoil = lambda *_: None
    assert run(built())[0].status is MeasureStatus.OK


def test_what_is_not_computed_is_found(gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared()
    monkeypatch.setattr(gpu, "_execute", lambda *_: None)
    (result,) = run(built())
    assert result.status is MeasureStatus.WRONG_ANSWER


def test_writing_beside_an_output_is_found(gpu: FakeDriver) -> None:
    prepared()
    output = cuda_worker._tasks["key"].arrays[-1]
    gpu.failing = lambda *_: gpu.fill(output.address + output.nbytes, 0, 4, "stream")
    (result,) = run(built())
    assert result.status is MeasureStatus.RUNTIME_DEVICE
    assert "out of bounds: E: 4 of the 256 bytes after its end are overwritten" in result.error
    gpu.failing = lambda *_: None
    assert run(built())[0].status is MeasureStatus.OK


@pytest.mark.usefixtures("gpu")
def test_code_that_cannot_be_loaded_is_a_result() -> None:
    prepared()
    first, second = run(built("unknown"), built())
    assert first.status is MeasureStatus.COMPILE_DEVICE
    assert "NOT_FOUND" in first.error
    assert second.status is MeasureStatus.OK


def test_a_kernel_that_breaks_cuda_ends_its_worker(gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared()
    ended: list[int] = []

    class EndedError(Exception):
        """In place of the process' end."""

    def end(code: int) -> None:
        ended.append(code)
        raise EndedError

    monkeypatch.setattr("os._exit", end)

    def fail(*_: str) -> None:
        raise DeviceError("CUDA: ILLEGAL_ADDRESS", lasting=True)

    gpu.failing = fail
    with pytest.raises(EndedError):
        run(built())
    assert ended == [cuda_worker.BROKEN]


def test_programs_are_compared_in_turn(gpu: FakeDriver) -> None:
    prepared()
    gpu.seconds["slow_kernel0"] = 3e-4
    said = list(cuda_worker.compare_stream("key", [built(), built("slow")], 4, OPTIONS))
    fast, slow = (item for item in said if isinstance(item, Measurement))
    assert fast.costs == pytest.approx([2e-4] * 4)
    assert slow.costs == pytest.approx([4e-4] * 4)


@pytest.mark.usefixtures("gpu")
def test_a_program_for_cpus_is_no_candidate() -> None:
    prepared()
    on_cpu = replace(TASK, target=Target.host(), hardware=HardwareParams(num_cores=1))
    (result,) = run(build_kernel(on_cpu, default_steps(DAG), "reference"))
    assert result.status is MeasureStatus.COMPILE_DEVICE
    assert "not for a GPU" in result.error


@pytest.mark.usefixtures("gpu")
def test_another_gpu_than_there_is() -> None:
    assert cuda_worker.missing(0) == ""
    found = cuda_worker.gpu_device(0)
    assert found is not None
    assert found.identity == "Double 0, sm_90, 132 multiprocessors"
    assert cuda_worker.gpu_device(1) is None
    assert cuda_worker.missing(1) == "there is no GPU number 1; this machine has 1"
    cuda_worker.set_up((), 1)
    with pytest.raises(DeviceError, match=r"there is no GPU|no GPU"):
        prepared()


def test_keys_of_devices_that_are_gpus() -> None:
    assert [gpu_of_key(key) for key in ("cuda", "cuda:0", "cuda:3")] == [0, 0, 3]
    assert [gpu_of_key(key) for key in ("cpu", "cuda:x", "my-cuda")] == [None] * 3


def test_without_a_gpu_a_run_says_what_is_missing() -> None:
    if cuda.why_not() == "":
        pytest.skip("there is a GPU here")
    said = r"packages for CUDA are missing|no NVIDIA driver|no GPU"
    with CudaRunner(OPTIONS) as runner, pytest.raises(DeviceError, match=said):
        runner.check()


@pytest.mark.gpu
def test_a_gpu_measures_a_program() -> None:
    if missing := cuda.why_not():
        pytest.skip(missing)
    with LocalMeasurer.with_options(MeasureOptions(), 1, gpu=0) as measurer:
        arch = cuda.gpus()[0].arch
        (found,) = measurer.measure(replace(TASK, target=Target("cuda", arch=arch)), [BOUND])
    assert found.status is MeasureStatus.OK, found.error
    assert np.all(np.array(found.costs) > 0)
