"""Networks compiled and run, against NumPy and ONNX Runtime."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

from benchmarks.zoo import NAMES, build
from retune.compiler.codegen.build import build_kernel
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.driver.compile_network import (
    BuildError,
    ChosenProgram,
    build_in_process,
    compile_graph,
    reuse_kernels,
)
from retune.compiler.frontend.importer import load_model
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.evaluate import evaluate
from retune.compiler.graph.ir import Graph, Value
from retune.compiler.graph.partition.partition import partition
from retune.compiler.graph.pipeline import optimize
from retune.compiler.measure.record import TaskProgram
from retune.compiler.runtime.artifact import KernelArtifact
from retune.compiler.runtime.executor import BufferKind, CompiledNetwork, GraphExecutor
from retune.compiler.schedule.state import Annotation
from retune.compiler.schedule.steps import Annotate, ComputeInline, Reorder, Split, Step, dump_steps
from retune.compiler.schedule.task import SearchTask
from tests.support.attributes import CONV, POOL
from tests.support.gpu_network import compiled_for_gpu, run_on_gpu
from tests.support.tiers import long_except
from tests.support.zoo_sizes import SMALL

TARGET = Target.host()


def known(steps: str, record_id: str = "record-1") -> TaskProgram:
    """A program as a record has it."""
    return TaskProgram("", steps, 1.0, record_id)


def _random(graph: Graph) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(11)
    return {
        value.name: rng.standard_normal(value.shape).astype(value.dtype)
        if value.dtype == "float32"
        else rng.integers(0, 2, value.shape).astype(value.dtype)
        for value in graph.inputs
    }


def _outputs(network: CompiledNetwork, inputs: dict[str, NDArray[Any]], threads: int = 1) -> list[NDArray[Any]]:
    executor = GraphExecutor(network, threads)
    for name, array in inputs.items():
        executor.set_input(name, array)
    executor.run()
    return [executor.get_output(index) for index in range(executor.get_num_outputs())]


def _assert_close(found: Sequence[NDArray[Any]], wanted: Sequence[Any]) -> None:
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", long_except(["mlp", "resnet18", "gpt2_block"], NAMES))
def test_zoo_networks_agree_with_onnx_runtime(name: str) -> None:
    model = build(name, **SMALL[name])
    graph = optimize(load_model(model))
    inputs = _random(graph)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = [np.asarray(output) for output in session.run(None, dict(inputs))]
    network = compile_graph(graph, TARGET, threads=2)
    for found, right in zip(_outputs(network, inputs, threads=2), wanted, strict=True):
        assert found.shape == right.shape
        assert np.abs(found - right).max() <= 1e-4 * np.abs(right).max()


def _branchy_graph() -> Graph:
    """Every kind of group, several outputs, aliases, a repeated constant, and an output that is an input's copy."""
    rng = np.random.default_rng(3)
    builder = GraphBuilder("branchy", [Value("x", (1, 9, 7, 6)), Value("gate", (6,))])
    weight = builder.constant(rng.standard_normal((3, 3, 6, 6), dtype=np.float32) / 7, "w")
    scale = builder.constant(rng.standard_normal((1, 1, 1, 6), dtype=np.float32), "scale")
    conv = builder.emit("conv2d", ("x", weight), CONV)
    conv = builder.emit("mul", (conv, builder.emit("sigmoid", (conv,))))
    again = builder.emit("conv2d", (conv, weight), {**CONV, "dilations": (2, 2), "pads": (2, 2, 2, 2)})
    joined = builder.emit("concat", (conv, builder.emit("add", (again, "gate"))), {"axis": 3})
    pooled = builder.emit("max_pool2d", (joined,), {**POOL, "dilations": (1, 1)})
    mean = builder.emit("avg_pool2d", (conv,), {**POOL, "count_include_pad": False})
    turned = builder.emit("transpose", (mean,), {"perm": (0, 3, 1, 2)})
    flat = builder.emit("reshape", (turned,), {"shape": (6, 20)})
    scores = builder.emit("softmax", (flat,), {"axis": 1})
    product = builder.emit("dense", (scores, builder.emit("transpose", (scores,), {"perm": (1, 0)})))
    cut = builder.emit("slice", (pooled,), {"starts": (0, 1, 0, 2), "stops": (1, 5, 4, 10), "steps": (1, 2, 1, 3)})
    scaled = builder.emit("mul", (builder.emit("mul", (conv, scale)), builder.scalar(0.25, "float32")))
    return builder.finish(
        {
            "pooled": pooled,
            "flat": flat,
            "product": product,
            "cut": builder.emit("reshape", (cut,), {"shape": (1, 8, 3)}),
            "scaled": scaled,
            "copy": builder.emit("identity", ("gate",)),
            "view": builder.emit("reshape", ("gate",), {"shape": (2, 3)}),
            "six": builder.emit("identity", (builder.scalar(6, "float32"),)),
        }
    )


def test_a_graph_of_everything_agrees_with_numpy() -> None:
    graph = _branchy_graph()
    inputs = _random(graph)
    network = compile_graph(graph, TARGET)
    found = _outputs(network, inputs)
    _assert_close(found, evaluate(graph, inputs))
    assert [array.shape for array in found] == [value.shape for value in graph.output_values()]


def test_intermediates_share_an_arena() -> None:
    network = compile_graph(optimize(load_model(build("resnet18", image=32, width=8))), TARGET)
    sizes = [
        buffer.nbytes
        for number, buffer in enumerate(network.plan.buffers)
        if buffer.kind is BufferKind.INTERMEDIATE and buffer.storage == number
    ]
    assert network.plan.arena_bytes == sum(sorted(sizes)[-2:]) < sum(sizes)


def _mlp() -> Graph:
    return optimize(load_model(build("mlp", widths=(24, 32, 32, 32), batch=4)))


def _tiled(task: SearchTask) -> tuple[Step, ...]:
    """Columns in tiles of 8: for i, j.0, k, j.1; the additions behind are inlined where they are not last."""
    names = [op.name for op in task.dag.ops]
    dense = names.index("dense")
    inlined = [ComputeInline(names.index("add"))] if "relu" in names else []
    return (
        *inlined,
        Split(dense, 1, 32, (8,)),
        Reorder(dense, (0, 1, 3, 2)),
        Annotate(dense, 3, Annotation.VECTORIZE),
    )


def _tasks(graph: Graph) -> tuple[SearchTask, ...]:
    return partition(graph, TARGET, HardwareParams(num_cores=1)).tasks


def test_kernels_that_were_built_are_not_built_again(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = _mlp()
    first, second, *_ = _tasks(graph)
    texts = [dump_steps(_tiled(task)) for task in (first, second)]
    best = {task.workload_key: known(text) for task, text in zip((first, second), texts, strict=True)}
    plain = compile_graph(graph, TARGET, best)
    names: list[str] = []

    def build(task: SearchTask, steps: Sequence[Step], name: str) -> KernelArtifact:
        names.append(name)
        return build_kernel(task, steps, name)

    monkeypatch.setattr("retune.compiler.driver.compile_network.build_kernel", build)
    built = {
        (first.workload_key, texts[0]): build_kernel(first, _tiled(first), first.name),
        (second.workload_key, texts[1]): build_kernel(second, _tiled(second), "another_name"),
        (first.workload_key, "[]"): build_kernel(first, (), "another_program"),
    }
    reusing = compile_graph(graph, TARGET, best, build=reuse_kernels(built))
    assert first.name not in names
    assert second.name in names
    assert len(names) == len(reusing.kernels) - 1
    assert [kernel.name for kernel in reusing.kernels] == [kernel.name for kernel in plain.kernels]
    inputs = _random(graph)
    for one, other in zip(_outputs(reusing, inputs), _outputs(plain, inputs), strict=True):
        np.testing.assert_array_equal(one, other)


def test_known_programs_are_used_and_their_weights_packed(tmp_path: Path) -> None:
    graph = _mlp()
    best = {task.workload_key: known(dump_steps(_tiled(task)), f"id of {task.name}") for task in _tasks(graph)[:2]}
    network = compile_graph(graph, TARGET, best)
    used = {entry.name: entry.record_id for entry in network.coverage}
    assert list(used.values()) == [f"id of {name}" for name in list(used)[:2]] + [""]
    assert [entry.origin for entry in network.coverage] == ["record", "record", "default"]
    assert all(entry.flops > 2 * 4 * 24 * 32 for entry in network.coverage)
    packings = [kernel.args[1].packing for kernel in network.kernels]
    assert packings[0] is not None
    assert packings[1] is not None
    inputs = _random(graph)
    _assert_close(_outputs(network, inputs), evaluate(graph, inputs))
    loaded = CompiledNetwork.load(network.save(tmp_path / "mlp.retune"))
    for one, two in zip(_outputs(loaded, inputs), _outputs(network, inputs), strict=True):
        np.testing.assert_array_equal(one, two)
    assert loaded.coverage == network.coverage
    assert loaded.metadata["target"] == str(TARGET)


@pytest.mark.parametrize(
    ("steps", "note"),
    [
        ("no steps at all", "cannot be read"),
        (dump_steps([Split(99, 0, 4, (2,))]), "cannot be built"),
        (dump_steps([Annotate(2, 2, Annotation.VECTORIZE)]), "cannot be built"),
    ],
)
def test_an_unusable_program_gives_way_to_the_default(steps: str, note: str) -> None:
    graph = _mlp()
    tasks = _tasks(graph)
    best = {tasks[0].workload_key: known(steps), tasks[1].workload_key: known(dump_steps(_tiled(tasks[1])), "good")}
    network = compile_graph(graph, TARGET, best)
    first, second, third = network.coverage
    assert first.record_id == ""
    assert f"record record-1 {note}" in first.note
    assert (second.record_id, second.note) == ("good", "")
    assert (third.record_id, third.note) == ("", "")
    inputs = _random(graph)
    _assert_close(_outputs(network, inputs), evaluate(graph, inputs))


def test_the_next_best_record_takes_the_place_of_one_that_cannot_be_built() -> None:
    graph = _mlp()
    first, *_ = _tasks(graph)
    broken = dump_steps([Split(99, 0, 4, (2,))])
    texts = {"record-1": broken, "worse": "no steps at all", "bad": broken, "good": dump_steps(_tiled(first))}
    slower = [known(text, name) for name, text in texts.items()]
    key = first.workload_key
    network = compile_graph(graph, TARGET, {key: replace(slower[0], substitutes=tuple(slower))})
    assert network.coverage[0].record_id == "good"
    assert "record bad cannot be built" in network.coverage[0].note
    inputs = _random(graph)
    _assert_close(_outputs(network, inputs), evaluate(graph, inputs))


def test_only_a_few_records_are_tried_in_place_of_one_that_cannot_be_built() -> None:
    graph = _mlp()
    first, *_ = _tasks(graph)
    broken = dump_steps([Split(99, 0, 4, (2,))])
    many = [known(broken, f"record-{number}") for number in range(2000)]
    tried: list[str] = []

    def counting(batch: Sequence[ChosenProgram]) -> list[KernelArtifact | BuildError]:
        if len(batch) == 1:
            tried.append(batch[0].record_id or "")
        return build_in_process(batch)

    key = first.workload_key
    best = {key: replace(many[7], substitutes=tuple(many))}
    network = compile_graph(graph, TARGET, best, build=counting)
    assert network.coverage[0].record_id == ""
    assert [one for one in tried if one] == [f"record-{number}" for number in range(5)]


def test_every_distinct_kernel_is_built_once() -> None:
    graph = optimize(load_model(build("resnet18", image=32, width=8)))
    requests: list[ChosenProgram] = []

    def counting(batch: Sequence[ChosenProgram]) -> list[KernelArtifact | BuildError]:
        requests.extend(batch)
        return build_in_process(batch)

    network = compile_graph(graph, TARGET, build=counting)
    assert len(requests) == len({request.task.name for request in requests}) == len(network.kernels) == 19
    assert sum(entry.weight for entry in network.coverage) == len(network.plan.calls) == 24
    assert sum(entry.tunable for entry in network.coverage) == 19


def test_what_has_no_code_for_a_gpu_runs_on_the_cpu(caplog: pytest.LogCaptureFixture) -> None:
    builder = GraphBuilder("net", [Value("x", (4, 8))])
    weight = builder.constant(np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8), "w")
    product = builder.emit("dense", ("x", weight))
    soft = builder.emit("softmax", (product,), {"axis": 1})
    graph = builder.finish({"y": builder.emit("dense", (soft, weight))})
    names = [task.name for task in partition(graph, TARGET, HardwareParams(1)).tasks]
    refused = next(name for name in names if "softmax" in name)
    network, driver = compiled_for_gpu(graph, Target("cuda"), refused={refused})
    assert [call.device for call in network.plan.calls] == [int(call.kernel != refused) for call in network.plan.calls]
    assert f"net: kernels without code for GPUs, which run on the CPU: {refused}" in caplog.text
    (moved,) = (each for each in network.coverage if each.name == refused)
    assert moved.note == f"on the CPU: {refused}: no code for GPUs for this"
    assert network.metadata["needs"] == compile_graph(graph, TARGET).metadata["needs"]
    x = np.random.default_rng(0).standard_normal((4, 8)).astype("float32")
    _assert_close(run_on_gpu(network, driver, {"x": x}), _outputs(compile_graph(graph, TARGET), {"x": x}))


def test_a_network_that_is_all_for_a_gpu_needs_nothing_of_the_cpu() -> None:
    builder = GraphBuilder("net", [Value("x", (8,))])
    network, _ = compiled_for_gpu(builder.finish({"y": builder.emit("relu", ("x",))}), Target("cuda"))
    assert network.metadata["needs"] == []


def test_weights_in_the_byte_order_of_another_machine_are_packed() -> None:
    networks = []
    for order in "<>":
        builder = GraphBuilder("net", [Value("x", (4, 24))])
        weight = np.random.default_rng(0).standard_normal((24, 32), dtype=np.float32).astype(f"{order}f4")
        made = builder.emit("dense", ("x", builder.constant(weight, "w")))
        graph = builder.finish({"y": made})
        (task,) = _tasks(graph)
        networks.append(compile_graph(graph, TARGET, {task.workload_key: known(dump_steps(_tiled(task)))}))
    native, other = networks
    assert native.kernels[0].args[1].packing is not None
    inputs = _random(graph)
    np.testing.assert_array_equal(_outputs(native, inputs), _outputs(other, inputs))
