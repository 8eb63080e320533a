"""Operators of PyTorch's fast paths for attention and encoder layers, written in operators that can be exported.

In inference `torch.nn.MultiheadAttention` and `torch.nn.TransformerEncoderLayer` call operators that PyTorch does not
export to ONNX. Masks are true, or not 0, where nothing is read. Without any key a result is 0, as in
`scaled_dot_product_attention`, and not NaN.
"""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_ATTENTION = torch.ops.aten._native_multi_head_attention.default
_ENCODER_LAYER = torch.ops.aten._transformer_encoder_layer_fwd.default
_OF_SCORES, _OF_KEYS = 0, 1
"""Types of masks: of all scores of a head; of keys, by sequence. Others have all dimensions."""


def _attention(*given: Any, **named: Any) -> tuple[Tensor, Tensor]:
    call = _arguments(_ATTENTION, given, named)
    inputs, width = (call.query, call.key, call.value), call.embed_dim // call.num_head
    if call.query is call.key is call.value:
        parts = functional.linear(call.query, call.qkv_weight, call.qkv_bias).chunk(3, -1)
    else:
        weights = zip(call.qkv_weight.chunk(3), call.qkv_bias.chunk(3), strict=True)
        parts = tuple(functional.linear(x, *pair) for x, pair in zip(inputs, weights, strict=True))
    query, key, value = (part.unflatten(-1, (call.num_head, width)).transpose(1, 2) for part in parts)
    kept = None if call.mask is None else _attention_mask(call.mask, call.mask_type)
    mixed = functional.scaled_dot_product_attention(query, key, value, kept)
    result = functional.linear(mixed.transpose(1, 2).flatten(-2), call.proj_weight, call.proj_bias)
    if not call.need_weights:
        return result, result.new_empty(0)
    scores = query @ key.transpose(-2, -1) * width**-0.5
    shares = (scores if kept is None else scores.masked_fill(~kept, -torch.inf)).softmax(-1)
    return result, shares.mean(1) if call.average_attn_weights else shares


def _attention_mask(mask: Tensor, mask_type: int | None) -> Tensor:
    """Where scores of all heads are read: a mask that broadcasts to them."""
    kept = ~mask.to(torch.bool)
    if mask_type == _OF_KEYS:
        return kept[:, None, None, :]
    return kept[None, None] if mask_type == _OF_SCORES else kept


def _encoder_layer(*given: Any, **named: Any) -> Tensor:
    call = _arguments(_ENCODER_LAYER, given, named)

    def attend(x: Tensor) -> Tensor:
        weights = (call.qkv_weight, call.qkv_bias, call.proj_weight, call.proj_bias)
        sizes = (call.embed_dim, call.num_heads)
        return _attention(x, x, x, *sizes, *weights, call.mask, need_weights=False, mask_type=call.mask_type)[0]

    def feed_forward(x: Tensor) -> Tensor:
        hidden = functional.linear(x, call.ffn_weight_1, call.ffn_bias_1)
        hidden = functional.gelu(hidden) if call.use_gelu else hidden.relu()
        return functional.linear(hidden, call.ffn_weight_2, call.ffn_bias_2)

    def norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return functional.layer_norm(x, (call.embed_dim,), weight, bias, call.eps)

    first, second = (call.norm_weight_1, call.norm_bias_1), (call.norm_weight_2, call.norm_bias_2)
    if call.norm_first:
        x: Tensor = call.src + attend(norm(call.src, *first))
        return x + feed_forward(norm(x, *second))
    x = norm(call.src + attend(call.src), *first)
    return norm(x + feed_forward(x), *second)


def _arguments(operator: Any, given: Sequence[Any], named: Mapping[str, Any]) -> SimpleNamespace:
    """The arguments of a call by the names in the operator's schema, defaults included."""
    params = operator._schema.arguments
    values = {param.name: param.default_value for param in params if param.has_default_value()}
    values |= zip((param.name for param in params), given, strict=False)
    return SimpleNamespace(**{**values, **named})


DECOMPOSITIONS = {_ATTENTION: _attention, _ENCODER_LAYER: _encoder_layer}
"""What stands for an operator, as AOTAutograd takes it."""
