"""The benchmark of GPUs on a double: its cases compute what they should, its lines say what was measured."""

import gc
import json
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks import gpu, gpu_peak, gpu_torch, gpu_tuning, zoo
from benchmarks.gpu_cases import CASES, EPSILON, Array, GpuCase
from benchmarks.gpu_interleaved import Failed, OvertimeError, Timed, attempted, ready, time_limit, timed_interleaved
from benchmarks.gpu_peak import chains, measured_bandwidth, measured_flops
from benchmarks.gpu_torch import COMPILED, EAGER, TorchCall, TorchPeers, network_makers
from benchmarks.harness import Figure, Run
from retune.compiler.codegen import backend
from retune.compiler.codegen.nvidia.device_build import build_device_kernel
from retune.compiler.core.errors import DeviceError, MeasureError
from retune.compiler.core.target import Target
from retune.compiler.driver.hardware import hardware_of_gpu
from retune.compiler.lower.gpu.pipeline import lower_for_gpu
from retune.compiler.measure.record import Measurement, MeasureStatus
from retune.compiler.runtime.artifact import KernelArtifact
from retune.compiler.runtime.cuda import driver as cuda
from retune.compiler.schedule.state import replay
from retune.compiler.schedule.steps import Step
from retune.compiler.schedule.task import SearchTask
from retune.compiler.te.evaluate import evaluate
from tests.support.fake_cuda import CALL_SECONDS, DEVICE, FakeDriver
from tests.support.fake_torch import OPERATION_SECONDS, FakeModule, FakeTorch
from tests.support.flows.networks import write_mlp
from tests.support.simt.execute import execute
from tests.support.small_computations import doubled
from tests.support.workloads import GPU

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


@pytest.mark.parametrize("mode", ["fp32", "f16", "bf16"])
@pytest.mark.parametrize("name", SMALL)
def test_cases_compute_what_they_are_called(name: str, mode: str) -> None:
    case = SMALL[name]
    arrays, graph = case.arrays(mode), case.graph(mode)
    (found,) = evaluate(graph.outputs, {tensor: arrays[tensor.name] for tensor in graph.inputs})
    tolerance = {"fp32": 1e-5, "f16": 5e-3, "bf16": 4e-2}[mode]
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
    """Programs cost what their number says, every third one is wrong; from number `broken` on none can be measured."""

    def __init__(self, broken: float = np.inf) -> None:
        self.count = 0
        self.broken = broken

    def measure(
        self, task: SearchTask, candidates: Sequence[Sequence[Step]], best_seconds: float | None = None
    ) -> list[Measurement]:
        assert task.target.is_gpu
        assert best_seconds is None or best_seconds > 0
        if self.count >= self.broken:
            raise MeasureError("the builders are gone")
        found = []
        for _ in candidates:
            self.count += 1
            wrong = self.count % 3 == 0
            costs = () if wrong else (1.0 / self.count,)
            status = MeasureStatus.WRONG_ANSWER if wrong else MeasureStatus.OK
            found.append(Measurement(costs, status, "wrong" if wrong else "", 0.0, 0.0))
        return found


class Peer:
    """PyTorch, of which it is known what it computes and how long that takes; or that it fails in that turn."""

    def __init__(self, seconds: float, result: Array, fails_in: int = 99) -> None:
        self._seconds, self._result, self._left = seconds, result, fails_in

    def seconds(self) -> float:
        self._left -= 1
        if self._left < 0:
            raise RuntimeError("out of\nmemory")
        return self._seconds

    def result(self) -> Array:
        return self._result


@pytest.fixture(name="driver")
def _driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """A GPU that knows all kernels that are built for it from now on."""
    driver, real = FakeDriver(), build_device_kernel

    def built(task: SearchTask, steps: Sequence[Step], name: str) -> KernelArtifact:
        function = lower_for_gpu(replay(task.dag, steps), name, task.hardware)
        driver.functions = [*(one for one in driver.functions if one.name != name), function]
        return real(task, steps, name)

    monkeypatch.setattr(backend, "build_device_kernel", built)
    return driver


def opened(driver: FakeDriver, **flops: float) -> gpu.Gpu:
    """The GPU with what it can do."""
    return gpu.Gpu(driver, "stream", DEVICE, flops or {"fp32": 1e12, "f16": 4e12}, 1e11)


LIMITS = gpu.Limits(10, 60.0)


def lines_of(driver: FakeDriver, case: GpuCase, measures: Measures, **peers: Peer) -> dict[str, dict[str, object]]:
    """The lines of a case in fp32 by backend; every peer is ready at once."""
    makers = {name.replace("_", "-"): lambda peer=peer: peer for name, peer in peers.items()}
    found = gpu.figures("case", case, "fp32", opened(driver), measures, makers, LIMITS)
    return {figure.backend: json.loads(figure.line()) for figure in found}


@pytest.mark.parametrize(("name", "metric"), [("matmul", "speed"), ("softmax", "bandwidth")])
def test_lines_of_a_case(driver: FakeDriver, name: str, metric: str) -> None:
    case, measures = SMALL[name], Measures()
    result = reference(case, case.arrays("fp32"))
    lines = lines_of(driver, case, measures, torch=Peer(3e-4, result), torch_compiled=Peer(2e-4, result * 1.01))
    assert set(lines) == {"torch", "torch-compiled", "retune"}
    assert measures.count == 10
    ours, eager = lines["retune"], lines["torch"]
    assert (ours["case"], ours["trials"], ours["failed"]) == ("case_fp32", 10, 3)
    assert ours["usual_failure"] == "WRONG_ANSWER: wrong"
    assert ours["metric"] == metric
    work = case.flops or case.nbytes("fp32")
    kernels = round(float(ours["us"]) / (CALL_SECONDS * 1e6))  # type: ignore[arg-type]
    assert kernels >= 1
    assert ours["value"] == pytest.approx(work / (kernels * CALL_SECONDS) / 1e9, rel=1e-3)
    assert eager["value"] == pytest.approx(work / 3e-4 / 1e9, rel=1e-3)
    assert eager["peak_ratio"] == pytest.approx(work / 3e-4 / (1e12 if case.flops else 1e11), rel=1e-3)
    assert eager["error"] == 0
    assert ours["error"] < 1e-5  # type: ignore[operator]
    assert lines["torch-compiled"]["error"] == pytest.approx(0.01, rel=1e-3)
    assert (ours["mode"], ours["gpu"]) == ("fp32", "Double")
    assert all(piece.freed for piece in driver.pieces)


def test_a_search_without_a_right_program_has_a_line_that_says_so(driver: FakeDriver) -> None:
    result = np.zeros((4, 40))
    lines = lines_of(driver, SMALL["softmax"], Measures(), torch=Peer(1e-4, result))
    assert lines["retune"]["failure"] == "no program was right"  # beside PyTorch's
    assert lines["retune"]["wrong"] == 4
    assert (lines["retune"]["value"], lines["retune"]["trials"]) == (None, 10)
    assert lines["torch"]["us"] == pytest.approx(100)


def test_a_search_that_breaks_off_says_why_and_the_others_have_their_lines(driver: FakeDriver) -> None:
    case = SMALL["softmax"]
    lines = lines_of(driver, case, Measures(0), torch=Peer(1e-4, reference(case, case.arrays("fp32"))))
    assert lines["retune"]["failure"] == "MeasureError: the builders are gone"
    assert lines["torch"]["error"] == 0


def test_what_a_search_found_before_it_broke_off_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_tuning, "FIRST", 4)
    task = SearchTask("t", SMALL["softmax"].graph("fp32"), opened(FakeDriver()).target, hardware_of_gpu(DEVICE))
    tuned = gpu_tuning.tune(task, Measures(4), 100, 60.0)
    assert (tuned.trials, tuned.failed, len(tuned.best)) == (4, 1, 3)
    assert [seconds for seconds, _ in tuned.best] == [1 / 4, 1 / 2, 1.0]
    assert tuned.stopped == "MeasureError: the builders are gone"


def test_tuning_ends_with_its_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of a tenth of a second a program: after one of 2 there is no time left."""
    monkeypatch.setattr(gpu_tuning, "FIRST", 2)

    class Slow(Measures):
        def measure(
            self, task: SearchTask, candidates: Sequence[Sequence[Step]], best_seconds: float | None = None
        ) -> list[Measurement]:
            time.sleep(0.1 * len(candidates))
            return super().measure(task, candidates, best_seconds)

    task = SearchTask("t", SMALL["softmax"].graph("fp32"), opened(FakeDriver()).target, hardware_of_gpu(DEVICE))
    assert gpu_tuning.tune(task, Slow(), 500, 0.15).trials == 2


def test_a_run_goes_on_where_its_log_ends(tmp_path: Path) -> None:
    """What an earlier run measured is not measured again, but for its fastest programs, which come first."""
    seen: list[tuple[Step, ...]] = []

    class Noted(Measures):
        def measure(
            self, task: SearchTask, candidates: Sequence[Sequence[Step]], best_seconds: float | None = None
        ) -> list[Measurement]:
            seen.extend(map(tuple, candidates))
            return super().measure(task, candidates, best_seconds)

    graph = SMALL["matmul"].graph("fp32")
    task = SearchTask("t", graph, opened(FakeDriver()).target, hardware_of_gpu(DEVICE))
    log = gpu_tuning.TuningLog(tmp_path / "gpu.log")
    earlier = gpu_tuning.tune(task, Noted(), 12, 60.0, log)
    first, seen[:] = set(seen), []
    later = gpu_tuning.tune(task, Noted(), 8, 60.0, log)
    assert seen[:4] == [steps for _, steps in earlier.best]
    assert not first & set(seen[4:])
    assert (later.known, later.trials) == (12, 8)
    assert len(log.trials_of(task)) == 12 + 4  # of a program that was measured again the last one counts
    assert log.trials_of(replace(task, target=Target("cuda", arch="sm_80"))) == []


def test_a_peer_that_fails_has_a_line_and_the_others_go_on() -> None:
    result = np.ones(3)
    contenders = {"torch": Peer(1e-4, result), "late": Peer(1e-4, result, 2), "retune": Peer(2e-4, 2 * result)}
    eager, late, ours = timed_interleaved(contenders, "torch", 10.0)
    assert eager == Timed("torch", 1e-4, 0.0)
    assert late == Failed("late", "RuntimeError: out of memory")
    assert ours == Timed("retune", 2e-4, 1.0)
    (alone,) = timed_interleaved({"retune": contenders["retune"]}, "torch", 10.0)
    assert isinstance(alone, Timed)
    assert alone.error is None


def test_what_takes_too_long_to_get_ready_is_left_out() -> None:
    peer = Peer(1e-4, np.ones(3))

    def slow() -> Peer:
        threading.Event().wait()  # for ever, if nothing ends it
        return peer

    found, (failed,) = ready({"slow": slow, "torch": lambda: peer}, 0.5)
    assert found == {"torch": peer}
    assert failed == Failed("slow", "OvertimeError: it takes longer than 0.5 s")
    with time_limit(5.0), pytest.raises(OvertimeError), time_limit(0.01):
        time.sleep(5)
    assert attempted("torch", lambda: 3, 1.0) == 3


def test_a_budget_is_shared_by_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    shares = gpu.Shares(100, 30, 10)
    assert shares.next() == 10
    now[0] = 1.0
    assert shares.next() == 11
    assert shares.next(4) == pytest.approx(99 / 2)
    now[0] = 101.0
    assert shares.next() == 0
    assert gpu.Shares(0, 30, 10).next(2) == 60


def test_networks_have_lines(driver: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two products, tuned and compiled for the double, beside a PyTorch of ours."""
    path = write_mlp(tmp_path / "tiny.onnx", (16, 8, 4))
    model = onnx.load(str(path))
    weights = [onnx.numpy_helper.to_array(each) for each in model.graph.initializer]

    def network(x: Array) -> Array:
        for weight in weights:
            x = np.maximum(x @ weight, 0)
        return x

    torch = FakeTorch(broken=True)
    monkeypatch.setattr(gpu_torch, "torch", torch)
    monkeypatch.setattr(gpu_torch, "torch_network", lambda _: FakeModule(torch, network), raising=False)
    monkeypatch.setattr(zoo, "build", lambda _: model)
    found = list(gpu.network_figures(str(path), opened(driver), Measures(), gpu.Limits(8, 60.0)))
    lines = {figure.backend: json.loads(figure.line()) for figure in found}
    assert set(lines) == {"torch", "torch-compiled", "retune"}
    assert lines["torch"]["value"] == pytest.approx(OPERATION_SECONDS * 1e3)
    assert lines["torch-compiled"]["failure"] == "RuntimeError: no compiler here"
    ours = lines["retune"]
    assert ours["error"] < 1e-5
    assert (ours["metric"], ours["unit"], ours["mode"]) == ("latency", "ms", "fp32")
    assert ours["tasks"] >= ours["tuned"] >= 1
    assert ours["trials"] > ours["failed"]


@pytest.mark.parametrize(("name", "mode"), [(name, mode) for name, case in SMALL.items() for mode in case.modes])
def test_pytorch_is_captured_and_timed_by_its_own_events(name: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = FakeTorch()
    monkeypatch.setattr(gpu_torch, "torch", torch)
    case, peers = SMALL[name], TorchPeers(0)
    assert peers.known
    makers = peers.makers(case, mode)
    assert list(makers) == ([EAGER] if case.flops else [EAGER, COMPILED])
    for make in makers.values():
        call = make()
        assert call.seconds() == pytest.approx(OPERATION_SECONDS)
        np.testing.assert_allclose(call.result(), reference(case, case.arrays(mode)), rtol=1e-2, atol=1e-2)
    assert torch.backends.cuda.matmul.allow_tf32 is (mode == "tf32")
    assert torch.backends.cudnn.allow_tf32 is (mode == "tf32")
    before = torch.asked.index("wait for the stream before")
    assert torch.asked[before + 1 : before + 3] == ["stream", "synchronize"]
    monkeypatch.setattr(gpu_torch, "_PEAK_SIZE", 8)
    assert peers.product_speed(mode) == pytest.approx(2 * 8**3 / OPERATION_SECONDS)


def test_what_a_captured_call_reads_lives_as_long_as_it(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = FakeTorch()
    monkeypatch.setattr(gpu_torch, "torch", torch)
    weights = torch.from_numpy(np.ones(4, np.float32))
    seen = weakref.ref(weights)
    call = TorchCall(partial(lambda given: torch.done(given.array), weights), tf32=False, device="cuda:0")
    del weights
    gc.collect()
    assert seen() is not None
    np.testing.assert_array_equal(call.result(), np.ones(4))


def test_without_pytorch_there_are_no_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_torch, "torch", None)
    assert not TorchPeers(0).known
    assert TorchPeers(0).makers(SMALL["matmul"], "fp32") == {}
    assert network_makers(onnx.ModelProto(), [], 0, tf32=False) == {}


def test_peaks_are_measured_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel of two blocks, and a copy; both counted as what they do."""
    for name, value in {"_THREADS": 32, "_CHAINS": 2, "_STEPS": 3, "_BLOCKS_EACH": 2}.items():
        monkeypatch.setattr(gpu_peak, name, value)
    small = replace(DEVICE, facts=replace(DEVICE.facts, multiprocessors=1))
    found = measured_flops(FakeDriver([chains(2, 32, 2, 3)]), "stream", small)
    assert found == pytest.approx(2 * 2 * 32 * 2 * 3 / CALL_SECONDS)
    driver = FakeDriver([lower_for_gpu(replay(doubled(2048), ()), "copy", GPU)])
    assert measured_bandwidth(driver, "stream", DEVICE, 2048) == pytest.approx(8 * 2048 / CALL_SECONDS)


def test_a_whole_run_survives_what_fails(
    driver: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every line is there, and in the file, though a peak, a compiler, an operator and a network fail."""

    class Measurers:
        def __init__(self, number: int) -> None:
            assert number == 0

        def of(self, *, check: bool) -> Measures:
            assert check
            return Measures()

        def __enter__(self) -> "Measurers":
            return self

        def __exit__(self, *_: object) -> None:
            pass

    def refused(*_: object) -> float:
        raise DeviceError("CUDA: OUT_OF_MEMORY")

    monkeypatch.setattr(gpu_torch, "torch", FakeTorch(broken=True))
    monkeypatch.setattr(gpu_torch, "_PEAK_SIZE", 8)
    cases = {"matmul": SMALL["matmul"], "broken": GpuCase("nothing", (1,)), "softmax": SMALL["softmax"]}
    for name, value in {
        "why_not": lambda: "",
        "driver": lambda: driver,
        "Measurers": Measurers,
        "CASES": cases,
        "NETWORKS": ("no_network",),
        "measured_flops": lambda *_: 1e12,
        "measured_bandwidth": refused,
    }.items():
        monkeypatch.setattr(gpu, name, value)
    out, plot = tmp_path / "lines.jsonl", tmp_path / "chart.svg"
    gpu.main(["--only", "fp32|no_", "--trials", "6", "--seconds", "30", "--out", str(out), "--plot", str(plot)])
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert out.read_text() == capsys.readouterr().out
    assert plot.read_text().startswith("<svg")
    by_case: dict[str, dict[str, dict[str, object]]] = {}
    for line in lines:
        by_case.setdefault(line["case"], {})[line["backend"]] = line
    assert by_case["peak_bandwidth"]["retune"]["failure"] == "DeviceError: CUDA: OUT_OF_MEMORY"
    assert by_case["peak_fp32"]["retune"]["value"] == 1000
    assert "ValueError: no operator nothing" in str(by_case["broken_fp32"]["retune"]["failure"])
    assert "no_network" in by_case
    for name in ("matmul_fp32", "softmax_fp32"):
        assert "failure" not in by_case[name]["retune"]
        assert "failure" not in by_case[name]["torch"]
    assert by_case["softmax_fp32"]["torch-compiled"]["failure"] == "RuntimeError: no compiler here"
    assert by_case["softmax_fp32"]["retune"].get("peak_ratio") is None
    gpu.main(["--only", "matmul_fp32", "--budget", "1", "--trials", "1"])
    assert capsys.readouterr().out


def test_a_gpu_that_answers_nothing_more_ends_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> Iterator[Figure]:
        raise DeviceError("CUDA: ILLEGAL_ADDRESS", lasting=True)
        yield

    run = Run("", (1,), 60.0, None, {})
    with pytest.raises(SystemExit, match="go on behind matmul_fp32, with --only"):
        gpu.write(run, "matmul_fp32", LIMITS, broken())
    assert "ILLEGAL_ADDRESS" in capsys.readouterr().out
    gpu.write(run, "matmul_fp32", gpu.Limits(10, 0.0), broken())
    assert "the budget is spent" in capsys.readouterr().out


def test_without_a_gpu_it_says_so_and_ends() -> None:
    if cuda.why_not() == "":
        pytest.skip("there is a GPU here")
    with pytest.raises(SystemExit, match=r"nothing is measured: .*(CUDA|NVIDIA|GPU)"):
        gpu.main(["--only", "matmul_1024"])
