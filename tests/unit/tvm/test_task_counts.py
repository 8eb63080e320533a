"""How many tasks the networks have that TVM's own tests count, written again with few channels (counts do not depend on
these), and that one of them computes the same however it is scheduled.
"""

from pathlib import Path

import numpy as np
import onnx
import pytest

from retune.compiler.core.target import Target
from retune.compiler.driver.network_build import build_network
from retune.compiler.frontend.zoo.layers import LayerWriter
from retune.compiler.runtime.artifact import Array
from retune.compiler.tvm.auto_scheduler import (
    ApplyHistoryBest,
    ApplyHistoryBestOrSample,
    RecordToFile,
    TuningOptions,
    extract_tasks,
    load_records,
)
from retune.compiler.tvm.graph_executor import GraphModule, cpu
from tests.support.tvm_scripts import Simulated

_WIDTH = 8


def mlp() -> onnx.ModelProto:
    """Two layers alike, each with bias and ReLU."""
    write = LayerWriter("mlp", (1, 32), 0)
    x = write.input
    for name in ("one", "two"):
        x = write.node("Relu", [write.fully_connected(x, (32, 32), name)], f"{name}_relu")
    return write.finish(x, (1, 32))


def resnet18(dimensions: int = 2) -> onnx.ModelProto:
    """Normalized and cut off before each convolution: ResNet-18 in its second form, of images or of clips; only images
    have a pooling behind the stem.
    """
    shape = (1, 3, 32, 32) if dimensions == 2 else (1, 3, 16, 32, 32)
    write = LayerWriter("resnet18", shape, 0)
    x = write.batch_norm(write.input, 3, "data_bn")
    kernel, stride = ((7, 7), (2, 2)) if dimensions == 2 else ((3, 7, 7), (1, 2, 2))
    x = write.convolution(x, (3, _WIDTH), kernel, "stem", stride=stride)
    if dimensions == 2:
        x = write.node("Relu", [write.batch_norm(x, _WIDTH, "stem_bn")], "stem_relu")
        x = write.node("MaxPool", [x], "stem_pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    taken = _WIDTH
    for stage in range(4):
        made = _WIDTH * 2**stage
        for number in range(2):
            step = 2 if stage and not number else 1
            x = _unit(write, x, (taken, made), (dimensions, step), number == 0, f"s{stage}u{number}")
            taken = made
    x = write.node("Relu", [write.batch_norm(x, taken, "last_bn")], "last_relu")
    return _classified(write, x, taken)


def _unit(
    write: LayerWriter, x: str, channels: tuple[int, int], shape: tuple[int, int], projects: bool, name: str
) -> str:
    """Two convolutions; the shortcut is one more where the stage begins. `shape` is dimensions and stride."""
    taken, made = channels
    dimensions, step = shape
    kernel, stride = (3,) * dimensions, (step,) * dimensions
    first = write.node("Relu", [write.batch_norm(x, taken, f"{name}_bn1")], f"{name}_relu1")
    branch = write.convolution(first, channels, kernel, f"{name}_conv1", stride=stride)
    branch = write.node("Relu", [write.batch_norm(branch, made, f"{name}_bn2")], f"{name}_relu2")
    branch = write.convolution(branch, (made, made), kernel, f"{name}_conv2")
    if projects:
        x = write.convolution(first, channels, (1,) * dimensions, f"{name}_sc", stride=stride)
    return write.node("Add", [branch, x], f"{name}_sum")


def mobilenet() -> onnx.ModelProto:
    """Thirteen pairs of a depthwise and a pointwise convolution behind a stem."""
    write = LayerWriter("mobilenet", (1, 3, 64, 64), 0)
    x = _conv_bn_relu(write, write.input, (3, _WIDTH), 3, 2, 1, "stem")
    taken = _WIDTH
    makes = (2, 4, 4, 8, 8, 16, 16, 16, 16, 16, 16, 32, 32)
    for number, made in enumerate(makes):
        stride = 2 if number in (1, 3, 5, 11) else 1
        x = _conv_bn_relu(write, x, (taken, taken), 3, stride, taken, f"depth{number}")
        x = _conv_bn_relu(write, x, (taken, made * _WIDTH), 1, 1, 1, f"point{number}")
        taken = made * _WIDTH
    return _classified(write, x, taken)


def _conv_bn_relu(
    write: LayerWriter, x: str, channels: tuple[int, int], kernel: int, stride: int, groups: int, name: str
) -> str:
    x = write.convolution(x, channels, kernel, name, stride=stride, groups=groups)
    return write.node("Relu", [write.batch_norm(x, channels[1], f"{name}_bn")], f"{name}_relu")


def _classified(write: LayerWriter, x: str, channels: int) -> onnx.ModelProto:
    x = write.node("Flatten", [write.node("GlobalAveragePool", [x], "pool")], "flat", axis=1)
    x = write.fully_connected(x, (channels, 10), "logits")
    return write.finish(write.node("Softmax", [x], "scores", axis=-1), (1, 10))


@pytest.mark.parametrize("target", ["llvm", "cuda"])
@pytest.mark.parametrize(
    ("name", "tasks", "calls"), [("mlp", 1, 2), ("resnet18", 24, 25), ("mobilenet", 22, 30), ("resnet3d18", 23, 24)]
)
def test_networks_have_as_many_tasks_and_calls_as_in_tvm(name: str, tasks: int, calls: int, target: str) -> None:
    model = {"mlp": mlp, "resnet18": resnet18, "mobilenet": mobilenet, "resnet3d18": lambda: resnet18(3)}[name]()
    found, weights = extract_tasks(model, None, target)
    assert (len(found), sum(weights)) == (tasks, calls)


def _scores(model: onnx.ModelProto, x: Array) -> Array:
    module = GraphModule(build_network(model)["default"](cpu()))
    module.run(input=x)
    return module.get_output(0)


def test_a_network_tuned_sampled_and_untuned_computes_the_same(tmp_path: Path) -> None:
    model, x = mlp(), np.random.default_rng(0).random((1, 32), np.float32)
    (task,), _ = extract_tasks(model, None, Target.host())
    log = tmp_path / "log.json"
    task.tune(TuningOptions(4, runner=Simulated(), measure_callbacks=[RecordToFile(log)]))
    untuned = _scores(model, x)
    with ApplyHistoryBest([log]) as best:
        assert best.known(task.target, task.workload_key, task.compute_dag) is not None
        np.testing.assert_allclose(_scores(model, x), untuned, rtol=1e-4)
    with ApplyHistoryBest(load_records(log)):
        np.testing.assert_allclose(_scores(model, x), untuned, rtol=1e-4)
    with ApplyHistoryBestOrSample(None, num_measure=2) as sampling:
        np.testing.assert_allclose(_scores(model, x), untuned, rtol=1e-4)
        assert sampling.known(task.target, task.workload_key, task.compute_dag) is not None
