"""Imports an ONNX model with static shapes as a verified `Graph`; all unsupported nodes are named at once.

Four steps: read the file, look for dynamic dimensions, look for operators without a converter, convert node by node. A
failing node does not stop the others, so their errors come together.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import numpy as np
import onnx

from retune.compiler.core.errors import DynamicShapeError, ModelFormatError, UnknownValueError, UnsupportedOperatorError
from retune.compiler.frontend.model_edits import (
    all_nodes,
    at_supported_opset,
    expand_functions,
    with_contributed_domain,
    with_fixed_inputs,
    with_sorted_nodes,
)
from retune.compiler.frontend.model_file import (
    CONTRIBUTED_DOMAIN,
    STANDARD_DOMAINS,
    check_model,
    operator_of,
    opset_of,
    read_model,
)
from retune.compiler.frontend.ops import contributed, trees
from retune.compiler.frontend.ops.attributes import TensorSequence
from retune.compiler.frontend.ops.conversion import Conversion, missing_operator
from retune.compiler.frontend.ops.elementwise import DTYPES, Converter
from retune.compiler.frontend.ops.standard import STANDARD
from retune.compiler.frontend.types import check_outputs, fed_inputs, form_of, narrow_dims, param_of, tensor_type
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.ir import Array, Graph, Value
from retune.compiler.graph.region import SEQUENCE, TENSOR, Param
from retune.compiler.graph.verify import verify

_log = logging.getLogger(__name__)

CONVERTERS: Mapping[str, Converter] = {**STANDARD, **contributed.CONVERTERS, **trees.CONVERTERS}
"""Converters by `operator_of` their nodes."""

_MOST_NAMED = 10
"""Nodes named in one message."""

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

    `name` is the graph's name (else the file's stem, else the model's own), `shapes` gives static shapes to inputs with
    dynamic dimensions. `constants` fixes inputs for good: the graph lacks these inputs, and may have shapes that follow
    from their values. Inputs and outputs keep their names and order; activations are NCHW as in ONNX. An operator
    without a converter is replaced by its function, if ONNX defines it as one.

    Raises: ModelFormatError when there is no such file or it is not ONNX, when its operator set is too old or too new,
    or an output's declaration contradicts its nodes; DynamicShapeError when a dimension of an input is not a number;
    UnsupportedOperatorError that names every node which cannot be converted (UnknownValueError when only values of
    inputs are missing).
    """
    opened = open_model(source, name, constants, lazily=True)
    inputs = read_inputs(opened.model, shapes or {})
    # Before ONNX's checker, which reports only the first unknown operator, in its own words.
    check_operators(opened.model)
    check_model(opened.original)
    graph = _convert(opened.model, opened.name, inputs, opened.opset)
    verify(graph)
    _log.info("imported %s: %d nodes, %d constants", graph.name, len(graph.nodes), len(graph.constants))
    return graph


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """A network's `name`, the model for ONNX's checker, the model to convert, and its operator set."""

    name: str
    original: onnx.ModelProto
    model: onnx.ModelProto
    opset: int


def open_model(
    source: str | Path | bytes | onnx.ModelProto, name: str | None, constants: Constants | None, *, lazily: bool = False
) -> OpenedModel:
    """Read a model, fix inputs, and expand ONNX's functions; `lazily` as in `read_model`.

    Raises: ModelFormatError when it cannot be read, or its operator set is too old or too new.
    """
    model = with_fixed_inputs(read_model(source, lazily=lazily), constants or {})
    model = with_contributed_domain(with_sorted_nodes(model), CONVERTERS)
    if name is None:
        name = Path(source).stem if isinstance(source, str | Path) else model.graph.name
    original = at_supported_opset(model)
    model = expand_functions(original, CONVERTERS)
    return OpenedModel(name or "network", original, model, opset_of(model))


def read_inputs(model: onnx.ModelProto, shapes: Shapes) -> list[Value]:
    """The inputs of a model, with the caller's shapes, which fix the same symbols in other inputs too.

    Raises: ModelFormatError, DynamicShapeError, UnsupportedOperatorError for an unknown element type.
    """
    values, dynamic = [], []
    entries = fed_inputs(model, shapes)
    fixed: dict[str, int] = {}
    for entry in (entry for entry in entries if entry.name in shapes):
        symbols = (dimension.dim_param for dimension in entry.type.tensor_type.shape.dim)
        fixed |= dict(zip(symbols, _given_shape(entry, shapes[entry.name]), strict=False))
    for entry in entries:
        if form_of(entry) != TENSOR:
            raise DynamicShapeError(_only_in_programs("input", param_of(entry)))
        tensor = entry.type.tensor_type
        extents: list[int] = []
        if entry.name in shapes:
            extents = _given_shape(entry, shapes[entry.name])
        elif not tensor.HasField("shape"):
            dynamic.append(f"input {entry.name!r} has no shape")
        else:
            for axis, dimension in enumerate(tensor.shape.dim):
                if dimension.HasField("dim_value") and dimension.dim_value >= 0:
                    extents.append(dimension.dim_value)
                elif dimension.dim_param and dimension.dim_param in fixed:
                    extents.append(fixed[dimension.dim_param])
                else:
                    dynamic.append(f"dimension {axis} ({dimension.dim_param or '?'}) of input {entry.name!r}")
        values.append(Value(entry.name, tuple(extents), dtype_of(entry)))
    if dynamic:
        raise DynamicShapeError(
            f"the model is not static: {', '.join(dynamic)}; give numbers for these with --shape NAME=1,3,224,224 "
            "(shapes=... in Python), or ranges with --shape NAME=1..8,3,224,224 (compile(dynamic=True) in Python)"
        )
    return values


def dtype_of(entry: onnx.ValueInfoProto) -> str:
    """The dtype of an input. Raises: ModelFormatError when it has none, UnsupportedOperatorError when it is unknown."""
    kind = tensor_type(entry).elem_type
    if kind not in onnx.TensorProto.DataType.values() or kind == onnx.TensorProto.UNDEFINED:
        raise ModelFormatError(f"input {entry.name!r} has the element type {kind}, which ONNX does not have")
    name: str = onnx.helper.tensor_dtype_to_np_dtype(kind).name
    if name not in DTYPES:
        raise UnsupportedOperatorError(f"input {entry.name!r} has elements of {name}; known: {', '.join(DTYPES)}")
    return name


def _given_shape(entry: onnx.ValueInfoProto, shape: Sequence[int]) -> list[int]:
    """The caller's shape of an input, which must agree with the model's declaration."""
    if not isinstance(shape, Sequence) or any(
        not isinstance(extent, int | np.integer) or extent < 0 for extent in shape
    ):
        raise ModelFormatError(f"the shape of input {entry.name!r} must be integers such as (1, 3, 32), not {shape!r}")
    extents = [int(extent) for extent in shape]
    declared = param_of(entry)
    # A declared 0 may be any number, as some exporters write it.
    dims = None if declared.dims is None else tuple(dim or None for dim in declared.dims)
    narrow_dims(Param(entry.name, declared.dtype, dims), extents)
    return extents


def _only_in_programs(what: str, param: Param) -> str:
    return f"the {what} {param} is no tensor, which only programs have: pass dynamic=True, or call load_program"


def check_operators(model: onnx.ModelProto) -> None:
    """Check that all nodes have a converter, without converting anything."""
    missing = [node for node in all_nodes(model.graph) if operator_of(node) not in CONVERTERS]
    if missing:
        known = (*STANDARD_DOMAINS, CONTRIBUTED_DOMAIN, trees.DOMAIN)
        foreign = sorted({node.domain for node in missing} - {*known})
        unknown = dict.fromkeys(node.op_type for node in missing)
        near = [name for op_type in unknown for name in get_close_matches(op_type, CONVERTERS, 1) if name != op_type]
        hints = (
            [f"only operators of ONNX and {CONTRIBUTED_DOMAIN} are known, not those of {', '.join(foreign)}"]
            if foreign
            else []
        )
        hints += [f"nearest supported operators: {', '.join(dict.fromkeys(near[:_MOST_NAMED]))}"] if near else []
        hints.append("docs/reference/onnx.md lists what is missing")
        _refuse(model, list(map(missing_operator, missing)), hints=hints)


def _refuse(
    model: onnx.ModelProto, problems: Sequence[str], inputs: Iterable[str] = (), hints: Sequence[str] = ()
) -> None:
    """`inputs` are the inputs whose values would solve all problems."""
    count = "1 node" if len(problems) == 1 else f"{len(problems)} nodes"
    named = [*problems[:_MOST_NAMED], *([f"and {len(problems) - _MOST_NAMED} more"] * (len(problems) > _MOST_NAMED))]
    what = f"model {model.graph.name or 'without a name'}: cannot convert {count}: {', '.join(named)}"
    if inputs:
        raise UnknownValueError(
            f"{what}; fix these inputs with constants={{name: array}}, or use dynamic=True", tuple(inputs)
        )
    raise UnsupportedOperatorError("; ".join((what, *hints)))


def _convert(model: onnx.ModelProto, name: str, inputs: Sequence[Value], opset: int) -> Graph:
    builder = GraphBuilder(name, inputs)
    conversion = Conversion(builder, CONVERTERS, opset)
    names = conversion.convert(model.graph, {value.name: value.name for value in inputs})
    if conversion.problems:
        solvable = conversion.solvable == len(conversion.problems)
        _refuse(model, conversion.problems, conversion.unknown if solvable else ())
    absent = [entry.name for entry in model.graph.output if entry.name not in names]
    if absent:
        raise ModelFormatError(f"model {name}: nothing computes the output {absent[0]!r}")
    outputs = {entry.name: names[entry.name] for entry in model.graph.output}
    for entry in model.graph.output:
        declared = param_of(entry)
        if isinstance(outputs[entry.name], TensorSequence):
            declared = Param(entry.name, declared.dtype, form=SEQUENCE)
        if not declared.is_tensor:
            raise DynamicShapeError(_only_in_programs("output", declared))
    if len(outputs) < len(model.graph.output):
        raise ModelFormatError(f"model {name}: two outputs have the same name; put an Identity node before one of them")
    graph = builder.finish(outputs)
    check_outputs(model, [Param(each.name, each.dtype, each.shape) for each in graph.output_values()])
    return graph
