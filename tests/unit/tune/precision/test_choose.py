"""The choice of precisions on a small network, with times that the test sets."""

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from retune.compiler.core.errors import OptionError
from retune.compiler.core.target import Target
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.ir import Graph, Value
from retune.compiler.graph.pipeline import prepare
from retune.compiler.graph.precision.assign import assign_precisions
from retune.compiler.graph.precision.layers import BFLOAT16, DYNAMIC, FLOAT32, INT8, Assignment
from retune.compiler.tune.extract import ImportedNetwork
from retune.compiler.tune.precision import choose as module
from retune.compiler.tune.precision import costs as costs_module
from retune.compiler.tune.precision.bench import Bench, owners_of, run, times_of_layers
from retune.compiler.tune.precision.choose import choose, choose_for_network
from retune.compiler.tune.precision.costs import Costs
from retune.compiler.tune.precision.request import PrecisionChoice, PrecisionRequest
from retune.compiler.tune.precision.samples import hold_out
from retune.compiler.tune.precision.sensitivity import Sensitivity

SPEED = {FLOAT32: 4.0, BFLOAT16: 2.0, INT8: 1.0, DYNAMIC: 1.5}


def network() -> Graph:
    rng = np.random.default_rng(0)
    builder, x = GraphBuilder("mlp", [Value("x", (4, 32), "float32")]), "x"
    for _ in range(3):
        kernel = builder.constant((rng.standard_normal((32, 32)) / 6).astype(np.float32), "w")
        x = builder.emit("relu", [builder.emit("dense", [x, kernel])])
    return prepare(builder.finish({"y": x}))


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    for part in (module, costs_module):
        monkeypatch.setattr(part, "device_lock", nullcontext)  # tests do not wait for what is measured meanwhile
    return Bench(network(), Target.host(), 1)


def samples(count: int = 4) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(1)
    return [rng.standard_normal((4, 32)).astype(np.float32) for _ in range(count)]


def of_form(executor: Any) -> str:
    """The precision of most layers of a compiled network."""
    dtypes = {buffer.dtype for buffer in executor.network.plan.buffers}
    return INT8 if dtypes & {"int8", "uint8"} else BFLOAT16 if "bfloat16" in dtypes else FLOAT32


def set_times_of_layers(monkeypatch: pytest.MonkeyPatch, times: Any) -> None:
    for part in (module, costs_module):
        monkeypatch.setattr(part, "times_of_layers", times)


@pytest.fixture
def set_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers take the times in SPEED; a network takes less the more bytes or halves it has."""

    def times(forms: Mapping[str, Any], layers: Sequence[str]) -> dict[str, dict[str, float]]:
        return {form: dict.fromkeys(layers, SPEED.get(form, 1.0)) for form in forms}

    set_times_of_layers(monkeypatch, times)

    def seconds(executors: Sequence[Any], **_: Any) -> list[float]:
        return [SPEED[of_form(executor)] for executor in executors]

    monkeypatch.setattr(module, "seconds_in_turn", seconds)


@pytest.mark.parametrize("precision", [BFLOAT16, INT8])
def test_one_precision_takes_all_layers(bench: Bench, precision: str) -> None:
    chosen = choose(bench, PrecisionRequest(precision, calibrate=samples()))
    assert [layer.precision for layer in chosen.layers] == [precision] * 3
    assert 0.0 < chosen.error < 0.05
    assert not chosen.note
    assert PrecisionChoice.from_json(json.loads(json.dumps(chosen.to_json()))) == chosen


@pytest.mark.usefixtures("set_times")
@pytest.mark.parametrize(("tolerance", "fastest"), [(0.3, {INT8}), (0.004, {BFLOAT16, FLOAT32})])
def test_auto_takes_the_fastest_within_the_tolerance(bench: Bench, tolerance: float, fastest: set[str]) -> None:
    chosen = choose(bench, PrecisionRequest("auto", tolerance, calibrate=samples()))
    assert {layer.precision for layer in chosen.layers} <= fastest
    assert chosen.error <= tolerance
    # Measured again, the outputs are as far as the choice says.
    made, exact = bench.compile_form(chosen.assignment), bench.compile_form(Assignment())
    sample = {"x": samples()[-1]}
    (a,), (b,) = run(made, sample), run(exact, sample)
    assert np.abs(a - b).max() / np.abs(b).max() == pytest.approx(chosen.error, rel=1e-6)
    seconds = [saved for _, saved in chosen.curve]
    assert seconds == sorted(seconds, reverse=True)


@pytest.mark.usefixtures("set_times")
def test_auto_returns_float32_where_nothing_holds(bench: Bench) -> None:
    chosen = choose(bench, PrecisionRequest("auto", 1e-7, calibrate=samples()))
    assert {layer.precision for layer in chosen.layers} == {FLOAT32}
    assert chosen.note == "mlp stays in float32: no layer can leave float32 within the tolerance of 1e-05% (largest)"


def test_auto_takes_one_form_where_a_mixture_is_slower(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def times(forms: Mapping[str, Any], layers: Sequence[str]) -> dict[str, dict[str, float]]:
        of_layers = {FLOAT32: (4.0, 4.0, 4.0), INT8: (1.0, 3.0, 3.0), BFLOAT16: (2.0, 2.0, 2.0)}
        return {form: dict(zip(layers, of_layers.get(form, (1.0, 1.0, 1.0)), strict=True)) for form in forms}

    def seconds(executors: Sequence[Any], **_: Any) -> list[float]:
        dtypes = [{buffer.dtype for buffer in executor.network.plan.buffers} for executor in executors]
        return [3.0 if each >= {"uint8", "bfloat16"} else 2.0 if "bfloat16" in each else 4.0 for each in dtypes]

    monkeypatch.setattr(costs_module, "FORMS", (BFLOAT16, INT8))
    set_times_of_layers(monkeypatch, times)
    monkeypatch.setattr(module, "seconds_in_turn", seconds)
    chosen = choose(bench, PrecisionRequest("auto", 0.3, calibrate=samples()))
    assert [layer.precision for layer in chosen.layers] == [BFLOAT16] * 3


@pytest.mark.parametrize("target", ["llvm -mattr=+amx-fp16,+amx-avx512", "llvm -mtriple=s390x-linux-gnu -mcpu=z15"])
def test_auto_refuses_a_cpu_whose_code_cannot_run_here(target: str) -> None:
    with pytest.raises(OptionError, match=r"precision auto measures, and code for llvm .* cannot run here"):
        choose_for_network(ImportedNetwork("mlp"), PrecisionRequest("auto"), target, 1, True, {})


def test_auto_returns_float32_where_nothing_is_faster(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def times(forms: Mapping[str, Any], layers: Sequence[str]) -> dict[str, dict[str, float]]:
        return {form: dict.fromkeys(layers, 1.0) for form in forms}

    set_times_of_layers(monkeypatch, times)
    chosen = choose(bench, PrecisionRequest("auto", 0.3, calibrate=samples()))
    assert chosen.note == "mlp stays in float32: no layer is faster in bfloat16 or int8 than in float32 here"


def test_errors_of_networks_are_measured_on_all_samples(bench: Bench) -> None:
    """The largest sample is none of those that are held out, and errs most."""
    taken = samples(4)
    taken[0] = 100 * taken[0]
    chosen = choose(bench, PrecisionRequest("int8", metric=lambda _, wanted: np.abs(wanted[0]).max(), calibrate=taken))
    largest = max(float(np.abs(run(bench.float32(), {"x": sample})[0]).max()) for sample in taken)
    assert chosen.error == pytest.approx(largest)


@pytest.mark.usefixtures("set_times")
@pytest.mark.parametrize(
    ("metric", "tolerance"), [("mean", 0.05), ("cosine", 0.05), ("top1", 0.2), (lambda *_: 0.0, 0.05)]
)
def test_auto_holds_every_metric(bench: Bench, metric: Any, tolerance: float) -> None:
    chosen = choose(bench, PrecisionRequest("auto", tolerance, metric, samples()))
    assert chosen.error <= tolerance
    assert {layer.precision for layer in chosen.layers} != {FLOAT32}


def residual() -> Graph:
    """Seven layers, all of which read the result of the first: later values lie in the memory of earlier ones."""
    rng = np.random.default_rng(0)
    builder = GraphBuilder("residual", [Value("x", (4, 32), "float32")])
    kernels = [builder.constant((rng.standard_normal((32, 32)) / 6).astype(np.float32), "w") for _ in range(7)]
    first = builder.emit("relu", [builder.emit("dense", ["x", kernels[0]])])
    y = first
    for kernel in kernels[1:]:
        y = builder.emit("add", [builder.emit("relu", [builder.emit("dense", [y, kernel])]), first])
    return prepare(builder.finish({"y": y}))


@pytest.mark.parametrize("make", [network, residual])
def test_errors_of_single_layers_are_those_of_networks_with_one_such_layer(make: Any) -> None:
    bench = Bench(make(), Target.host(), 1)
    names = [f"{node.output}" for node in bench.graph.nodes if node.op == "dense"]
    ranges = dict.fromkeys(bench.graph.values, (-4.0, 4.0))
    values = [{"x": sample} for sample in samples(2)]
    units = [(name,) for name in names]
    found = Sensitivity(bench, ranges, "largest", values).measure({BFLOAT16: units, INT8: units})
    for (unit, form), error in found.items():
        made = bench.compile_form(Assignment(dict.fromkeys(unit, form), ranges))
        apart = []
        for sample in values:
            (a,), (b,) = run(made, sample), run(bench.float32(), sample)
            apart.append(np.abs(a - b).max() / np.abs(b).max())
        assert error == pytest.approx(max(apart), rel=1e-3), (unit, form)


def test_forms_share_the_constants_of_layers_in_the_same_precision() -> None:
    rng = np.random.default_rng(0)
    builder, x = GraphBuilder("wide", [Value("x", (4, 256), "float32")]), "x"
    for _ in range(2):
        kernel = builder.constant(rng.standard_normal((256, 256)).astype(np.float32), "w")
        x = builder.emit("relu", [builder.emit("dense", [x, kernel])])
    bench = Bench(prepare(builder.finish({"y": x})), Target.host(), 1)
    names = list(bench.graph.constants)
    layers = [node.output for node in bench.graph.nodes if node.op == "dense"]

    def large(executor: Any) -> set[int]:
        return {id(array) for array in executor.network.constants.values() if array.nbytes > 1 << 16}

    exact, mixed = bench.float32(), bench.compile_form(Assignment({layers[0]: BFLOAT16}))
    assert len(large(exact)) == len(large(mixed)) == 2
    assert len(large(exact) & large(mixed)) == 1
    assert list(bench.graph.constants) == names  # compiling releases a copy


def test_an_error_is_measured_until_a_sample_exceeds_the_most(bench: Bench) -> None:
    costs = Costs(bench, "largest", *hold_out([{"x": sample} for sample in samples(8)]))
    layers = costs.all_in(BFLOAT16)
    whole = Costs(bench, "largest", costs.samples, costs.held_out).error(layers)
    assert 0.0 < costs.error(layers, most=0.0) <= whole
    assert costs.error(layers, most=whole) == costs.error(layers) == whole


def test_a_quantized_network_is_taken_as_it_is(bench: Bench) -> None:
    quantized = choose(bench, PrecisionRequest(INT8, calibrate=samples())).assignment
    graph = assign_precisions(bench.graph, quantized)
    chosen = choose(Bench(graph, Target.host(), 1), PrecisionRequest(INT8))
    assert chosen.note == "mlp is quantized already: it is taken as it is"
    assert not chosen.layers


def test_every_layer_has_a_time_in_every_form(bench: Bench) -> None:
    names = [node.output for node in bench.graph.nodes if node.op == "dense"]
    ranges = dict.fromkeys(bench.graph.values, (-4.0, 4.0))
    forms = {form: bench.compile_form(Assignment(dict.fromkeys(names, form), ranges)) for form in SPEED}
    times = times_of_layers(forms, names)
    assert all(times[form].keys() == {*names} for form in SPEED), times


def test_a_kernel_belongs_to_the_layers_that_it_computes() -> None:
    known = frozenset({"a", "b"})
    assert owners_of("a + relu + operand of b", known) == ["a"]
    assert owners_of("operand of b + cast", known) == ["b"]
    assert owners_of("a + softmax + b", known) == ["a", "b"]
    assert owners_of("relu", known) == []
