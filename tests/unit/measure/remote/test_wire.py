"""Values travel whole, as data, and what is no message is rejected with a clear error."""

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.core.dtype import BFLOAT16
from retune.compiler.core.errors import MeasureError
from retune.compiler.core.target import Target
from retune.compiler.driver.build import build_kernel
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.measure.options import MeasureOptions
from retune.compiler.measure.record import Measurement, MeasureStatus
from retune.compiler.measure.remote.wire import VERSION, from_bytes, to_bytes
from retune.compiler.runtime.archive import archive_bytes
from retune.compiler.runtime.artifact import DeviceCode, KernelLaunch
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default.cpu import default_steps
from retune.compiler.schedule.task import SearchTask
from retune.compiler.schedule.workload_registry import is_registered
from tests.support import workloads


def arg_max(n: int) -> ComputeDAG:
    """A custom reduction, of two values."""
    x = te.placeholder((n, n), name="x")
    k = te.reduce_axis(n, "k")

    def later(lhs: Any, rhs: Any) -> Any:
        return te.if_then_else(lhs[1] >= rhs[1], lhs[0], rhs[0]), te.maximum(lhs[1], rhs[1])

    reducer = te.comm_reducer(later, lambda *_: (te.const(-1, "int32"), te.const(-np.inf, "float32")), "arg_max")
    made = te.compute((n,), lambda i: reducer((te.cast("int32", k), x[i, k]), axis=k), "found")
    return ComputeDAG([x, *made])


GRAPHS = {
    "matmul": lambda: workloads.matmul(16, 24, 8),
    "attributes": lambda: workloads.whole_axes_matmul(8, 8, 8, ["k"]),
    "convolution": lambda: workloads.conv_bn_relu(1, 8, 4, 4, 3, 1, 1),
    "residual": lambda: workloads.conv_residual_nhwc(8, 4),
    "softmax": lambda: workloads.softmax(4, 16),
    "winograd": lambda: workloads.winograd_nhwc(1, 8, 4, 4, 1),
    "pool": lambda: workloads.max_pool_nchw(1, 8, 8, 4, 1),
    "rank zero": lambda: workloads.zero_rank_reduce(16),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_task_travels_whole(name: str) -> None:
    task = workloads.task_of(name, GRAPHS[name]())
    again = from_bytes(to_bytes(task))
    assert isinstance(again, SearchTask)
    assert again.identity == task.identity
    assert str(again.dag) == str(task.dag)
    assert again.dag.layout_free == task.dag.layout_free
    assert again.flop_count == task.flop_count
    assert [node.op.attrs.keys() for node in again.dag.nodes] == [node.op.attrs.keys() for node in task.dag.nodes]


def test_the_kernel_of_a_task_that_traveled_is_the_same() -> None:
    task = workloads.task_of("conv", workloads.conv_bn_relu(1, 8, 4, 4, 3, 1, 1))
    kernel = build_kernel(task, default_steps(task.dag), "k")
    again = from_bytes(to_bytes(task))
    assert build_kernel(again, default_steps(again.dag), "k") == kernel
    assert from_bytes(to_bytes(kernel)) == kernel
    launches = (KernelLaunch("k_0", (8, 1, 1), (64, 2, 1), 32, 4), KernelLaunch("k_1", (1, 1, 1), (32, 1, 1)))
    of_a_gpu = replace(kernel, device=DeviceCode("cubin", launches, (0, 256), ".version 7.0"))
    assert from_bytes(to_bytes(of_a_gpu)) == of_a_gpu


def test_a_task_for_a_gpu_travels_with_what_the_gpu_is() -> None:
    target = Target("cuda -arch=sm_90")
    task = SearchTask("matmul", workloads.matmul(32, 32, 32), target, hardware_of(target, 1))
    assert task.hardware.facts is not None
    assert from_bytes(to_bytes(task)).hardware == task.hardware


def test_the_workload_of_a_task_that_traveled_is_registered() -> None:
    task = replace(workloads.task_of("m", workloads.matmul(4, 4, 4)), key='["of another machine", 4]')
    assert from_bytes(to_bytes(task)).workload_key == task.workload_key
    assert is_registered(task.workload_key)


def test_equal_messages_for_equal_tasks() -> None:
    first, second = (to_bytes(workloads.task_of("m", workloads.matmul(4, 4, 4))) for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -3,
        "text",
        b"",
        b"\x00\n\xff",
        (),
        (1, [2.5, ("x",)], {"a": 1, 2: None}),
        MeasureOptions(threads=2, rotate_bytes=7),
        Measurement((1e-3, 2e-3), MeasureStatus.OK, "", 0.25, 0.5, True, 0.01),
        Target("llvm -mcpu=znver4"),
    ],
)
def test_plain_values_come_back(value: object) -> None:
    again = from_bytes(to_bytes(value))
    assert again == value
    assert type(again) is type(value)


def test_floats_without_a_name_in_json_come_back() -> None:
    low, high, strange, exact = from_bytes(to_bytes((-math.inf, math.inf, math.nan, 0.1 + 0.2)))
    assert (low, high, exact) == (-math.inf, math.inf, 0.1 + 0.2)
    assert math.isnan(strange)


@pytest.mark.parametrize("dtype", ["float32", BFLOAT16, "int8", "bool"])
def test_arrays_come_back(dtype: str) -> None:
    array = np.arange(12).reshape(3, 4).astype(dtype)
    again = from_bytes(to_bytes({"array": array[:, ::2]}))["array"]
    assert again.dtype == array.dtype
    np.testing.assert_array_equal(again, array[:, ::2])


def test_what_is_one_object_stays_one() -> None:
    x = te.placeholder((4,), name="x")
    first, second = from_bytes(to_bytes((x, x)))
    assert first is second


def test_other_classes_do_not_travel() -> None:
    with pytest.raises(MeasureError, match="complex is no class that travels"):
        to_bytes({"number": 1j})


@pytest.mark.parametrize(
    ("head", "said"),
    [
        ({"objects": [["Popen", "true"]], "root": {"o": 0}}, "Popen"),
        ({"objects": [["Target", "moon -x=1"]], "root": {"o": 0}}, "moon"),
        ({"objects": [], "root": {"o": 0}}, "cannot be read"),
        ({"objects": [], "root": {"o": -1}}, "cannot be read"),
        ({"objects": [], "root": {"b": [0, 5]}}, "cut off"),
        ({"objects": [], "root": {"a": ["object", [1], 0, 0]}}, "cannot be read"),
        ({"objects": [], "root": {"e": ["MeasureStatus", "FINE"]}}, "FINE"),
        ({"objects": [], "root": {"x": 1}}, "cannot be read"),
        ([], "cannot be read"),
    ],
)
def test_what_is_no_message_is_refused(head: object, said: str) -> None:
    with pytest.raises(MeasureError, match=said):
        from_bytes(archive_bytes("message", VERSION, {"message.json": head, "blobs": b""}))


@pytest.mark.parametrize(
    "data",
    [
        json.dumps({"version": 2, "objects": [], "root": 1}).encode() + b"\n",
        archive_bytes("message", VERSION + 1, {"message.json": {"objects": [], "root": 1}, "blobs": b""}),
        archive_bytes("network", VERSION, {"message.json": {"objects": [], "root": 1}, "blobs": b""}),
    ],
)
def test_a_message_of_another_version_is_refused(data: bytes) -> None:
    with pytest.raises(MeasureError, match="run the same version of Retune everywhere"):
        from_bytes(data)


def test_a_message_that_was_changed_on_the_way_is_refused() -> None:
    message = bytearray(to_bytes({"data": b"12345678"}))
    message[message.index(b"12345678")] ^= 1
    with pytest.raises(MeasureError, match="the checksum of blobs differs"):
        from_bytes(bytes(message))


@pytest.mark.parametrize("keep", [0, 1, 40, -1])
def test_a_message_that_was_cut_off_is_refused(keep: int) -> None:
    with pytest.raises(MeasureError):
        from_bytes(to_bytes({"data": b"12345678"})[:keep])
