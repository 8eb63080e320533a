"""In: an ONNX model with static shapes. Out: a verified `Graph`. Always: every obstacle is named at once.

Four steps: read the file, look for dynamic dimensions, look for operators without a converter, convert node by node.
A node that fails does not stop the others, so its error comes together with theirs.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path

import onnx
from onnx import numpy_helper

from compiler.errors import (
    DefinitionError,
    DynamicShapeError,
    ModelFormatError,
    UnknownValueError,
    UnsupportedOperatorError,
)
from compiler.frontend.onnx import (
    conv_transpose,
    einsum,
    elementwise,
    indexing,
    logic,
    nn,
    pool,
    quantised,
    recurrent,
    reduce,
    resize,
    shape,
)
from compiler.frontend.onnx.attributes import OnnxNode, read_attributes
from compiler.frontend.onnx.elementwise import Converter
from compiler.frontend.onnx.model_edits import at_supported_opset, expand_functions, with_fixed_inputs
from compiler.frontend.onnx.model_file import check_model, is_standard, opset_of, read_model
from compiler.graph.builder import GraphBuilder
from compiler.graph.ir import Array, Graph, Value
from compiler.graph.ops import verify

_log = logging.getLogger(__name__)

CONVERTERS: Mapping[str, Converter] = {
    **conv_transpose.CONVERTERS,
    **einsum.CONVERTERS,
    **elementwise.CONVERTERS,
    **indexing.CONVERTERS,
    **logic.CONVERTERS,
    **nn.CONVERTERS,
    **pool.CONVERTERS,
    **quantised.CONVERTERS,
    **recurrent.CONVERTERS,
    **reduce.CONVERTERS,
    **resize.CONVERTERS,
    **shape.CONVERTERS,
}

Shapes = Mapping[str, Sequence[int]]
Constants = Mapping[str, Array]


def load_model(
    source: str | Path | bytes | onnx.ModelProto,
    *,
    name: str | None = None,
    shapes: Shapes | None = None,
    constants: Constants | None = None,
) -> Graph:
    """Import an ONNX model.

    `name` is the graph's name (else the file's stem, else the model's own), `shapes` gives static shapes to inputs that
    have dynamic dimensions. `constants` fixes inputs for good: the graph has no such inputs, and may have shapes that
    follow from their values. Inputs and outputs keep their names and order; activations are NCHW as in ONNX. An
    operator without a converter that ONNX defines as a function of others is replaced by that function.

    Raises: ModelFormatError when there is no such file or it is not ONNX; DynamicShapeError when a dimension of an
    input is not a number; UnsupportedOperatorError that names every node which cannot be converted (UnknownValueError
    when all that is missing are values of inputs).
    """
    model = with_fixed_inputs(read_model(source), constants or {})
    if name is None:
        name = Path(source).stem if isinstance(source, str | Path) else model.graph.name
    original = at_supported_opset(model)
    model = expand_functions(original, CONVERTERS)
    opset = opset_of(model)
    inputs = _read_inputs(model, shapes or {})
    _check_operators(model)
    check_model(original)
    graph = _convert(model, name or "network", inputs, opset)
    verify(graph)
    _log.info("imported %s: %d nodes, %d constants", graph.name, len(graph.nodes), len(graph.constants))
    return graph


def _read_inputs(model: onnx.ModelProto, shapes: Shapes) -> list[Value]:
    weights = {tensor.name for tensor in model.graph.initializer}
    fed = [entry for entry in model.graph.input if entry.name not in weights]
    unknown = sorted(set(shapes) - {entry.name for entry in fed})
    if unknown:
        raise ModelFormatError(
            f"a shape is given for {', '.join(unknown)}, but the inputs are {', '.join(entry.name for entry in fed)}"
        )
    values, dynamic = [], []
    for entry in fed:
        if not entry.type.HasField("tensor_type"):
            raise ModelFormatError(f"input {entry.name!r} is not a tensor")
        tensor = entry.type.tensor_type
        extents: list[int] = []
        if entry.name in shapes:
            extents = _given_shape(entry.name, shapes[entry.name], tensor)
        elif not tensor.HasField("shape"):
            dynamic.append(f"input {entry.name!r} has no shape")
        else:
            for axis, dimension in enumerate(tensor.shape.dim):
                if dimension.HasField("dim_value") and dimension.dim_value >= 0:
                    extents.append(dimension.dim_value)
                else:
                    dynamic.append(f"dimension {axis} ({dimension.dim_param or '?'}) of input {entry.name!r}")
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
        values.append(Value(entry.name, tuple(extents), dtype))
    if dynamic:
        raise DynamicShapeError(
            f"the model is not static: {', '.join(dynamic)}; give numbers for these with --shape NAME=1,3,224,224 "
            "(shapes=... in Python), or export the model with fixed shapes"
        )
    return values


def _given_shape(name: str, given: Sequence[int], tensor: onnx.TypeProto.Tensor) -> list[int]:
    """The caller's shape of an input, which must agree with what the model says of it."""
    extents = [int(extent) for extent in given]
    if not tensor.HasField("shape"):
        return extents
    declared = [dimension.dim_value or dimension.dim_param or "?" for dimension in tensor.shape.dim]
    fits = len(extents) == len(declared) and all(
        not isinstance(wanted, int) or wanted == extent for wanted, extent in zip(declared, extents, strict=True)
    )
    if not fits:
        raise ModelFormatError(f"the shape {extents} does not fit input {name!r}, which is {declared} in the model")
    return extents


def _check_operators(model: onnx.ModelProto) -> None:
    """Find the nodes that no converter takes, without converting anything."""
    missing: list[str] = []
    for node in model.graph.node:
        if not (node.op_type in CONVERTERS and is_standard(node.domain)):
            domain = "" if is_standard(node.domain) else f"{node.domain}."
            missing.append(f"{_name_of(node)!r} ({domain}{node.op_type})")
    if missing:
        _refuse(model, missing)


def _refuse(model: onnx.ModelProto, problems: Sequence[str], inputs: Iterable[str] = ()) -> None:
    """`inputs` are those whose values would solve all the problems."""
    count = "1 node" if len(problems) == 1 else f"{len(problems)} nodes"
    what = f"model {model.graph.name or 'without a name'}: cannot convert {count}: {', '.join(problems)}"
    if inputs:
        raise UnknownValueError(f"{what}; fix these inputs with constants={{name: array}}", tuple(inputs))
    raise UnsupportedOperatorError(f"{what}; supported operators: {', '.join(sorted(CONVERTERS))}")


def _convert(model: onnx.ModelProto, name: str, inputs: Sequence[Value], opset: int) -> Graph:
    builder = GraphBuilder(name, inputs)
    names = {"": "", **{value.name: value.name for value in inputs}}
    for tensor in model.graph.initializer:
        names[tensor.name] = builder.constant(numpy_helper.to_array(tensor), tensor.name)
    problems: list[str] = []
    unknown: dict[str, None] = {}
    solvable = 0
    lost: set[str] = set()
    for proto in model.graph.node:
        if lost.intersection(proto.input):
            lost.update(proto.output)
            continue
        node = OnnxNode(
            op_type=proto.op_type,
            name=_name_of(proto),
            inputs=tuple(names[operand] for operand in proto.input),
            outputs=tuple(proto.output),
            attributes=read_attributes(proto),
            opset=opset,
        )
        try:
            results = CONVERTERS[node.op_type](builder, node)
        except UnknownValueError as error:
            problems.append(str(error))
            unknown.update(dict.fromkeys(error.inputs))
            solvable += 1
        except UnsupportedOperatorError as error:
            problems.append(str(error))
        except DefinitionError as error:
            problems.append(f"{node.label}: its operands do not fit: {error}")
        else:
            names.update(zip(proto.output, results, strict=False))
            continue
        lost.update(proto.output)
    if problems:
        _refuse(model, problems, unknown if solvable == len(problems) else ())
    return builder.finish({entry.name: names[entry.name] for entry in model.graph.output})


def _name_of(node: onnx.NodeProto) -> str:
    """The node's name, or the name of its first result where the exporter gave none."""
    return node.name or next(chain(node.output), "") or node.op_type
