"""MiniLM as an ONNX model, from token ids to a vector of the sentence."""

import onnx
from onnx import TensorProto

from retune.compiler.frontend.zoo.attention import Sizes
from retune.compiler.frontend.zoo.bert import encode
from retune.compiler.frontend.zoo.layers import LayerWriter


def minilm_l6(
    *,
    batch: int | str = 1,
    tokens: int | str = 128,
    layers: int = 6,
    width: int = 384,
    heads: int = 12,
    words: int = 30522,
    seed: int = 0,
) -> onnx.ModelProto:
    """Inputs as `bert_base`; output `sentence_embedding` (batch, width), the mean of the vectors of all tokens that the
    mask leaves in, scaled to length 1.

    Configuration of sentence-transformers/all-MiniLM-L6-v2 (Wang et al., "MiniLM", arXiv 2002.10957).
    """
    write = LayerWriter("minilm_l6", None, seed)
    x, attended = encode(write, Sizes(batch, tokens, width, heads, 4 * width), layers, words)
    return write.finish(_sentence(write, x, attended), (batch, width))


def _sentence(write: LayerWriter, x: str, attended: str) -> str:
    """The mean over the tokens that are there, divided by its length."""
    real = write.node("Cast", [attended], "pool_floats", to=TensorProto.FLOAT)
    factors = write.node("Unsqueeze", [real, write.integers((-1,), "pool_axis")], "pool_factors")
    axis = write.integers((1,), "tokens_axis")
    kept = write.node("Mul", [x, factors], "pool_kept")
    total = write.node("ReduceSum", [kept, axis], "pool_total", keepdims=0)
    count = write.node("ReduceSum", [factors, axis], "pool_count", keepdims=0)
    count = write.node("Clip", [count, write.number(1e-9, "pool_least")], "pool_divisor")
    mean = write.node("Div", [total, count], "pool_mean")
    length = write.node("ReduceL2", [mean], "length", axes=[-1], keepdims=1)
    length = write.node("Clip", [length, write.number(1e-12, "length_least")], "length_divisor")
    return write.node("Div", [mean, length], "sentence_embedding")
