"""Runs seeds of one kind in a worker process."""

from collections.abc import Callable
from typing import Any

from benchmarks.correctness import onnx_graphs, torch_functions
from benchmarks.correctness.compare import Outcome
from retune.compiler.codegen import expressions
from retune.compiler.ir.expr import BinaryOp, is_float
from tests.support.property.tuned import tuned

_emitter: Any = expressions
_FAULTS = {BinaryOp.MUL: BinaryOp.ADD, BinaryOp.ADD: BinaryOp.SUB, BinaryOp.SUB: BinaryOp.ADD}


def programs(seed: int) -> Outcome:
    """An operator tuned for four trials: every program in fenced buffers against the interpreter."""
    verdicts = list(tuned(seed))
    wrong = tuple(verdict.failure for verdict in verdicts if verdict.failure)
    refused = tuple(verdict.refusal for verdict in verdicts if verdict.refusal)
    return Outcome(len(verdicts) - len(wrong) - len(refused), wrong, refused)


KINDS: dict[str, tuple[Callable[[int], Outcome], str, tuple[str, ...]]] = {
    "nnsmith": (onnx_graphs.nnsmith, "ONNX Runtime without optimizations, onnx.reference", ("nnsmith", "torch")),
    "nodes": (onnx_graphs.nodes, "ONNX Runtime without optimizations, onnx.reference", ()),
    "nested": (onnx_graphs.nested, "ONNX Runtime without optimizations, onnx.reference", ()),
    "torch": (torch_functions.views, "eager PyTorch", ("torch",)),
    "programs": (programs, "interpreter, fenced buffers", ()),
}
"""What makes and judges a seed of each kind, what its results are compared with, and the packages that it needs."""


def outcome(kind: str, seed: int, planted: bool = False) -> Outcome:
    """What comes of one seed. `planted` swaps operations on floats in this process's code generator."""
    if planted and _emitter.arithmetic.__name__ != "_faulty":
        sound = _emitter.arithmetic

        def _faulty(emit: Any, op: BinaryOp, lhs: Any, rhs: Any, *more: Any) -> Any:
            return sound(emit, _FAULTS.get(op, op) if is_float(lhs.dtype) else op, lhs, rhs, *more)

        _emitter.arithmetic = _faulty
    return KINDS[kind][0](seed)
