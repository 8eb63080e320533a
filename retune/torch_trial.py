"""Which operators of a captured PyTorch graph Retune compiles, found by exporting many at once and by bisection."""

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import FlopCounterMode

from retune.compiler.core.errors import DefinitionError, LoweringError, ModelError, NotYetError
from retune.compiler.frontend.importer import load_model
from retune.models import export_onnx

DECLINED = (ModelError, DefinitionError, LoweringError, NotYetError)
"""What a graph raises that Retune does not take."""


class Trial(torch.fx.Interpreter):
    """Runs a graph operator by operator, then finds out which Retune can compile: `taken` are the names of these nodes,
    `declined` the others. Operators alike are one case.

    An export costs more than a second, whatever it exports: all cases are exported as one model, and bisection finds
    the cases that make it fail.
    """

    def __init__(self, forward: torch.fx.GraphModule) -> None:
        super().__init__(forward)
        self.taken: set[str] = set()
        self.declined: list[torch.fx.Node] = []
        self._cases: dict[str, _Operator | None] = {}
        self._keys: dict[torch.fx.Node, str] = {}
        self._flops: dict[str, int] = {}

    @property
    def flops(self) -> int:
        return sum(self._flops.values())

    @property
    def declined_flops(self) -> int:
        return sum(self._flops[node.name] for node in self.declined)

    def judge(self, *arguments: object) -> None:
        """Run the graph and fill `taken` and `declined`."""
        self.run(*arguments)
        # Alike names side by side: what is declined of an operator is found in few exports.
        cases = sorted((key, case) for key, case in self._cases.items() if case is not None and case.tensors)
        failing = {key for key, case in self._cases.items() if case is None}
        failing.update(key for key, _ in _declined_of(cases))
        for node, key in self._keys.items():
            if key in failing:
                self.declined.append(node)
            else:
                self.taken.add(node.name)

    def run_node(self, n: torch.fx.Node) -> Any:
        if n.op != "call_function":
            return super().run_node(n)
        with FlopCounterMode(display=False) as counter:
            result = super().run_node(n)
        self._flops[n.name] = counter.get_total_flops()
        leaves, structure = pytree.tree_flatten(self.fetch_args_kwargs_from_env(n))
        read = None if isinstance(result, torch.Tensor) else _read_items(n)
        kinds = [(tuple(leaf.shape), leaf.dtype) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        key = self._keys[n] = f"{n.target} {kinds} {read}"
        if key not in self._cases:
            is_tensors = all(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(result))
            # others are numbers that follow from shapes
            self._cases[key] = _Operator(n.target, leaves, structure, read) if is_tensors else None
        return result


class _Operator:
    """An operator with all arguments that are no tensors fixed, and with `tensors` like the others, whose values are
    undefined. `read` are the items that the graph reads of a sequence, None where it reads all that is returned.
    """

    def __init__(
        self,
        target: torch._ops.OpOverload,
        leaves: Sequence[object],
        structure: pytree.TreeSpec,
        read: Sequence[int] | None,
    ) -> None:
        self._target = target
        self._read = read
        self._structure = structure
        self._fixed = [None if isinstance(leaf, torch.Tensor) else (leaf,) for leaf in leaves]
        # No copies: memory that is never written is never taken from the machine.
        self.tensors = tuple(
            torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype)
            for leaf in leaves
            if isinstance(leaf, torch.Tensor)
        )

    def __call__(self, tensors: Iterator[torch.Tensor]) -> object:
        """What the graph reads of the result."""
        leaves = [next(tensors) if fixed is None else fixed[0] for fixed in self._fixed]
        args, kwargs = pytree.tree_unflatten(leaves, self._structure)
        result = self._target(*args, **kwargs)
        return result if self._read is None else [result[item] for item in self._read]


class _Operators(torch.nn.Module):
    """Operators side by side, none of which reads what another returns."""

    def __init__(self, cases: Sequence[_Operator]) -> None:
        super().__init__()
        self._cases = cases

    def forward(self, *tensors: torch.Tensor) -> list[object]:
        """What the operators return."""
        rest = iter(tensors)
        return [case(rest) for case in self._cases]


def _declined_of(cases: Sequence[tuple[str, _Operator]], *, is_known: bool = False) -> list[tuple[str, _Operator]]:
    """The cases that cannot be exported and imported, by bisection; `is_known` says that a case cannot."""
    if not cases:
        return []
    if (len(cases) == 1 or not is_known) and _are_taken([case for _, case in cases]):
        return []
    if len(cases) == 1:
        return list(cases)
    # Group testing by halves: d failures of n take about d log2(n) exports instead of n. If none fails in the first
    # half, a case must in the second, whose test is saved.
    half = len(cases) // 2
    before = _declined_of(cases[:half])
    return before + _declined_of(cases[half:], is_known=not before)


def _are_taken(cases: Sequence[_Operator]) -> bool:
    """Whether a model of these operators can be exported and imported."""
    try:
        proto, _ = export_onnx(_Operators(cases).eval(), tuple(tensor for case in cases for tensor in case.tensors), {})
        load_model(proto)
    except DECLINED:
        return False
    return True


def _read_items(node: torch.fx.Node) -> list[int] | None:
    """Which items the graph reads of what a node returns, a sequence; None where something reads all of it."""
    if not node.users or any(user.target is not operator.getitem for user in node.users):
        return None
    return sorted({int(user.args[1]) for user in node.users})
