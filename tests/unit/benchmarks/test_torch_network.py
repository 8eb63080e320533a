"""The peers' PyTorch modules compute what the zoo's networks say, with PyTorch's own operators. Needs PyTorch."""

import io
from collections import Counter

import numpy as np
import pytest

from benchmarks import zoo
from benchmarks.dynamic_networks import CASES, draw
from benchmarks.network_peers import seeded_inputs
from retune.compiler.tune.onnx_runtime import OnnxRuntime
from tests.support.zoo_sizes import SMALL

torch = pytest.importorskip("torch")
torch_network = pytest.importorskip("benchmarks.torch_network").torch_network

FUSED = {
    "bert_base": {"gelu": 2, "scaled_dot_product_attention": 2, "layer_norm": 5, "linear": 13},
    "clip_vit_b32": {"scaled_dot_product_attention": 2, "layer_norm": 6, "linear": 12},
    "ddpm_unet": {"scaled_dot_product_attention": 4, "group_norm": 21, "linear": 26},
    "gpt2_block": {"gelu": 1, "scaled_dot_product_attention": 1, "layer_norm": 2, "linear": 4},
    "sam2_tiny_encoder": {"gelu": 5, "scaled_dot_product_attention": 5, "layer_norm": 10, "linear": 23},
    "smollm2_135m": {"scaled_dot_product_attention": 2},
    "swin_tiny": {"gelu": 6, "scaled_dot_product_attention": 6, "layer_norm": 17, "linear": 25},
    "vit_small": {"gelu": 2, "scaled_dot_product_attention": 2, "layer_norm": 5, "linear": 9},
}

WITH_SOFTMAX = ("yolov8n",)
"""Networks with a softmax outside attention."""


@pytest.mark.parametrize("name", zoo.NAMES)
def test_computes_what_onnx_runtime_computes(name: str) -> None:
    model = zoo.build(name, **SMALL[name])
    inputs = seeded_inputs(model)
    saved = io.BytesIO()
    torch.save(torch_network(model), saved)
    saved.seek(0)
    module = torch.load(saved, weights_only=False)  # peers are timed in their own process, from a file
    with torch.no_grad():
        found = [output.numpy() for output in module(*map(torch.from_numpy, inputs.values()))]
    wanted = OnnxRuntime(model.SerializeToString(), 1).run(inputs)
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.shape == theirs.shape
        assert np.abs(ours - theirs).max() <= 2e-5 * np.abs(theirs).max()
    calls = Counter(getattr(node.target, "__name__", "") for node in module.graph.nodes)
    assert {key: calls[key] for key in FUSED.get(name, {})} == FUSED.get(name, {})
    if name not in WITH_SOFTMAX:
        assert not {"erf", "softmax"} & calls.keys()


@pytest.mark.parametrize("name", ["bert_base", "minilm_l6", "resnet50", "segformer_b0", "smollm2_135m_step"])
def test_a_module_with_symbols_takes_any_shape(name: str) -> None:
    case = CASES[name]
    model = case.build(True)
    module, session = torch_network(model), OnnxRuntime(model.SerializeToString(), 1)
    for sizes in case.stream(4, 2):
        inputs = draw(model, sizes, 0)
        with torch.no_grad():
            found = [output.numpy() for output in module(*map(torch.from_numpy, inputs.values()))]
        for ours, theirs in zip(found, session.run(inputs), strict=True):
            assert ours.shape == theirs.shape
            assert np.abs(ours - theirs).max() <= 2e-5 * np.abs(theirs).max()
