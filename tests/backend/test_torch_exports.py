"""Networks as PyTorch's exporter writes them, compiled untuned and with programs of the search, against PyTorch.

Run where PyTorch is installed (`pip install -e '.[test,torch]'`) with `-m slow`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from retune.compiler.core.target import Target
from retune.compiler.driver.compile_network import compile_graph
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.frontend.importer import load_model
from retune.compiler.frontend.program import load_program
from retune.compiler.graph.partition.partition import partition
from retune.compiler.graph.pipeline import optimize
from retune.compiler.measure.record import TaskProgram
from retune.compiler.runtime.executor.graph_executor import GraphExecutor
from retune.compiler.tune.winners import untested_candidates
from tests.support.run_program import run_program

torch = pytest.importorskip("torch")
torchvision = pytest.importorskip("torchvision")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.filterwarnings("ignore"),  # the exporter's own
]

_TOLERANCE = 1e-4


def _vision(name: str, **options: Any) -> Callable[[], Any]:
    return lambda: torchvision.models.get_model(name, weights=None, **options)


def _encoder() -> Any:
    layer = torch.nn.TransformerEncoderLayer(96, 4, 200, activation="gelu", batch_first=True, norm_first=True)
    return torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def _upsampler() -> Any:
    return torch.nn.Sequential(
        torch.nn.ConvTranspose2d(12, 16, 4, 2, 1),
        torch.nn.InstanceNorm2d(16, affine=True),
        torch.nn.SiLU(),
        torch.nn.Upsample(scale_factor=2, mode="bilinear"),
        torch.nn.GroupNorm(4, 16),
        torch.nn.Conv2d(16, 3, 3, padding=1),
        torch.nn.Tanh(),
    )


NETWORKS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "resnet18": (_vision("resnet18"), (1, 3, 64, 64)),
    "mobilenet_v3_small": (_vision("mobilenet_v3_small"), (1, 3, 64, 64)),
    "efficientnet_b0": (_vision("efficientnet_b0"), (1, 3, 64, 64)),
    "convnext_tiny": (_vision("convnext_tiny"), (1, 3, 64, 64)),
    "shufflenet_v2_x1_0": (_vision("shufflenet_v2_x1_0"), (1, 3, 64, 64)),
    "densenet121": (_vision("densenet121"), (1, 3, 64, 64)),
    "vit_b_32": (_vision("vit_b_32", image_size=64), (1, 3, 64, 64)),
    "swin_t": (_vision("swin_t"), (1, 3, 64, 64)),
    "r3d_18": (_vision("r3d_18"), (1, 3, 4, 32, 32)),
    "deeplabv3_mobilenet": (_vision("deeplabv3_mobilenet_v3_large", weights_backbone=None), (1, 3, 64, 64)),
    "transformer": (_encoder, (2, 11, 96)),
    "upsampler": (_upsampler, (1, 12, 9, 10)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_exported_torch_module_matches_eager_torch(name: str, tmp_path: Path) -> None:
    make, shape = NETWORKS[name]
    torch.manual_seed(0)
    module = _lively(make()).eval()
    x = torch.randn(shape)
    with torch.no_grad():
        answer = module(x)
        wanted = [value.numpy() for value in (answer.values() if isinstance(answer, dict) else [answer])]
        torch.onnx.export(module, (x,), tmp_path / f"{name}.onnx", dynamo=True, verbose=False)
    target = Target.host()
    graph = optimize(load_model(tmp_path / f"{name}.onnx"))
    cut = partition(graph, target, hardware_of(target, 2))
    guesses: dict[str, TaskProgram] = {}
    for task in cut.worth_tuning()[0]:
        (guesses[task.workload_key], *_) = untested_candidates(task)
    for best in ({}, guesses):
        executor = GraphExecutor(compile_graph(graph, target, best, threads=2, cut=cut), 2)
        executor.set_input(0, x.numpy())
        executor.run()
        _assert_equal([executor.get_output(place) for place in range(executor.get_num_outputs())], wanted)


class _Choice(torch.nn.Module):  # type: ignore[misc,name-defined,unused-ignore]
    """Two courses, of which the data chooses one."""

    def forward(self, x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda x: torch.relu(x) * 2, lambda x: x - x.mean(), (x,))


OPEN: dict[str, tuple[Callable[[], Any], dict[int, str], tuple[tuple[int, ...], ...]]] = {
    "transformer": (_encoder, {0: "batch", 1: "tokens"}, ((2, 11, 96), (3, 5, 96))),
    "upsampler": (_upsampler, {2: "height", 3: "width"}, ((2, 12, 9, 10), (2, 12, 6, 16))),
    "choice": (_Choice, {0: "rows"}, ((3, 4), (5, 4))),
}
"""Networks with open dimensions, and shapes to export with and to run with."""


@pytest.mark.parametrize("name", OPEN)
def test_exported_with_open_dimensions(name: str, tmp_path: Path) -> None:
    make, dims, shapes = OPEN[name]
    torch.manual_seed(0)
    module = _lively(make()).eval()
    path = tmp_path / f"{name}.onnx"
    open_dims = ({axis: torch.export.Dim(symbol) for axis, symbol in dims.items()},)
    with torch.no_grad():
        torch.onnx.export(module, (torch.randn(shapes[0]),), path, dynamo=True, dynamic_shapes=open_dims, verbose=False)
        program = load_program(path)
        assert len(program.regions()) == (3 if name == "choice" else 1)
        assert all(region.determining == () for region in program.regions())
        for shape in shapes:
            x = torch.randn(shape)
            for sign in (1, -1):
                found = run_program(program, {program.inputs[0].name: (sign * x).numpy()})
                _assert_equal(list(found), [module(sign * x).numpy()])


def _lively(module: Any) -> Any:
    """The module with statistics and scales as training leaves them, not the zeros and ones it was made with."""
    for part in module.modules():
        if isinstance(part, torch.nn.modules.batchnorm._BatchNorm):
            torch.nn.init.uniform_(part.running_var, 0.7, 1.4)
            torch.nn.init.normal_(part.running_mean, 0.0, 0.1)
            torch.nn.init.uniform_(part.weight, 0.8, 1.2)
            torch.nn.init.normal_(part.bias, 0.0, 0.1)
    return module


def _assert_equal(found: list[NDArray[Any]], wanted: list[NDArray[Any]]) -> None:
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.shape == theirs.shape
        assert np.abs(ours - theirs).max() <= _TOLERANCE * np.abs(theirs).max()
