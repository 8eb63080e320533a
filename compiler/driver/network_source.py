"""Loads a network from any accepted form (`Graph`, ONNX model or path, zoo name) as a graph before any pass.

Constants of the network take precedence over parameters.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from retune.compiler.errors import ModelFormatError
from retune.compiler.frontend.network import load_network
from retune.compiler.frontend.onnx.importer import load_model
from retune.compiler.graph.ir import Graph
from retune.compiler.runtime.artifact import Array


def graph_of(mod: Any, shapes: Mapping[str, Sequence[int]] | None = None) -> Graph:
    """The graph of a network: a `Graph`, an ONNX model or its path, or a name of the zoo. `shapes` gives static shapes
    to inputs with dynamic dimensions, by name. Raises: ModelError.
    """
    if isinstance(mod, Graph):
        return mod
    if isinstance(mod, (str, Path)):
        return load_network(str(mod), shapes=shapes)
    return load_model(mod, shapes=shapes)


def with_parameters(graph: Graph, params: Mapping[str, Array]) -> Graph:
    """The graph with constants in place of the inputs that `params` names; constants that it has already stay.

    Raises: ModelFormatError when a parameter fits no input.
    """
    known = {value.name: value for value in graph.inputs}
    for name, array in params.items():
        if name in graph.constants:
            continue
        if name not in known:
            raise ModelFormatError(f"the network has no input {name}; its inputs are {', '.join(known)}")
        value = known[name]
        if np.shape(array) != tuple(value.shape) or np.asarray(array).dtype.name != value.dtype:
            raise ModelFormatError(f"the input {name} is {value.dtype}{list(value.shape)}, which its parameter is not")
    inputs = tuple(value for value in graph.inputs if value.name not in params)
    constants = {**{name: np.asarray(array) for name, array in params.items()}, **graph.constants}
    return replace(graph, inputs=inputs, constants=constants) if params else graph
