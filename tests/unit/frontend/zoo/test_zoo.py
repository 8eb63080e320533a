"""Networks are deterministic, sane in scale, and mean the same to ONNX Runtime and after every pass."""

from collections import Counter
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from benchmarks import zoo
from retune.compiler.core.errors import ModelFormatError, OptionError
from retune.compiler.frontend.importer import load_model
from retune.compiler.graph.evaluate import evaluate
from retune.compiler.graph.ir import Graph
from tests.support.tiers import long_except
from tests.support.zoo_sizes import SMALL

Agrees = Callable[[onnx.ModelProto], Any]

IN_PIXELS, MOST_PIXELS = ("yolov8n",), 640
"""Networks that give coordinates in an image."""

MOVED_ONCE = ("mobilenet_v2", "r3d_18", "resnet18", "resnet50")
"""Networks whose input is brought to channels-last, and nothing else after it."""


def test_every_network_is_tested() -> None:
    assert tuple(SMALL) == zoo.NAMES


@pytest.mark.parametrize("name", long_except(["mlp", "resnet18", "gpt2_block"], zoo.NAMES))
def test_agrees_with_onnxruntime(name: str, agrees_with_onnxruntime: Agrees) -> None:
    graph = agrees_with_onnxruntime(zoo.build(name, **SMALL[name]))
    ops = Counter(node.op for node in graph.nodes)
    assert ops["batch_norm"] == ops["identity"] == 0
    if name in MOVED_ONCE:
        assert (ops["transpose"], ops["reshape"], ops["mul"]) == (1, 1, 0)
    if name == "mlp":
        assert (ops["transpose"], ops["reshape"], ops["mul"]) == (0, 0, 0)


@pytest.mark.parametrize("name", zoo.NAMES)
def test_weights_come_from_the_seed(name: str) -> None:
    first, again, other = (zoo.build(name, **SMALL[name], seed=seed).SerializeToString() for seed in (5, 5, 6))
    assert first == again
    assert first != other


def random_inputs(graph: Graph, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    """Normal for floats, 0 and 1 for integers."""
    return {
        value.name: rng.standard_normal(value.shape, dtype=np.float32)
        if value.dtype == "float32"
        else rng.integers(0, 2, value.shape).astype(value.dtype)
        for value in graph.inputs
    }


@pytest.mark.parametrize("name", zoo.NAMES)
def test_outputs_keep_a_sane_scale_and_depend_on_the_input(name: str) -> None:
    graph = load_model(zoo.build(name, **SMALL[name]))
    rng = np.random.default_rng(1)
    first, second = (evaluate(graph, random_inputs(graph, rng)) for _ in range(2))
    for one, two in zip(first, second, strict=True):
        assert 0.1 < one.std() < (MOST_PIXELS if name in IN_PIXELS else 20)
        assert np.abs(one - two).max() > 0.1


@pytest.mark.parametrize(
    ("name", "inputs", "outputs", "operators", "parameters"),
    [
        ("convnext_tiny", [(1, 3, 224, 224)], [(1, 1000)], {"Conv": 22, "LayerNormalization": 23}, 28.6e6),
        (
            "ddpm_unet",
            [(1, 3, 32, 32), (1,)],
            [(1, 3, 32, 32)],
            {"Conv": 65, "InstanceNormalization": 51, "Softmax": 6, "Resize": 3},
            35.7e6,
        ),
        ("dcgan", [(1, 100, 1, 1)], [(1, 3, 64, 64)], {"ConvTranspose": 5}, 3.58e6),
        ("efficientnet_b0", [(1, 3, 224, 224)], [(1, 1000)], {"Conv": 81, "Sigmoid": 65}, 5.29e6),
        ("hifi_gan", [(1, 80, 32)], [(1, 1, 8192)], {"Conv": 74, "ConvTranspose": 4, "LeakyRelu": 77}, 13.92e6),
        ("minilm_l6", [(1, 128)] * 3, [(1, 384)], {"Softmax": 6, "LayerNormalization": 13}, 22.57e6),
        ("mobilenet_v2", [(1, 3, 224, 224)], [(1, 1000)], {"Conv": 52}, 3.54e6),
        ("r3d_18", [(1, 3, 16, 112, 112)], [(1, 400)], {"Conv": 20}, 33.4e6),
        ("resnet18", [(1, 3, 224, 224)], [(1, 1000)], {"Conv": 20}, 11.7e6),
        ("resnet50", [(1, 3, 224, 224)], [(1, 1000)], {"Conv": 53}, 25.6e6),
        (
            "sam2_tiny_encoder",
            [(1, 3, 1024, 1024)],
            [(1, 256, side, side) for side in (256, 128, 64)],
            {"Conv": 5, "Softmax": 12, "LayerNormalization": 24, "MaxPool": 6, "Pad": 5},
            27.22e6,
        ),
        ("segformer_b0", [(1, 3, 256, 256)], [(1, 150, 64, 64)], {"Conv": 20, "Softmax": 8, "Resize": 3}, 3.75e6),
        ("swin_tiny", [(1, 3, 224, 224)], [(1, 1000)], {"Softmax": 12, "LayerNormalization": 29}, 28.3e6),
        ("unet", [(1, 3, 256, 256)], [(1, 1, 256, 256)], {"Conv": 19, "ConvTranspose": 4, "Concat": 4}, 7.77e6),
        ("vit_small", [(1, 3, 224, 224)], [(1, 1000)], {"Softmax": 12, "LayerNormalization": 25}, 22.1e6),
        (
            "whisper_tiny_encoder",
            [(1, 80, 3000)],
            [(1, 1500, 384)],
            {"Conv": 2, "Softmax": 4, "LayerNormalization": 9},
            8.208e6,
        ),
        ("yolov8n", [(1, 3, 640, 640)], [(1, 84, 8400)], {"Conv": 64, "MaxPool": 3, "Resize": 2}, 3.19e6),
        (
            "gpt2_block",
            [(1, 1, 768), (1, 12, 255, 64), (1, 12, 255, 64)],
            [(1, 1, 768), (1, 12, 256, 64), (1, 12, 256, 64)],
            {"Softmax": 1, "LayerNormalization": 2},
            7.09e6,
        ),
    ],
)
def test_full_size_structure(
    name: str,
    inputs: list[tuple[int, ...]],
    outputs: list[tuple[int, ...]],
    operators: dict[str, int],
    parameters: float,
) -> None:
    """The numbers of parameters are those that the papers and libraries of models give, to one percent."""
    model = zoo.build(name)
    assert [_shape(value) for value in model.graph.input] == inputs
    assert [_shape(value) for value in model.graph.output] == outputs
    found = Counter(node.op_type for node in model.graph.node)
    assert {op: found[op] for op in operators} == operators
    counted = sum(prod(tensor.dims) for tensor in model.graph.initializer)
    assert counted == pytest.approx(parameters, rel=0.01)


LARGE = {
    "bert_base": (12, {"words": 30522}, 768, 109.5e6),
    "clip_vit_b32": (12, {}, 0, 87.849e6),
    "smollm2_135m": (30, {"words": 49152}, 576, 134.515e6),
    "smollm2_135m_step": (30, {"words": 49152}, 576, 134.515e6),
    "whisper_tiny_step": (4, {"words": 51865}, 384, 28.371e6),
}
"""Layers, words, the width of a word's vector and the number of parameters of networks that are large to build.

The step of Whisper has 29.552 million less those that make keys and values of what is heard, once before all steps.
"""


@pytest.mark.parametrize("name", LARGE)
def test_large_networks_have_the_size_of_published_ones(name: str) -> None:
    """The number of parameters, from the first two layers and few words."""
    layers, words, width, parameters = LARGE[name]
    counts = {}
    for some in (1, 2):
        model = zoo.build(name, layers=some, **dict.fromkeys(words, 1000))
        counts[some] = sum(prod(tensor.dims) for tensor in model.graph.initializer)
    left_out = sum(width * (count - 1000) for count in words.values())
    assert counts[2] + (layers - 2) * (counts[2] - counts[1]) + left_out == pytest.approx(parameters, rel=0.002)


def test_tokens_of_smollm2_one_after_another_give_what_all_at_once_give() -> None:
    """The cache: a step after cached tokens, at the place that it is told."""
    sizes = {"layers": 2, "width": 24, "heads": 6, "key_heads": 2, "hidden": 40, "words": 50}
    ids = np.random.default_rng(3).integers(0, 50, (1, 6))
    places = np.arange(6)[None]
    together = load_model(zoo.build("smollm2_135m", tokens=6, **sizes))
    feeds = {"input_ids": ids, "attention_mask": np.ones((1, 6), np.int64), "position_ids": places}
    wanted = evaluate(together, feeds)
    prompt = load_model(zoo.build("smollm2_135m", tokens=3, **sizes))
    cache = evaluate(prompt, {name: value[:, :3] for name, value in feeds.items()})[1:]
    for step in range(3, 6):
        graph = load_model(zoo.build("smollm2_135m_step", past=step, **sizes))
        names = [value.name for value in graph.inputs if value.name.startswith("past")]
        one = slice(step, step + 1)
        feeds = {"input_ids": ids[:, one], "attention_mask": np.ones((1, step + 1), np.int64)}
        feeds |= {"position_ids": places[:, one], **dict(zip(names, cache, strict=True))}
        logits, *rest = evaluate(graph, feeds)
        cache = tuple(rest)
        np.testing.assert_allclose(logits[:, 0], wanted[0][:, step], rtol=1e-4, atol=1e-5)
    for found, right in zip(cache, wanted[1:], strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5)


def _shape(value: onnx.ValueInfoProto) -> tuple[int, ...]:
    return tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)


def test_one_token_of_gpt2_after_another_gives_what_all_at_once_give() -> None:
    """The cache: what a step remembers is what the next one needs."""
    sizes = {"width": 16, "heads": 4, "hidden": 40}
    states = np.random.default_rng(3).standard_normal((1, 6, 16), dtype=np.float32)
    past = np.random.default_rng(4).standard_normal((2, 1, 4, 5, 4), dtype=np.float32)
    together = load_model(zoo.build("gpt2_block", tokens=6, past=5, **sizes))
    wanted = evaluate(together, {"hidden_states": states, "past_key": past[0], "past_value": past[1]})
    key, value = past
    for step in range(6):
        graph = load_model(zoo.build("gpt2_block", tokens=1, past=5 + step, **sizes))
        feeds = {"hidden_states": states[:, step : step + 1], "past_key": key, "past_value": value}
        hidden, key, value = evaluate(graph, feeds)
        np.testing.assert_allclose(hidden[:, 0], wanted[0][:, step], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(key, wanted[1], rtol=1e-4, atol=1e-5)


def test_unknown_names_and_options() -> None:
    with pytest.raises(
        ModelFormatError,
        match=r"no network 'vgg' in the zoo; it has bert_base, mlp, .*, resnet50, clip_vit",
    ):
        zoo.build("vgg")
    with pytest.raises(OptionError, match="depth"):
        zoo.build("mlp", depth=3)
