"""Regions that are compiled once for all shapes: what they compute, what stays per shape, and what is refused."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from retune.compiler import vm
from retune.compiler.core.errors import ArtifactError, DefinitionError, LoweringError
from retune.compiler.graph.program import MAIN
from retune.compiler.runtime.device import cpu
from retune.compiler.runtime.executor.plan import BufferKind, Plan
from retune.compiler.vm.kernel_store import STORE
from retune.compiler.vm.saved_program import decoded_region
from retune.compiler.vm.symbolic_plan import SymbolicPlan, SymbolicPlanRegion
from tests.support.dynamic_models import attention, floats, model, reference, tensor
from tests.support.fresh_process import run_afresh

node = helper.make_node
WEIGHTS = {"w": floats(8, 24), "v": floats(24, 8), "scale": floats(8)}


def block() -> onnx.ModelProto:
    """x + relu(x w) v, normalized, and its mean over the rows: shapes of two symbols."""
    nodes = [
        node("MatMul", ["x", "w"], ["up"]),
        node("Relu", ["up"], ["positive"]),
        node("MatMul", ["positive", "v"], ["down"]),
        node("Add", ["x", "down"], ["sum"]),
        node("LayerNormalization", ["sum", "scale"], ["out"]),
        node("ReduceMean", ["out", "rows"], ["mean"], keepdims=0),
    ]
    outputs = [tensor("out", ["b", "n", 8]), tensor("mean", ["b", 8])]
    return model(nodes, [tensor("x", ["b", "n", 8])], outputs, {**WEIGHTS, "rows": np.array([1])})


def ranked() -> onnx.ModelProto:
    """The two largest of each row of a product, which symbolic kernels do not rank, with a bias."""
    nodes = [
        node("MatMul", ["x", "w"], ["y"]),
        node("TopK", ["y", "two"], ["top", "places"], axis=1),
        node("Add", ["top", "bias"], ["out"]),
    ]
    outputs = [tensor("out", ["n", 2]), tensor("places", ["n", 2], TensorProto.INT64)]
    return model(nodes, [tensor("x", ["n", 8])], outputs, {"w": WEIGHTS["w"], "two": np.array([2]), "bias": floats(2)})


def first_rows() -> onnx.ModelProto:
    """x + table[:n], which has seven rows."""
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Slice", ["shape", "zero", "one"], ["n"]),
        node("Slice", ["table", "zero", "n", "zero"], ["rows"]),
        node("Add", ["x", "rows"], ["out"]),
    ]
    constants = {"table": floats(7, 4), "zero": np.array([0]), "one": np.array([1])}
    return model(nodes, [tensor("x", ["n", 4])], [tensor("out", [None, 4])], constants)


def similarities() -> onnx.ModelProto:
    """The products of all rows with each other, normalized over as many columns."""
    nodes = [
        node("Transpose", ["x"], ["columns"], perm=[1, 0]),
        node("MatMul", ["x", "columns"], ["y"]),
        node("ReduceMean", ["y", "last"], ["mean"]),
        node("Sub", ["y", "mean"], ["distance"]),
        node("Mul", ["distance", "distance"], ["square"]),
        node("ReduceMean", ["square", "last"], ["variance"]),
        node("Add", ["variance", "epsilon"], ["shifted"]),
        node("Sqrt", ["shifted"], ["deviation"]),
        node("Div", ["distance", "deviation"], ["out"]),
    ]
    constants = {"last": np.array([-1]), "epsilon": np.array(1e-2, np.float32)}
    return model(nodes, [tensor("x", ["n", 8])], [tensor("out", ["n", "n"])], constants)


def pointwise() -> onnx.ModelProto:
    """A convolution of one tap."""
    nodes = [node("Conv", ["x", "w"], ["y"]), node("Relu", ["y"], ["out"])]
    return model(nodes, [tensor("x", [1, 8, "h", "w_"])], [tensor("out", [1, 4, "h", "w_"])], {"w": floats(4, 8, 1, 1)})


def strided() -> onnx.ModelProto:
    """Two convolutions of a sound, the second of every other sample, and attention over what is left: the number of
    its rows is a quotient that is negative without samples.
    """
    nodes = [
        node("Conv", ["x", "near"], ["close"], pads=[1, 1]),
        node("Conv", ["close", "far"], ["frames"], pads=[1, 1], strides=[2]),
        node("Transpose", ["frames"], ["rows"], perm=[0, 2, 1]),
        node("MatMul", ["rows", "frames"], ["scores"]),
        node("Softmax", ["scores"], ["weights"], axis=-1),
        node("MatMul", ["weights", "rows"], ["out"]),
    ]
    weights = {"near": floats(8, 8, 3) / 4, "far": floats(8, 8, 3) / 4}
    return model(nodes, [tensor("x", [1, 8, "n"])], [tensor("out", [1, None, 8])], weights)


def decoder_step() -> onnx.ModelProto:
    """Attention of one token to a cache and itself, under a mask of one column more than the cache, and the cache with
    the token. The model says of the columns only that they are some number.
    """
    nodes = [
        node("Concat", ["cache", "x"], ["keys"], axis=1),
        node("Transpose", ["keys"], ["columns"], perm=[0, 2, 1]),
        node("MatMul", ["x", "columns"], ["scores"]),
        node("Add", ["scores", "mask"], ["masked"]),
        node("Softmax", ["masked"], ["weights"], axis=-1),
        node("MatMul", ["weights", "keys"], ["out"]),
    ]
    inputs = [tensor("x", [1, 1, 8]), tensor("cache", [1, "past", 8]), tensor("mask", [1, 1, "total"])]
    return model(nodes, inputs, [tensor("out", [1, 1, 8]), tensor("keys", [1, None, 8])])


def first_token() -> onnx.ModelProto:
    """The first row of a product."""
    nodes = [node("MatMul", ["x", "w"], ["y"]), node("Gather", ["y", "first"], ["out"], axis=0)]
    return model(nodes, [tensor("x", ["n", 8])], [tensor("out", [1, 24])], {"w": WEIGHTS["w"], "first": np.array([0])})


def machine_of(source: onnx.ModelProto, **options: Any) -> vm.VirtualMachine:
    code, library = vm.compile(source, threads=2).save()
    exe = vm.Executable.load_exec(code, library)
    return vm.VirtualMachine(exe, cpu(), options=vm.VMOptions(**options))


def check(machine: vm.VirtualMachine, source: onnx.ModelProto, *shape: int) -> None:
    x = floats(*shape, seed=len(shape))
    results = machine.run(x)
    for ours, theirs in zip(
        [results] if isinstance(results, np.ndarray) else results, reference(source, {"x": x}), strict=True
    ):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("policy", ["needed", "never"])
def test_kernels_serve_all_sizes_and_nothing_is_compiled(policy: str) -> None:
    source = block()
    machine = machine_of(source, specialize=policy)
    before = STORE.use.asked
    for shape in ((1, 1), (1, 5), (3, 33), (2, 5), (1, 128), (0, 4), (5, 1), (1, 5)):
        check(machine, source, *shape, 8)
    assert STORE.use.asked == before
    assert machine.specializations() == ()


@pytest.mark.parametrize(
    ("source", "shapes"),
    [(similarities(), [(5, 8), (1, 8), (40, 8), (2, 8)]), (pointwise(), [(1, 8, 5, 3), (1, 8, 1, 1), (1, 8, 16, 16)])],
)
def test_choices_by_size_need_no_known_size(source: onnx.ModelProto, shapes: Sequence[Sequence[int]]) -> None:
    assert vm.compile(source).per_shape == {}
    machine = machine_of(source)
    for shape in shapes:
        check(machine, source, *shape)
    assert machine.specializations() == ()


def image_network() -> onnx.ModelProto:
    """Strided convolutions, pools and a shortcut; then two resizes to the image's size beside each other."""
    taps = {"stem": (8, 3, 7, 7), "left": (16, 8, 3, 3), "right": (16, 8, 1, 1)}
    weights = {name: floats(*shape, low=-0.1, high=0.1) for name, shape in taps.items()}
    linear = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
    nodes = [
        node("Conv", ["x", "stem"], ["large"], strides=[2, 2], pads=[3, 3, 3, 3]),
        node("MaxPool", ["large"], ["pooled"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        node("Conv", ["pooled", "left"], ["a"], strides=[2, 2], pads=[1, 1, 1, 1]),
        node("Conv", ["pooled", "right"], ["b"], strides=[2, 2]),
        node("Add", ["a", "b"], ["sum"]),
        node("AveragePool", ["sum"], ["few"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Shape", ["x"], ["shape"]),
        node("Slice", ["shape", "two", "four"], ["extents"]),
        node("Concat", ["lead", "extents"], ["sizes"], axis=0),
        node("Resize", ["sum", "", "", "sizes"], ["smooth"], **linear),
        node(
            "Resize", ["few", "", "", "sizes"], ["blocks"], mode="nearest", coordinate_transformation_mode="asymmetric"
        ),
        node("Concat", ["smooth", "blocks"], ["out"], axis=1),
    ]
    bounds = {"two": np.array([2]), "four": np.array([4]), "lead": np.array([1, 16])}
    return model(nodes, [tensor("x", [1, 3, "h", "w"])], [tensor("out", [1, 32, "h", "w"])], {**weights, **bounds})


def test_even_and_odd_images_have_the_same_kernels() -> None:
    source = image_network()
    assert vm.compile(source).per_shape == {}
    machine = machine_of(source)
    for sizes in ((32, 32), (33, 47), (34, 41), (9, 70), (64, 10), (45, 46), (100, 31)):
        check(machine, source, 1, 3, *sizes)
    assert machine.specializations() == ()


@pytest.mark.parametrize(("window", "stride", "pad"), [(2, 2, 0), (3, 2, 1), (3, 2, 0), (2, 2, 1)])
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_a_partial_window_needs_no_case_of_a_size(op: str, window: int, stride: int, pad: int) -> None:
    attributes: dict[str, Any] = {"kernel_shape": [window] * 2, "strides": [stride] * 2, "pads": [pad] * 4}
    source = model(
        [node(op, ["x"], ["out"], ceil_mode=1, **attributes)],
        [tensor("x", [1, 8, "h", "w"])],
        [tensor("out", [1, 8, "rows", "columns"])],
    )
    exe = vm.compile(source)
    assert (exe.per_shape, exe.limits) == ({}, {})
    machine = machine_of(source)
    for sizes in ((32, 33), (31, 30), (3, 3), (5, 64), (3, 4)):
        check(machine, source, 1, 8, *sizes)
    assert machine.specializations() == ()


@pytest.mark.parametrize("attributes", [{}, {"exclusive": 1}, {"reverse": 1}])
def test_a_running_total_needs_no_case_of_a_size(attributes: dict[str, Any]) -> None:
    source = model(
        [node("CumSum", ["x", "axis"], ["out"], **attributes)],
        [tensor("x", ["n", "length"])],
        [tensor("out", ["n", "length"])],
        {"axis": np.array(1)},
    )
    exe = vm.compile(source)
    assert (exe.per_shape, exe.limits) == ({}, {})
    machine = machine_of(source)
    for sizes in ((4, 100), (3, 16), (1, 33), (5, 32), (2, 1), (2, 0), (2, 700)):
        check(machine, source, *sizes)
    assert machine.specializations() == ()


def test_sizes_that_the_kernels_are_not_for_are_told() -> None:
    """Whether a window starts in the padding depends on a size in a way that is decided."""
    pool = node("MaxPool", ["x"], ["out"], kernel_shape=[3], strides=[3], pads=[1, 1], ceil_mode=1)
    source = model([pool], [tensor("x", [1, 8, "n"])], [tensor("out", [1, 8, "count"])])
    exe = vm.compile(source)
    assert exe.per_shape == {}
    ((region, limits),) = exe.limits.items()
    assert region.startswith("main")
    assert "n" in limits
    assert "n_" not in limits
    machine = machine_of(source)
    for size in (3, 4, 5, 6, 7, 64):
        check(machine, source, 1, 8, size)
    assert machine.specializations()


def test_an_even_and_an_odd_number_of_samples_have_the_same_kernels() -> None:
    source = strided()
    machine = machine_of(source)
    for samples in (9, 10, 11, 64, 3, 2, 301):
        check(machine, source, 1, 8, samples)
    assert vm.compile(source).per_shape == {}
    assert machine.specializations() == ()


def test_a_cache_grows_from_nothing_in_the_same_kernels() -> None:
    source = decoder_step()
    exe = vm.compile(source)
    assert exe.per_shape == {}
    machine = machine_of(source)
    for past in (3, 0, 1, 2, 40):
        inputs = {"x": floats(1, 1, 8), "cache": floats(1, past, 8), "mask": floats(1, 1, past + 1)}
        for ours, theirs in zip(machine.run(**inputs), reference(source, inputs), strict=True):
            assert ours.shape == theirs.shape
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
    assert machine.specializations() == ()
    with pytest.raises(ValueError, match="broadcast"):
        machine.run(x=floats(1, 1, 8), cache=floats(1, 3, 8), mask=floats(1, 1, 3))


def test_one_row_has_the_kernels_of_several() -> None:
    machine = machine_of(first_token())
    for rows in (5, 1, 2):
        check(machine, first_token(), rows, 8)
    assert machine.specializations() == ()


@pytest.mark.parametrize("error", [DefinitionError, LoweringError, IndexError, ArtifactError, TypeError])
def test_a_kernel_that_cannot_be_lowered_is_made_for_each_shape(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_task: object) -> None:
        raise error("no such kernel")

    monkeypatch.setattr(STORE, "build_symbolic", fail)
    exe = vm.compile(block(), threads=2)
    assert exe.per_shape
    assert all("no such kernel" in reason for reason in exe.per_shape.values())
    check(vm.VirtualMachine(exe), block(), 2, 3, 8)


def test_rows_without_elements_are_summed_to_what_numpy_says() -> None:
    exe = vm.compile(block())
    out, mean = vm.VirtualMachine(exe).run(np.zeros((2, 0, 8), np.float32))
    assert out.shape == (2, 0, 8)
    assert mean.shape == (2, 8)


def test_a_saved_network_serves_new_sizes_without_the_compiler(tmp_path: Path) -> None:
    path = vm.compile(attention()).export_library(tmp_path / "net.retune")
    x = floats(2, 5, 8)
    y, modules = run_afresh(path, x)
    np.testing.assert_allclose(y, reference(attention(), {"x": x})[0], rtol=1e-4, atol=1e-4)
    parts = ("frontend", "codegen", "driver", "schedule", "vm.specialize", "graph.symbolic")
    assert not [name for name in modules if name.startswith(tuple(f"retune.compiler.{part}" for part in parts))]


def test_a_group_without_a_symbolic_kernel_is_compiled_for_each_shape_and_named() -> None:
    exe = vm.compile(ranked())
    (region,) = exe.program.regions()
    assert isinstance(region, SymbolicPlanRegion)
    assert region.groups.keys() == exe.per_shape.keys()
    assert any("ranks elements" in reason for reason in exe.per_shape.values())
    machine = machine_of(ranked())
    for rows in (3, 7, 3, 1):
        check(machine, ranked(), rows, 8)
    reports = machine.specializations()
    assert {report.region for report in reports} == set(region.groups)
    assert len(reports) == 3 * len(region.groups)


def test_sizes_that_the_guards_exclude_are_compiled_when_they_are_seen() -> None:
    source = first_rows()
    machine = machine_of(source)
    for rows in (3, 7, 0):
        check(machine, source, rows, 4)
    assert machine.specializations() == ()
    check(machine, source, 1, 4)
    with pytest.raises(ValueError, match="broadcast"):
        machine.run(floats(9, 4))
    check(machine, source, 5, 4)


def test_rows_that_no_stack_holds_are_compiled_when_they_are_seen() -> None:
    nodes = [
        node("MatMul", ["q", "k"], ["scores"]),
        node("Softmax", ["scores"], ["weights"], axis=-1),
        node("MatMul", ["weights", "v"], ["out"]),
    ]
    inputs = [tensor("q", [8, "n", 32]), tensor("k", [8, 32, "m"]), tensor("v", [8, "m", 32])]
    source = model(nodes, inputs, [tensor("out", [8, "n", 32])], {})
    machine = machine_of(source)
    for columns, compiled in ((7, 0), (50_000, 1), (9, 1)):
        arrays = {"q": floats(8, 2, 32), "k": floats(8, 32, columns), "v": floats(8, columns, 32)}
        (wanted,) = reference(source, arrays)
        np.testing.assert_allclose(machine.run(**arrays), wanted, rtol=1e-4, atol=1e-4)
        assert len(machine.specializations()) == compiled


@pytest.mark.parametrize("policy", ["now", "background"])
def test_shapes_may_be_compiled_all_the_same(policy: str) -> None:
    machine = machine_of(block(), specialize=policy)
    for shape in ((1, 5), (3, 7), (1, 5)):
        check(machine, block(), *shape, 8)
    assert len(machine.specializations()) == 2


@pytest.mark.parametrize("count", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_many_sizes_leave_memory_where_the_first_did(count: int) -> None:
    weights = {"w": floats(64, 64)}
    source = model(
        [node("MatMul", ["x", "w"], ["y"])], [tensor("x", ["b", "n", 64])], [tensor("y", ["b", "n", 64])], weights
    )
    machine, rng = machine_of(source), Random(0)
    largest, resident = 0, 0
    for number in range(count):
        batch, tokens = (round(most ** rng.random()) for most in (8, 512))
        largest = max(largest, machine.run(floats(batch, tokens, 64)).nbytes)
        if number == count // 10:
            resident = _resident()
    # A result is in use while the next is computed; of what is free the pool keeps four times as much.
    assert machine._resources.allocator.reserved <= 6.5 * largest  # type: ignore[attr-defined]
    assert _resident() - resident < 24 << 20
    assert machine.specializations() == ()


def _resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_profile_names_symbolic_kernels() -> None:
    exe = vm.compile(block(), threads=1)
    (region,) = exe.program.regions()
    assert isinstance(region, SymbolicPlanRegion)
    report = vm.VirtualMachine(exe).profile(floats(2, 5, 8))
    assert set(region.kernels) <= {call["Name"] for call in report.calls}


# Damage


def _region() -> tuple[vm.Executable, SymbolicPlanRegion]:
    exe = vm.compile(block())
    (region,) = exe.program.regions()
    assert isinstance(region, SymbolicPlanRegion)
    return exe, region


def _with_plan(exe: vm.Executable, region: SymbolicPlanRegion, plan: SymbolicPlan) -> vm.Executable:
    (call,) = exe.program.main.body
    changed = replace(call, region=replace(region, plan=plan))  # type: ignore[arg-type]
    main = replace(exe.program.main, body=(changed,))
    return vm.Executable(replace(exe.program, functions={MAIN: main}), exe.library)


def _wider(plan: Plan) -> Plan:
    index = next(number for number, spec in enumerate(plan.buffers) if spec.kind is BufferKind.INTERMEDIATE)
    buffers = list(plan.buffers)
    buffers[index] = replace(buffers[index], shape=(*buffers[index].shape, 2))
    return replace(plan, buffers=tuple(buffers))


def _one_slot(slots: Sequence[int]) -> tuple[int, ...]:
    return tuple(min(slot, 0) for slot in slots)


def test_a_plan_that_would_touch_foreign_memory_is_refused() -> None:
    exe, region = _region()
    plan = region.plan
    short = replace(plan.plan, calls=(replace(plan.plan.calls[0], buffers=plan.plan.calls[0].buffers[1:]),))
    for broken, message in (
        (replace(plan, plan=_wider(plan.plan)), "argument"),
        (replace(plan, slots=_one_slot(plan.slots)), "read only, or another argument"),
        (replace(plan, slots=plan.slots[1:]), "slots for"),
        (replace(plan, plan=short), "takes"),
        (replace(plan, plan=replace(plan.plan, outputs=(999,))), "no buffer 999"),
        (replace(plan, plan=replace(plan.plan, inputs=plan.plan.outputs)), "no input"),
    ):
        with pytest.raises(ArtifactError, match=message):
            vm.VirtualMachine(_with_plan(exe, region, broken))


def test_a_wrong_kernel_shows_in_the_result() -> None:
    """A planted fault: the sizes of two symbols exchanged."""
    exe, region = _region()
    text = json.dumps(region.plan.to_json()).replace("n_b_0", "n_x").replace("n_n_1", "n_b_0").replace("n_x", "n_n_1")
    swapped = SymbolicPlan.from_json(json.loads(text))
    with pytest.raises((ArtifactError, AssertionError)):
        check(vm.VirtualMachine(_with_plan(exe, region, swapped)), block(), 2, 5, 8)


def test_a_region_that_is_read_equals_the_one_that_was_written() -> None:
    _, region = _region()
    data = region.to_bytes()
    again = SymbolicPlanRegion.from_bytes(data, decoded_region)
    assert again.plan == region.plan
    assert again.to_bytes() == data
    with pytest.raises(ArtifactError):
        SymbolicPlanRegion.from_bytes(data[:-40], decoded_region)
