"""In: how many tokens come and how many are remembered. Out: a block of GPT-2 with its cache as ONNX.

Always: a token attends to all remembered ones, to those that came with it before it, and to itself.
"""

import numpy as np
import onnx

from compiler.frontend.zoo.attention import Sizes, gelu_by_tanh, join_heads, split_heads, weighted_values
from compiler.frontend.zoo.layers import LayerWriter

_HIDDEN_BY = -10000.0


def gpt2_block(
    *,
    batch: int = 1,
    tokens: int = 1,
    past: int = 255,
    width: int = 768,
    heads: int = 12,
    hidden: int = 3072,
    seed: int = 0,
) -> onnx.ModelProto:
    """Inputs `hidden_states` (batch, tokens, width), `past_key` and `past_value` (batch, heads, past, width / heads);
    outputs `hidden_out` and, with `tokens` more rows, `present_key` and `present_value`.
    """
    write = LayerWriter("gpt2_block", None, seed)
    sizes = Sizes(batch, tokens, width, heads, hidden)
    x = write.feed("hidden_states", (batch, tokens, width))
    remembered = [write.feed(name, (batch, heads, past, sizes.head_width)) for name in ("past_key", "past_value")]
    normal = write.layer_norm(x, width, "norm1")
    names = ["query", "new_key", "new_value"]
    parts = write.split(write.linear(normal, (width, 3 * width), "attention_in"), 2, names)
    query, *new = (split_heads(write, part, sizes, part) for part in parts)
    key, value = (
        write.node("Concat", [old, fresh], name, axis=2)
        for old, fresh, name in zip(remembered, new, ("present_key", "present_value"), strict=True)
    )
    mixed = weighted_values(write, query, key, value, sizes.head_width, "attention", mask=_mask(write, tokens, past))
    attended = write.linear(join_heads(write, mixed, sizes, "attention"), (width, width), "attention_out")
    x = write.node("Add", [attended, x], "attended")
    normal = write.layer_norm(x, width, "norm2")
    inner = gelu_by_tanh(write, write.linear(normal, (width, hidden), "up"), "gelu")
    x = write.node("Add", [x, write.linear(inner, (hidden, width), "down")], "hidden_out")
    present = (batch, heads, past + tokens, sizes.head_width)
    return write.finish_all({x: (batch, tokens, width), key: present, value: present})


def _mask(write: LayerWriter, tokens: int, past: int) -> str:
    """What hides later tokens, (tokens, past + tokens); none when there is one token, which sees all."""
    if tokens == 1:
        return ""
    later = np.triu(np.ones((tokens, past + tokens), bool), past + 1)
    return write.weight(np.where(later, _HIDDEN_BY, 0.0).astype(np.float32), "later_tokens")
