"""Removes views among the outputs of a captured PyTorch graph, and makes them again from what the graph returns.

Outputs that share memory must still share it, but a compiled graph returns each output in memory of its own.
"""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch.utils import _pytree as pytree

Argument: TypeAlias = torch.Tensor | torch.SymInt
"""What a captured graph takes: tensors, and the extents that are symbols."""
Returned: TypeAlias = torch.Tensor | Sequence[torch.Tensor]
"""What a graph returns: a part of a graph may return one tensor."""


def as_sequence(returned: Returned) -> Sequence[torch.Tensor]:
    """The results of a graph as a sequence, also where the graph returns one tensor."""
    return (returned,) if isinstance(returned, torch.Tensor) else returned


@dataclass(frozen=True, slots=True)
class _View:
    """A view operator and its arguments after the tensor."""

    target: torch._ops.OpOverload
    args: tuple[torch.fx.node.Argument, ...]
    kwargs: Mapping[str, torch.fx.node.Argument]

    def apply(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.target(tensor, *self.args, **self.kwargs)


class Views:
    """The views among the outputs of `forward`, which is changed in place to return the tensors that they view.

    `restore` turns the results of the changed graph into the outputs of the original.
    """

    def __init__(self, forward: torch.fx.GraphModule) -> None:
        (output,) = forward.graph.find_nodes(op="output")
        chains = [_view_chain(node) for node in output.args[0]]
        roots = [root for root, _ in chains]
        returned: list[torch.fx.Node] = []
        self._sources: list[tuple[int, list[_View]]] = []
        """For each output the index of the returned value that it views, and the views to apply, if any."""
        self._is_plain = True
        for value, (root, nodes) in zip(output.args[0], chains, strict=True):
            is_shared = roots.count(root) > 1 and _is_returnable(root)
            base = root if is_shared else value
            if is_shared and base in returned:
                index = returned.index(base)
            else:
                index = len(returned)
                returned.append(base)
            self._sources.append((index, [_view(node) for node in nodes] if is_shared else []))
            self._is_plain = self._is_plain and not is_shared
        if not self._is_plain:
            output.args = (tuple(returned),)
            for node in reversed([node for _, nodes in chains for node in nodes]):
                if not node.users and node in forward.graph.nodes:
                    forward.graph.erase_node(node)
            forward.recompile()

    def restore(self, returned: Returned) -> Returned:
        """The outputs of the original graph, from those of the changed graph."""
        if self._is_plain:
            return returned
        values, outputs = as_sequence(returned), []
        for index, views in self._sources:
            value = values[index]
            for view in views:
                value = view.apply(value)
            outputs.append(value)
        return outputs


def _view(node: torch.fx.Node) -> _View:
    # `reshape`, as what is compiled is dense whatever the graph's own strides are.
    target = torch.ops.aten.reshape.default if node.target is torch.ops.aten.view.default else node.target
    return _View(target, node.args[1:], dict(node.kwargs))


def _view_chain(value: torch.fx.node.Argument) -> tuple[torch.fx.node.Argument, list[torch.fx.Node]]:
    """The tensor that `value` is a view of, and the view nodes from the tensor to `value`, in order."""
    nodes: list[torch.fx.Node] = []
    while _is_view(value) or (_calls(value, operator.getitem) and _is_view(value.args[0])):
        nodes.insert(0, value)
        value = value.args[0]
    return value, nodes


def _calls(value: torch.fx.node.Argument, function: object) -> bool:
    return isinstance(value, torch.fx.Node) and value.op == "call_function" and value.target is function


def _is_returnable(root: torch.fx.node.Argument) -> bool:
    """Whether a compiled graph may return what others are views of: a value of its own, in a type that ONNX has."""
    if not isinstance(root, torch.fx.Node) or root.op == "placeholder":
        return False
    return not (isinstance(value := root.meta.get("val"), torch.Tensor) and value.is_complex())


def _is_view(value: torch.fx.node.Argument) -> bool:
    """Whether a value is a view of a tensor, or a list of views, as `split` returns it, with arguments that are known
    before the graph runs.
    """
    return (
        isinstance(value, torch.fx.Node)
        and value.op == "call_function"
        and isinstance(value.target, torch._ops.OpOverload)
        and value.target.is_view
        and value.target is not torch.ops.aten.as_strided.default
        and all(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(value.meta.get("val")))
        and not any(isinstance(leaf, torch.fx.Node) for leaf in pytree.tree_leaves((value.args[1:], value.kwargs)))
    )
