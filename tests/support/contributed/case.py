"""A node of a contributed operator with its operands, as a model, in ONNX Runtime and in Retune."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from retune.compiler.frontend.importer import load_model
from retune.compiler.graph.evaluate import evaluate
from retune.compiler.graph.pipeline import optimize

Array = NDArray[Any]
Operands = dict[str, Array | None]
"""Operands by name, in order; None for an omitted operand."""


class Draw:
    """Random numbers of one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def real(self, *shape: int) -> Array:
        """Normally distributed float32."""
        return self.rng.standard_normal(shape).astype(np.float32)

    def scale(self, *shape: int, high: float = 0.05) -> Array:
        """Scales of float32."""
        return np.asarray(self.rng.uniform(high / 5, high, shape), np.float32)

    def stored(self, dtype: str, *shape: int) -> Array:
        """Integers from the whole range of a type."""
        limits = np.iinfo(dtype)
        return self.rng.integers(limits.min, limits.max + 1, shape).astype(dtype)

    def zero(self, dtype: str) -> Array:
        """A zero point near the middle of a type."""
        limits = np.iinfo(dtype)
        middle = (int(limits.min) + int(limits.max) + 1) // 2
        return np.asarray(middle + self.rng.integers(-20, 20), dtype)

    def count(self, low: int, high: int) -> int:
        """An integer from `low` to `high`."""
        return int(self.rng.integers(low, high + 1))

    def pick(self, *choices: Any) -> Any:
        """A member of a sequence."""
        return choices[int(self.rng.integers(len(choices)))]

    def chance(self, share: float = 0.5) -> bool:
        return bool(self.rng.random() < share)


@dataclass(frozen=True)
class Case:
    """One node: operands by name in order (None for an omitted one), `constants` the names of its initializers.

    Floats agree within `tolerance` times the largest; integers within `quanta`.
    """

    op: str
    operands: Mapping[str, Array | None]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    results: tuple[str, ...] = ("y",)
    constants: frozenset[str] = frozenset()
    tolerance: float = 3e-5
    quanta: int = 1
    domain: str = "com.microsoft"
    opset: int = 17

    @property
    def fed(self) -> dict[str, Array]:
        """The inputs of the model."""
        return {n: a for n, a in self.operands.items() if a is not None and n not in self.constants}

    def model(self, results: Sequence[Array | None] = ()) -> onnx.ModelProto:
        """The model; the types of its outputs are those of `results`, or unknown."""
        given = {name: array for name, array in self.operands.items() if array is not None}
        names = [name if array is not None else "" for name, array in self.operands.items()]
        while names and not names[-1]:
            names.pop()
        node = helper.make_node(
            self.op, names, list(self.results), domain=self.domain, name="node", **dict(self.attributes)
        )
        wanted = [name for name in self.results if name]
        kinds = [_entry(name, array) for name, array in zip(wanted, results or [None] * len(wanted), strict=True)]
        graph = helper.make_graph(
            [node],
            "case",
            [_entry(name, array) for name, array in self.fed.items()],
            kinds,
            [numpy_helper.from_array(array, name) for name, array in given.items() if name in self.constants],
        )
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)

    def expected(self) -> list[Array] | None:
        """What ONNX Runtime computes; None if it refuses the node."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 4
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            session = onnxruntime.InferenceSession(self.model().SerializeToString(), options)
            return [np.asarray(array) for array in session.run(None, self.fed)]
        except Exception as error:
            if type(error).__module__.startswith("onnxruntime"):
                return None
            raise

    def computed(self, expected: Sequence[Array]) -> list[Array]:
        """What the optimized graph computes."""
        graph = optimize(load_model(self.model(expected)))
        return list(evaluate(graph, self.fed))

    def faults(self, expected: Sequence[Array], computed: Sequence[Array]) -> list[str]:
        """How results differ from the expected ones by more than they may."""
        wanted, faults = [name for name in self.results if name], []
        for name, right, ours in zip(wanted, expected, computed, strict=True):
            if right.shape != ours.shape or right.dtype != ours.dtype:
                faults.append(f"{name} is {ours.dtype}{list(ours.shape)}, not {right.dtype}{list(right.shape)}")
                continue
            apart = np.abs(right.astype(np.float64) - ours.astype(np.float64)).max(initial=0)
            most = (
                self.quanta
                if right.dtype.kind in "iub"
                else self.tolerance * max(1.0, float(np.abs(right).max(initial=0)))
            )
            if not apart <= most:
                faults.append(f"{name} is off by {apart}, and may be by {most}")
        return [f"{self.label}: {fault}" for fault in faults]

    @property
    def label(self) -> str:
        """The node in a line."""
        shapes = {name: None if a is None else f"{a.dtype}{list(a.shape)}" for name, a in self.operands.items()}
        return f"{self.op} of {shapes} {dict(self.attributes)}"


def _entry(name: str, array: Array | None) -> onnx.ValueInfoProto:
    if array is None:
        return onnx.ValueInfoProto(name=name)
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
