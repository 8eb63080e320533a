"""Every program of `benchmarks` runs with tiny options and prints lines of the agreed form. No figure is judged."""

import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks import (
    ablation,
    calls,
    compile_time,
    dot_products,
    dynamic,
    executor,
    few_bits,
    harness,
    kernels,
    load,
    networks,
    operators,
    orchestration,
    ort_export,
    peak,
    quantized,
    search_speed,
    store,
    tune_ops,
    vm,
    winograd,
    zoo,
)
from benchmarks import round as rounds
from benchmarks.metaschedule import MetaSchedule
from benchmarks.operator_networks import OPERATORS, operator_network
from benchmarks.peak import measured_peak
from retune.compiler.core.errors import MeasureError
from retune.compiler.driver.compile_network import compile_graph
from retune.compiler.tune.extract import extract_network

pytestmark = pytest.mark.long

PEER = """#!{0}
import json, sys
asked = json.loads(sys.argv[2])
assert asked["problem"]["kind"] == "LayerNorm" and asked["threads"] == 1 and asked["trials"] == 64
print(json.dumps({{"curve": [[64, 3.0, 0.001]], "seconds": 3.5, "failed": 1, "version": "0"}}), flush=True)
for line in sys.stdin:
    print(json.dumps({{"times": [0.0005, float(line)]}}), flush=True)
"""
"""Stands in for an interpreter that has TVM."""

MAIN = Callable[[Sequence[str]], None]

FIELDS = {"case": str, "backend": str, "threads": int, "metric": str, "value": float, "unit": str, "machine": dict}


@pytest.fixture(autouse=True)
def short_timings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The peak is measured again, but hastily."""
    measured_peak.cache_clear()
    monkeypatch.setattr(peak, "REPEATS", 2)
    monkeypatch.setattr(peak, "MOST_REPEATS", 2)


def _lines(main: MAIN, argv: Sequence[str], out: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """What a program prints, checked; the file must hold the same."""
    main([*argv, "--out", str(out)])
    printed = capsys.readouterr().out
    assert out.read_text(encoding="utf-8") == printed
    found: list[dict[str, Any]] = [json.loads(line) for line in printed.splitlines()]
    assert found
    for line in found:
        assert all(isinstance(line[name], kind) for name, kind in FIELDS.items()), line
        assert math.isfinite(line["value"]), line
        assert line["threads"] == 1 or main in (load.main, orchestration.main)
        assert {"cpu", "cores", "peak_gflops", "load", "versions", "date"} <= line["machine"].keys()
    return found


def test_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot = tmp_path / "plot.svg"
    argv = ["--only", "softmax_1536|depthwise3x3_7x7", "--threads", "1", "--seconds", "0.05", "--plot", str(plot)]
    lines = _lines(kernels.main, argv, tmp_path / "out.jsonl", capsys)
    assert {(line["case"], line["backend"]) for line in lines} >= {
        ("depthwise3x3_7x7_960", "retune"),
        ("depthwise3x3_7x7_960", "onnxruntime"),
        ("softmax_1536x128", "retune"),
        ("softmax_1536x128", "numpy"),
    }
    for line in lines:
        assert line["error"] < 1e-5
        assert line["peak_ratio"] > 0
        assert line["unit"] == "GB/s"
        assert line["bound"] in ("memory", "arithmetic")
    bars = [rect for rect in ElementTree.fromstring(plot.read_text(encoding="utf-8")).iter() if rect.get("y")]
    assert sum("softmax_1536x128" in (bar.text or "") for bar in bars) == 1


def test_executor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = _lines(executor.main, ["--seconds", "0.01", "--nodes", "7"], tmp_path / "out.jsonl", capsys)
    assert [line["metric"] for line in lines] == ["run, per node", "set_input", "get_output"]
    assert all(line["nodes"] == 7 and line["value"] > 0 for line in lines)


def test_calls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--seconds", "0.01", "--only", "function, arrays|KernelFunction"]
    lines = _lines(calls.main, argv, tmp_path / "out.jsonl", capsys)
    assert [line["case"] for line in lines] == [
        "function, arrays of the FFI",
        "function, arrays of NumPy",
        "KernelFunction",
    ]


def test_operators(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--only", "dense_1x512", "--threads", "1", "--seconds", "0.1"]
    lines = _lines(operators.main, argv, tmp_path / "out.jsonl", capsys)
    by_backend = {line["backend"]: line for line in lines}
    assert set(by_backend) == {"retune", "retune-network", "onnxruntime", "onnxruntime-node", "numpy"}
    for backend in ("retune", "numpy"):
        assert by_backend[backend]["error"] < 1e-4
    assert all(line["peak_ratio"] > 0 for line in lines)
    assert by_backend["retune"]["trials"] > 0


def test_tune_ops(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune_ops, "MILESTONES", (4,))
    plot = tmp_path / "plot.svg"
    peer = tmp_path / "tvm"
    peer.write_text(PEER.format(sys.executable), encoding="utf-8")
    peer.chmod(0o755)
    argv = ["--only", "layer_norm", "--threads", "1", "--seconds", "0.1", "--trials", "6"]
    lines = _lines(tune_ops.main, [*argv, "--tvm", str(peer), "--plot", str(plot)], tmp_path / "out.jsonl", capsys)
    ours = [line for line in lines if line["backend"] == "retune"]
    others = {line["backend"]: line for line in lines if line["backend"] != "retune"}
    assert [line["trials"] for line in ours] == [4, 6]
    assert ours[0]["seconds"] <= ours[1]["seconds"] == ours[1]["curve"][-1][1]
    assert ours[1]["curve"][-1][0] == 6
    assert others["tvm-metaschedule"]["ms"] == pytest.approx(0.5)
    assert others["tvm-metaschedule"]["seconds"] == 3.5
    assert others["tvm-metaschedule"]["curve"][0][:2] == [64, 3.0]
    assert {"numpy", "onnxruntime"} < set(others)
    assert all(line["error"] < 1e-4 for line in lines if "error" in line)
    chart = ElementTree.fromstring(plot.read_text(encoding="utf-8"))
    lines_drawn = [part for part in chart.iter() if part.tag.endswith("polyline")]
    assert sum("stroke-dasharray" not in line.attrib for line in lines_drawn) == 2 * (3 + 1)  # curves and a frame
    assert sum("stroke-dasharray" in line.attrib for line in lines_drawn) == 2 * (len(others) - 1)  # but TVM


def test_winograd(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(winograd, "LAYERS", {"conv3x3_14x14_256_256": (14, 256)})
    argv = ["--threads", "1", "--seconds", "0.1"]
    lines = _lines(winograd.main, argv, tmp_path / "out.jsonl", capsys)
    by_way = {line["backend"]: line for line in lines}
    assert list(by_way) == ["retune direct", "retune winograd4", "retune winograd2"]
    assert by_way["retune direct"]["times_as_fast_as_direct"] == 1.0
    assert all(line["error"] < 1e-5 and line["trials"] > 0 for line in lines)


def test_a_search_of_tvm_that_ends_early_says_why() -> None:
    with pytest.raises(MeasureError, match="tvm"):
        MetaSchedule(sys.executable, tune_ops.OPERATORS["softmax_1024x1024"], 1, 4, 0)
    with pytest.raises(MeasureError, match="cannot be started"):
        MetaSchedule("/no/such/interpreter", tune_ops.OPERATORS["softmax_1024x1024"], 1, 4, 0)


def test_ort_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--only", "mlp", "--threads", "1", "--seconds", "0.1"]
    lines = _lines(ort_export.main, argv, tmp_path / "out.jsonl", capsys)
    by_backend = {line["backend"]: line for line in lines}
    assert list(by_backend) == ["onnxruntime", "retune", "onnxruntime-retune", "onnxruntime-retune-bound"]
    exported = by_backend["onnxruntime-retune"]
    assert exported["error"] < 1e-4
    assert set(exported["times_as_fast_as"]) == {"onnxruntime", "retune"}
    assert exported["library_bytes"] > 0
    extracted = extract_network("mlp", "llvm", 1)
    compile_graph(extracted.graph, extracted.target, cut=extracted.partition).save(tmp_path / "mlp.retune")
    lines = _lines(ort_export.main, [*argv, "--tuned", str(tmp_path)], tmp_path / "more.jsonl", capsys)
    assert "trials" not in {key for line in lines for key in line}


def test_networks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--only", "mlp", "--threads", "1", "--seconds", "0.1"]
    lines = _lines(networks.main, argv, tmp_path / "out.jsonl", capsys)
    timed, weighed = ([line for line in lines if line["metric"] == metric] for metric in ("latency", "peak memory"))
    ours = {"retune", "retune-untuned", "onnxruntime"}
    assert {line["backend"] for line in timed} >= ours
    assert {line["backend"] for line in weighed} >= ours
    assert all(line["error"] < 1e-4 for line in timed if line["backend"] not in ("onnxruntime", "openvino-default"))
    weights = 4 * (784 * 512 + 512 * 512 + 512 * 10) / 2**20
    assert all(weights < line["value"] < 100 for line in weighed)
    for metric, most in (("file size", 20.0), ("load and first run", 60_000.0)):
        values = {line["backend"]: line["value"] for line in lines if line["metric"] == metric}
        assert ours <= values.keys()
        assert all(0.0 < value < most for value in values.values())
    (tuned,) = (line for line in timed if line["backend"] == "retune")
    assert tuned["times_as_fast_as"].keys() == {line["backend"] for line in timed} - {"retune"}
    assert tuned["compile_seconds"] > 0


@pytest.mark.slow
def test_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--only", "mlp", "--seconds", "0.05", "--spins", "300"]
    lines = _lines(load.main, argv, tmp_path / "out.jsonl", capsys)
    backends = {"retune", "retune-passive", "retune-spin-300", "onnxruntime", "retune-1"}
    assert {(line["backend"], line["busy"]) for line in lines} == {(each, n) for each in backends for n in (0, 1, 4)}


def test_quantized(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--only", "mlp", "--count", "0", "--threads", "1", "--tuned", "--seconds", "0.1"]
    lines = _lines(quantized.main, argv, tmp_path / "out.jsonl", capsys)
    backends = {line["backend"]: line for line in lines}
    assert {f"{whose}-{form}" for whose in ("retune", "onnxruntime") for form in quantized.FORMS} < backends.keys()
    assert "retune-static-tuned" in backends
    ours = backends["retune-static"]
    assert ours["most_quanta_apart"] < 1.5
    assert {"of_best_peer", "of_float32"} < ours.keys()


def test_quantized_layers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--layers", "--only", "dense_128x510|depthwise3x3_7", "--target", "llvm -mcpu=x86-64-v2", "--threads", "1"]
    lines = _lines(quantized.main, argv, tmp_path / "out.jsonl", capsys)
    assert {line["case"] for line in lines} == {"dense_128x510x512", "depthwise3x3_7_1152"}
    assert all(line["of_float32"] > 0 and "x86-64-v2" in line["target"] for line in lines)


def test_compile_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--only", "conv2d_3x3_c512|matmul_512", "--programs", "2"]
    lines = _lines(compile_time.main, argv, tmp_path / "out.jsonl", capsys)
    assert {line["metric"] for line in lines} == {"CPU time, median", "CPU time, p90"}
    by_case = {line["case"]: line for line in lines if "median" in line["metric"]}
    assert {"matmul_512x512x512", compile_time.SEARCHED} < by_case.keys()
    for line in by_case.values():
        assert {"replay", "register-tiles", "parse", "optimize", "emit"} < line["phases_ms"].keys()
        assert line["failed"] == 0
    whole = by_case["matmul_512x512x512"]
    assert sum(whole["phases_ms"].values()) == pytest.approx(whole["value"], rel=0.5)


def test_round(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--threads", "1", "--seconds", "0.1", "--batch", "4"]
    lines = _lines(rounds.main, argv, tmp_path / "out.jsonl", capsys)
    assert [line["metric"] for line in lines] == ["first round", *(f"round: {part}" for part in rounds.PARTS)]
    assert all(line["programs"] == 4 for line in lines)


def test_search_speed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--only", "14x14", "--seconds", "0.01", "--programs", "16"]
    lines = _lines(search_speed.main, argv, tmp_path / "out.jsonl", capsys)
    assert all(line["unit"] == ("s" if line["metric"].startswith("training") else "1/s") for line in lines)
    assert {line["programs"] for line in lines if line["unit"] == "s"} == {5000, 64}


def test_ablation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--only", "depthwise.*(everything|neighbours)", "--threads", "1", "--trials", "4", "--seeds", "1"]
    lines = _lines(ablation.main, argv, tmp_path / "out.jsonl", capsys)
    assert [line["metric"] for line in lines] == ["everything, 4 trials", "without neighbours, 4 trials"]
    assert [line["ratio"] > 0 for line in lines] == [True, True]


def test_dot_products(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = _lines(dot_products.main, ["--only", "conv", "--seconds", "0.01"], tmp_path / "out.jsonl", capsys)
    assert {"conv3x3-56x56x64-float32", "conv3x3-56x56x64-s8s8"} <= {line["case"] for line in lines}
    assert all(line["unit"] == "GOP/s" and line["ratio"] > 0 for line in lines)


def test_few_bits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--only", "rows1$", "--seconds", "0.01", "--threads", "1", "--size", "256", "--layers", "2"]
    lines = _lines(few_bits.main, argv, tmp_path / "out.jsonl", capsys)
    assert {line["backend"] for line in lines} == {"retune", "onnxruntime-0", "onnxruntime-4"}
    assert lines[0]["error"] < 1e-4


def test_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--rows", "128", "--compacted", "6000", "--tasks", "30", "--seconds", "60", "--only", "best"]
    lines = _lines(store.main, argv, tmp_path / "out.jsonl", capsys)
    assert {line["case"] for line in lines} == {
        "best_per_task",
        "best_of_one_task",
        "sql_best_view",
        "best_per_task_compacted",
        "best_of_one_task_compacted",
        "sql_best_view_compacted",
    }
    assert {line["rows"] for line in lines} in ({128, 6000}, {64, 6000})  # the clock may end the first store's filling


@pytest.mark.slow
def test_orchestration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--only", "mlp", "--seconds", "1", "--batch", "4"]
    lines = _lines(orchestration.main, argv, tmp_path / "out.jsonl", capsys)
    assert lines[0]["metric"] == "orchestration share of rounds"
    assert lines[0]["seconds_by_stage"].keys() == {"ask", "build", "measure", "store", "tell"}
    assert lines[0]["rounds"] > 0


def test_a_value_that_is_not_finite_is_null() -> None:
    figure = harness.Figure("case", "retune", 1, "metric", math.inf, "ms", error=math.nan)
    line = json.loads(figure.line())
    assert line["value"] is None
    assert line["error"] is None


def test_options_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (["--threads", "99"], ["--seconds", "0"], ["--rows", "many"]):
        with pytest.raises(SystemExit):
            store.main(argv)
        assert "error: " in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_every_operator_is_one_tuning_task(name: str) -> None:
    network = operator_network(name, 1)
    assert len(network.tasks) == 1
    assert network.tasks[0].flop_count > 0


def test_vm(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"gpt2_greedy": {"width": 48, "heads": 4, "words": 60, "hidden": 96, "positions": 80}}
    build = zoo.build
    monkeypatch.setattr(zoo, "build", lambda name, **options: build(name, **options, **small.get(name, {})))
    argv = ["--only", "mlp|gpt2", "--threads", "1", "--seconds", "0.1", "--steps", "2"]
    lines = _lines(vm.main, argv, tmp_path / "out.jsonl", capsys)
    found = {(line["case"], line["metric"]): line for line in lines}
    assert [metric for case, metric in found if case == "mlp"] == ["machine", "executor", "machine / executor"]
    assert found["mlp", "machine"]["error"] < 1e-4
    # The first call builds what guards exclude, unless a test before it in this process has.
    assert found["gpt2_greedy", "second call"]["kernels_built"] == 0
    assert found["gpt2_greedy", "machine / regions"]["value"] > 1


def test_dynamic(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--only", "gru", "--quick", "--threads", "1"]
    lines = _lines(dynamic.main, argv, tmp_path / "out.jsonl", capsys)
    found = {(line["backend"], line["metric"]): line for line in lines}
    metrics = ["stream", "request p50", "request p99", "first / later call", "memory growth"]
    for backend in ("retune", "onnxruntime"):
        assert [metric for other, metric in found if other == backend and metric in metrics] == metrics
    assert found["retune", "stream"]["error"] < 1e-5
    assert found["retune", "stream"]["requests"] == 12
    assert {"retune", "retune-fixed", "onnxruntime"} <= {backend for backend, metric in found if metric == "steady"}
    assert {"times_as_fast_as_fixed", "times_as_fast_as_the_best_peer_least"} < found["retune", "steady"].keys()
    assert [backend for backend, metric in found if metric == "compile"] == ["retune", "retune-fixed"]
    dynamic.main([*argv, "--out", str(tmp_path / "out.jsonl")])
    assert not capsys.readouterr().out  # all parts are in the file
