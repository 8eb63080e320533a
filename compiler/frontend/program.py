"""Imports an ONNX model with symbolic dimensions, conditions and loops as a verified `Program`.

Parts with static shapes become static regions. The program stores each weight of the model once, under its name.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import onnx

from retune.compiler.core.errors import DefinitionError, ModelFormatError
from retune.compiler.core.input_shapes import Size
from retune.compiler.frontend.canonicalize import Canonicalize, definitions
from retune.compiler.frontend.dependence import bodies, check_bodies
from retune.compiler.frontend.importer import Constants, check_operators, dtype_of, open_model
from retune.compiler.frontend.model_file import check_model, inferred_graph, without_large_weights
from retune.compiler.frontend.ops.pool import without_ceil_mode
from retune.compiler.frontend.partition import BuilderContext
from retune.compiler.frontend.types import (
    check_outputs,
    declare_sizes,
    fed_inputs,
    form_of,
    narrow_dims,
    param_of,
    tensor_type,
    write_dims,
)
from retune.compiler.graph.ir import Array
from retune.compiler.graph.program import MAIN, Function, Program
from retune.compiler.graph.region import TENSOR, Dimension, Dims, Param

_log = logging.getLogger(__name__)

Dimensions = Mapping[str, Sequence[Dimension | Size]]


def load_program(
    source: str | Path | bytes | onnx.ModelProto,
    *,
    name: str | None = None,
    shapes: Dimensions | None = None,
    constants: Constants | None = None,
) -> Program:
    """Import an ONNX model whose shapes and control flow need not be known before it runs.

    `name` is the program's (else the file's stem, else the model's own). `shapes` gives dimensions to inputs: a number,
    a symbol, None for any, or a `Size`; dimensions of other inputs with the same symbol in the file follow. `constants`
    fixes inputs for good. Inputs and outputs keep their names and order. Dimensions with one symbol are equal at run
    time.

    Raises: ModelFormatError when there is no such file or it is not ONNX, or a shape, of an output too, does not fit;
    UnsupportedOperatorError that names every node without a converter.
    """
    opened = open_model(source, name, constants)
    model = opened.model
    params, ranges = _params(model, shapes or {})
    check_operators(model)
    check_bodies(model.graph)
    check_model(_of_some_rank(opened.original))
    tidy = Canonicalize(definitions(model.graph))
    tidy.weights(model.graph.initializer)
    graph = tidy.graph(_with_types(model, params), {}, {tensor.name for tensor in model.graph.initializer})
    context = BuilderContext(opened.opset, tidy.constants, tidy.constant, tidy.fresh)
    context.define(MAIN, graph, params)
    outputs = tuple(entry.name for entry in model.graph.output)
    program = Program(
        opened.name, context.functions, _used_constants(context.functions, tidy.constants), outputs, ranges
    )
    try:
        program.verify()
    except DefinitionError as error:
        raise ModelFormatError(f"model {program.name}: {error}") from None
    check_outputs(model, program.main.results)
    _log.info("imported %s: %d functions, %d regions", program.name, len(program.functions), len(program.regions()))
    return program


def _params(model: onnx.ModelProto, shapes: Dimensions) -> tuple[tuple[Param, ...], dict[str, tuple[int, int]]]:
    """The inputs of the model, with the caller's dimensions, and the ranges of symbols."""
    params = [replace(param_of(entry), dtype=dtype_of(entry)) for entry in fed_inputs(model, shapes)]
    ranges: dict[str, tuple[int, int]] = {}
    dims_of = {param.name: declare_sizes(param, shapes[param.name], ranges) for param in params if param.name in shapes}
    meanings: dict[Dimension, Dimension] = {}
    for param in params:
        for symbol, dim in zip(param.dims or (), dims_of.get(param.name, ()), strict=False):
            meanings.setdefault(symbol, dim if isinstance(symbol, str) else symbol)
    return tuple(
        narrow_dims(param, dims_of[param.name])
        if param.name in dims_of
        else replace(param, dims=param.dims and tuple(meanings.get(dim, dim) for dim in param.dims))
        for param in params
    ), ranges


def _of_some_rank(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model for ONNX's checker, which rejects inputs of unknown rank."""
    if all(tensor_type(entry).HasField("shape") for entry in model.graph.input):
        return model
    light = onnx.ModelProto()
    light.CopyFrom(without_large_weights(model))
    for entry in light.graph.input:
        if entry.type.WhichOneof("value"):
            tensor_type(entry).shape.SetInParent()
    return light


def _with_types(model: onnx.ModelProto, params: Sequence[Param]) -> onnx.GraphProto:
    """The graph with ONNX's inferred types, also in its sub-graphs, without large weights."""
    light = onnx.ModelProto()
    light.CopyFrom(without_large_weights(model))
    dims_of = {param.name: param.dims for param in params if param.dims is not None}
    for entry in light.graph.input:
        if entry.name in dims_of:
            write_dims(entry, dims_of[entry.name])
    _forget_claims(light.graph)
    graph = inferred_graph(light)
    pools = [pool for pool, _ in _pools(model.graph, {})]
    inferred = pools
    # A pool's new extents may change the next pool's.
    while (padded := [_pad(pool, dims) for pool, (_, dims) in zip(pools, _pools(graph, {}), strict=True)]) != inferred:
        for (node, _), inferred_pool in zip(_pools(light.graph, {}), padded, strict=True):
            node.CopyFrom(inferred_pool)
        graph, inferred = inferred_graph(light), padded
    for (node, _), pool in zip(_pools(graph, {}), pools, strict=True):
        node.CopyFrom(pool)
    for entry, declared in zip(graph.output, model.graph.output, strict=True):
        if form_of(declared) != TENSOR and not entry.type.WhichOneof("value"):
            entry.type.CopyFrom(declared.type)
        elif not tensor_type(entry).elem_type and form_of(declared) == TENSOR:
            # Operators without inference leave no type; the file's element type is checked at the end.
            entry.type.tensor_type.elem_type = declared.type.tensor_type.elem_type
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [entry for entry in graph.input if entry.name not in weights]
    del graph.input[:]
    graph.input.extend(inputs)
    return graph


def _pools(graph: onnx.GraphProto, known: Mapping[str, Dims | None]) -> Iterator[tuple[onnx.NodeProto, Dims | None]]:
    """The pools of a graph and its sub-graphs, with the dimensions of their inputs."""
    known = {**known, **{entry.name: param_of(entry).dims for entry in (*graph.input, *graph.value_info)}}
    for node in graph.node:
        if node.op_type in ("AveragePool", "LpPool", "MaxPool"):
            yield node, known.get(node.input[0])
        for inner in bodies(node):
            yield from _pools(inner, known)


def _pad(pool: onnx.NodeProto, dims: Dims | None) -> onnx.NodeProto:
    extents = tuple(dim for dim in (dims or ())[2:] if isinstance(dim, int))
    return without_ceil_mode(pool, extents) if dims and len(extents) == len(dims) - 2 > 0 else pool


def _forget_claims(graph: onnx.GraphProto) -> None:
    """Remove the file's inner shapes, which may belong to another input, or to a loop's first iteration.

    Shapes that follow from the inputs are inferred again. Scalars that a loop carries stay, and its collected rows.
    """
    _forget(graph.value_info)
    for node in graph.node:
        for inner in bodies(node):
            carried = len(node.input) - 2 if node.op_type == "Loop" else 0
            turned = (*inner.input[2 : 2 + carried], *inner.output[1 : 1 + carried])
            _forget(entry for entry in turned if entry.type.tensor_type.shape.dim)
            if node.op_type == "If":
                _forget(inner.output)
            if node.op_type == "Scan":
                _forget_extents((*inner.input, *inner.output))
            _forget_claims(inner)


def _forget(entries: Iterable[onnx.ValueInfoProto]) -> None:
    for entry in entries:
        if entry.type.HasField("tensor_type"):
            entry.type.tensor_type.ClearField("shape")


def _forget_extents(entries: Iterable[onnx.ValueInfoProto]) -> None:
    for entry in entries:
        for dimension in entry.type.tensor_type.shape.dim:
            dimension.Clear()


def _used_constants(functions: Mapping[str, Function], constants: Mapping[str, Array]) -> dict[str, Array]:
    used = {name for function in functions.values() for name in function.constants()}
    return {name: array for name, array in constants.items() if name in used}
