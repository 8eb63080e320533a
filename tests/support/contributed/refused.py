"""Forms of contributed operators that the importer refuses, each with a node that has it, and the documents' table."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from retune.compiler.frontend.ops.contributed import THEMES, nchwc
from tests.support.contributed import attention, few_bits, fused, quantized
from tests.support.contributed.case import Case, Draw
from tests.support.contributed.references import REFERENCES

DRAWN = {**attention.CASES, **few_bits.CASES, **fused.CASES, **quantized.CASES}


_BLOCKED = "blocked convolutions, of the domain `com.microsoft.nchwc`"


def _changed(name: str, **attributes: Any) -> Case:
    case = DRAWN[name](Draw(0)) if name in DRAWN else REFERENCES[name](Draw(0))[0]
    return replace(case, attributes={**case.attributes, **attributes})


def _with_operand(name: str, index: int) -> Case:
    """The node with one more operand, number `index`."""
    case = DRAWN[name](Draw(0))
    names = list(case.operands)[:index]
    operands = {key: case.operands[key] for key in names}
    operands |= {f"none{number}": None for number in range(len(names), index)}
    return replace(case, operands={**operands, "more": np.zeros(1, "int32")}, constants=case.constants & {*names})


REFUSED: Mapping[tuple[str, str], Case] = {
    ("Attention", "`do_rotary`"): _changed("Attention", do_rotary=1),
    ("Attention", "`past_present_share_buffer`"): _changed("Attention", past_present_share_buffer=1),
    ("CDist", "metrics other than (sq)euclidean"): _changed("CDist", metric="cosine"),
    ("DynamicQuantizeLSTM", "`input_forget`"): _changed("DynamicQuantizeLSTM", input_forget=1),
    ("FusedConv", "other activations than ONNX Runtime's optimizer fuses"): _changed("FusedConv", activation="Mish"),
    ("GatherBlockQuantized", "packed bytes gathered along another axis than the first"): Case(
        "GatherBlockQuantized",
        {"x": np.zeros((2, 32), "uint8"), "i": np.zeros(1, "int64"), "s": np.ones((2, 1), "float32")},
        {"gather_axis": 1, "quantize_axis": 1, "block_size": 64},
    ),
    ("GroupQueryAttention", "quantized caches"): _changed("GroupQueryAttention", k_quant_type="PER_TENSOR"),
    ("GroupQueryAttention", "`sliding_window_cache`"): _changed("GroupQueryAttention", sliding_window_cache=1),
    ("GroupQueryAttention", "`query_seqlens`"): _with_operand("GroupQueryAttention", 16),
    ("Inverse", "more than 16 rows"): Case("Inverse", {"x": np.eye(17, dtype="float32")}),
    ("MultiHeadAttention", "`past_sequence_length`"): _with_operand("MultiHeadAttention", 8),
    ("MultiHeadAttention", "`cache_indirection`"): _with_operand("MultiHeadAttention", 9),
    ("MultiHeadAttention", "`unidirectional` to more or fewer keys than queries"): Case(
        "MultiHeadAttention",
        {"q": np.zeros((1, 2, 4), "float32"), **{name: np.zeros((1, 3, 4), "float32") for name in "kv"}},
        {"num_heads": 1, "unidirectional": 1},
    ),
    ("QAttention", "`do_rotary`"): _changed("QAttention", do_rotary=1),
    ("Rfft, Irfft", "several dimensions"): _changed("Rfft", signal_ndim=2),
    ("RotaryEmbedding", "`is_packed_batching`"): _changed("RotaryEmbedding", is_packed_batching=1),
}
"""By operator and what is refused."""


def table() -> str:
    """The documents' table of contributed operators, by theme, and what is refused of them."""
    rows = ["| theme | operators | refused |", "|---|---|---|"]
    for theme, converters in {**THEMES, _BLOCKED: nchwc.CONVERTERS}.items():
        forms: dict[str, list[str]] = {}
        for op, what in REFUSED:
            if op.split(",")[0] in converters:
                forms.setdefault(op, []).append(what)
        if theme == _BLOCKED:
            forms["Conv"] = ["files written on CPUs with blocks of another size"]
        refused = "; ".join(f"{op}: {', '.join(whats)}" for op, whats in forms.items())
        rows.append(f"| {theme} | {', '.join(sorted(converters))} | {refused} |")
    return "\n".join(rows) + "\n"
