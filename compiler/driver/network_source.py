"""Loads a network from any accepted form (`Graph`, ONNX model or path, zoo name) as a graph before any pass."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from retune.compiler.core.errors import ModelFormatError
from retune.compiler.frontend.importer import load_model
from retune.compiler.frontend.network import load_network
from retune.compiler.graph.ir import Graph
from retune.compiler.runtime.artifact import Array


def graph_of(
    mod: Any, shapes: Mapping[str, Sequence[int]] | None = None, params: Mapping[str, Array] | None = None
) -> Graph:
    """The graph of a network: a `Graph`, an ONNX model or its path, or a name of the zoo. `shapes` gives static shapes
    to inputs with dynamic dimensions, `params` values to inputs and constants, by name. Raises: ModelError.
    """
    if isinstance(mod, Graph):
        return with_parameters(mod, params or {})
    constants = {name: np.asarray(array) for name, array in (params or {}).items()}
    if isinstance(mod, (str, Path)):
        return load_network(str(mod), shapes=shapes, constants=constants)
    return load_model(mod, shapes=shapes, constants=constants)


def with_parameters(graph: Graph, params: Mapping[str, Array]) -> Graph:
    """The graph with constants in place of the inputs and constants that `params` names.

    Raises: ModelFormatError when a parameter fits none.
    """
    known = {value.name: (value.dtype, tuple(value.shape)) for value in graph.inputs}
    own = {name: (array.dtype.name, array.shape) for name, array in graph.constants.items()}
    given = {name: np.asarray(array) for name, array in params.items()}
    for name, array in given.items():
        if name not in known | own:
            raise ModelFormatError(f"the network has no input {name}; its inputs are {', '.join(known)}")
        dtype, shape = (known | own)[name]
        if (array.dtype.name, array.shape) != (dtype, shape):
            raise ModelFormatError(f"the input {name} is {dtype}{list(shape)}, which its parameter is not")
    inputs = tuple(value for value in graph.inputs if value.name not in params)
    constants = {**graph.constants, **given}
    return replace(graph, inputs=inputs, constants=constants) if params else graph
