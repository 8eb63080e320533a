"""The benchmark of GPUs on a double: its cases compute what they should, its lines say what was measured."""

import json
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from benchmarks import gpu
from benchmarks.gpu_cases import CASES, EPSILON, Array, GpuCase
from benchmarks.gpu_peak import chains, measured_bandwidth
from benchmarks.harness import Run
from compiler.driver.hardware import hardware_of
from compiler.lower.gpu.pipeline import lower_for_gpu
from compiler.measure.record import MeasureStatus
from compiler.measure.results import Measurement
from compiler.runtime import cuda
from compiler.schedule.state import replay
from compiler.schedule.steps import Step
from compiler.schedule.task import SearchTask
from compiler.simt.execute import execute
from compiler.te.evaluate import evaluate
from tests.cuda_double import CALL_SECONDS, DEVICE, DriverDouble
from tests.unit.lower.small import doubled
from tests.unit.search.workloads import GPU

SMALL = {
    "matmul": GpuCase("matmul", (32, 32, 16)),
    "batched": GpuCase("batched", (2, 16, 8, 8)),
    "conv": GpuCase("conv", (4, 3, 8, 3, 2)),
    "softmax": GpuCase("softmax", (4, 40)),
    "layer_norm": GpuCase("layer_norm", (4, 40)),
}


def reference(case: GpuCase, arrays: Mapping[str, Array]) -> Array:
    """What a case computes, in float64."""
    wide = {name: array.astype(np.float64) for name, array in arrays.items()}
    match case.kind:
        case "matmul" | "batched":
            return wide["a"] @ wide["b"]
        case "softmax":
            powers = np.exp(wide["x"] - wide["x"].max(axis=1, keepdims=True))
            return powers / powers.sum(axis=1, keepdims=True)
        case "layer_norm":
            x = wide["x"] - wide["x"].mean(axis=1, keepdims=True)
            return x / np.sqrt((x * x).mean(axis=1, keepdims=True) + EPSILON) * wide["scale"] + wide["bias"]
    size, _, made, window, stride = case.sizes
    pad = (window - 1) // 2
    x = np.pad(wide["x"], ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    out = np.zeros((1, size, size, made))
    for i in range(window):
        for j in range(window):
            taps = x[:, i : i + size * stride : stride, j : j + size * stride : stride]
            out += taps @ wide["w"][i, j]
    return out


@pytest.mark.parametrize("mode", ["fp32", "f16"])
@pytest.mark.parametrize("name", SMALL)
def test_cases_compute_what_they_are_called(name: str, mode: str) -> None:
    case = SMALL[name]
    arrays, graph = case.arrays(mode), case.graph(mode)
    (found,) = evaluate(graph.outputs, {tensor: arrays[tensor.name] for tensor in graph.inputs})
    tolerance = 1e-5 if mode == "fp32" else 5e-3
    np.testing.assert_allclose(found.astype(np.float64), reference(case, arrays), rtol=tolerance, atol=tolerance)


def test_all_operators_that_were_asked_for_are_there() -> None:
    assert {name for name in CASES if name.startswith("matmul")} == {f"matmul_{n}" for n in (1024, 2048, 4096, 8192)}
    assert sum(name.startswith("conv") for name in CASES) >= 10
    assert CASES["matmul_1024"].flops == 2 * 1024**3
    assert CASES["softmax_4096x1024"].nbytes("fp32") == 2 * 4 * 4096 * 1024
    assert CASES["softmax_4096x1024"].modes == ("fp32", "f16")
    assert CASES["conv3x3_s2_7_512_512"].flops == 2 * 49 * 512 * 512 * 9


def test_sums_in_registers_are_what_the_peak_is_measured_with() -> None:
    x = np.linspace(0.1, 0.9, 8, dtype="float32")
    (found,) = execute(chains(2, 8, 3, 5), [x])
    wanted = np.zeros(8, np.float32)
    for chain in range(3):
        total = x + np.float32(chain)
        for _ in range(5):
            total = total * x + x
        wanted += total
    np.testing.assert_allclose(found, np.stack([wanted, wanted]), rtol=1e-5)


class Measures:
    """Programs cost what their number says, every third one is wrong."""

    def __init__(self) -> None:
        self.count = 0

    def measure(
        self, task: SearchTask, candidates: Sequence[Sequence[Step]], best_seconds: float | None = None
    ) -> list[Measurement]:
        assert task.target.is_gpu
        assert best_seconds is None or best_seconds > 0
        found = []
        for _ in candidates:
            self.count += 1
            wrong = self.count % 3 == 0
            costs = () if wrong else (1.0 / self.count,)
            status = MeasureStatus.WRONG_ANSWER if wrong else MeasureStatus.OK
            found.append(Measurement(costs, status, "wrong" if wrong else "", 0.0, 0.0))
        return found


class Peer:
    """PyTorch, of which it is known what it computes and how long that takes."""

    def __init__(self, seconds: float, result: Array) -> None:
        self._seconds, self._result = seconds, result

    def seconds(self) -> float:
        return self._seconds

    def result(self) -> Array:
        return self._result


def measured(case: GpuCase, mode: str, trials: int) -> tuple[list[dict[str, object]], Measures]:
    """The lines of a case, with a double that runs whatever program was found."""
    driver = DriverDouble()
    device = gpu.Gpu(driver, "stream", DEVICE, {"fp32": 1e12, "f16": 4e12}, 1e11)
    target = device.target
    task = SearchTask("t", case.graph(mode), target, hardware_of(target, 1))
    measures = Measures()
    best = gpu.tune(task, Measures(), trials, 60.0).steps
    assert best is not None
    driver.functions = [lower_for_gpu(replay(task.dag, best), "kernel", GPU)]
    result = reference(case, case.arrays(mode))
    peers = {"torch": Peer(3e-4, result), "torch-compiled": Peer(2e-4, result * 1.01)}
    run = Run("", (1,), 60.0, None, {"trials": trials, "device": 0})
    lines = gpu.figures("case", case, mode, device, measures, lambda *_: peers, run)
    return [json.loads(figure.line()) for figure in lines], measures


@pytest.mark.parametrize(("name", "metric"), [("matmul", "speed"), ("softmax", "bandwidth")])
def test_lines_of_a_case(name: str, metric: str) -> None:
    case = SMALL[name]
    lines, measures = measured(case, "fp32", 10)
    by_backend = {str(line["backend"]): line for line in lines}
    assert set(by_backend) == {"torch", "torch-compiled", "retune"}
    assert measures.count == 10
    ours, eager = by_backend["retune"], by_backend["torch"]
    assert (ours["trials"], ours["failed"]) == (10, 3)
    assert ours["metric"] == metric
    work = case.flops or case.nbytes("fp32")
    kernels = round(float(ours["us"]) / (CALL_SECONDS * 1e6))  # type: ignore[arg-type]
    assert kernels >= 1
    assert ours["value"] == pytest.approx(work / (kernels * CALL_SECONDS) / 1e9, rel=1e-3)
    assert eager["value"] == pytest.approx(work / 3e-4 / 1e9, rel=1e-3)
    assert eager["peak_ratio"] == pytest.approx(work / 3e-4 / (1e12 if case.flops else 1e11), rel=1e-3)
    assert eager["error"] == 0
    assert ours["error"] < 1e-5  # type: ignore[operator]
    assert by_backend["torch-compiled"]["error"] == pytest.approx(0.01, rel=1e-3)
    assert (ours["mode"], ours["gpu"]) == ("fp32", "Double")


def test_a_search_without_a_right_program_has_no_line_of_ours() -> None:
    class Wrong(Measures):
        def measure(
            self, task: SearchTask, candidates: Sequence[Sequence[Step]], best_seconds: float | None = None
        ) -> list[Measurement]:
            found = super().measure(task, candidates, best_seconds)
            return [Measurement((), MeasureStatus.WRONG_ANSWER, "wrong", 0.0, 0.0) for _ in found]

    device = gpu.Gpu(DriverDouble(), "stream", DEVICE, {}, 1e11)
    run = Run("", (1,), 60.0, None, {"trials": 4, "device": 0})
    result = np.zeros((4, 40))
    lines = gpu.figures("c", SMALL["softmax"], "fp32", device, Wrong(), lambda *_: {"torch": Peer(1e-4, result)}, run)
    assert [figure.backend for figure in lines] == ["torch"]


def test_bandwidth_counts_what_is_read_and_written() -> None:
    driver = DriverDouble([lower_for_gpu(replay(doubled(2048), ()), "copy", GPU)])
    assert measured_bandwidth(driver, "stream", DEVICE, 2048) == pytest.approx(8 * 2048 / CALL_SECONDS)


def test_without_a_gpu_it_says_so_and_ends() -> None:
    if cuda.why_not() == "":
        pytest.skip("there is a GPU here")
    with pytest.raises(SystemExit, match=r"nothing is measured: .*(CUDA|NVIDIA|GPU)"):
        gpu.main(["--only", "matmul_1024"])
