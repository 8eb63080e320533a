"""Rewrites a `ModelProto` into an equivalent one that is easier to convert; the caller's model stays unchanged."""

import logging
from collections.abc import Callable, Container, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

import numpy as np
import onnx
from onnx import helper, inliner, numpy_helper, version_converter

from retune.compiler.core.errors import ModelFormatError
from retune.compiler.frontend.dependence import bodies, read_names
from retune.compiler.frontend.model_file import (
    CONTRIBUTED_DOMAIN,
    MOST_NODES,
    OLDEST_OPSET,
    is_standard,
    operator_of,
    version_of,
)
from retune.compiler.graph.ir import Array

_log = logging.getLogger(__name__)

_IR_OF_OLDEST = 6
"""The oldest supported IR version; older files list constants among the inputs."""
_OPSET_OF_OLD_SCANS = 8
_OLD_SCANS = "retune.scan.8"
_DEEPEST = 8
"""Most levels of functions within functions; ONNX's own have at most three."""
_DEEPEST_CALLS = 200
"""Limit for the model's own functions: the inliner is recursive, and a stack overflow ends the process."""
_MOST_BYTES = 2**31 - 1
"""Limit of a protocol message."""


def with_fixed_inputs(model: onnx.ModelProto, constants: Mapping[str, Array]) -> onnx.ModelProto:
    """The model with initializers in place of the inputs or initializers of these names.

    Raises: ModelFormatError when there is no such input or initializer, or an array does not have its type and shape.
    """
    if not constants:
        return model
    weights = [
        helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims) for tensor in model.graph.initializer
    ]
    known = {entry.name: entry for entry in (*weights, *model.graph.input)}
    unknown = sorted(set(constants) - set(known))
    if unknown:
        raise ModelFormatError(f"values are given for {', '.join(unknown)}, which the model has no input for")
    for name, array in constants.items():
        _check_fixed(known[name], array)
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    kept = [entry for entry in model.graph.input if entry.name not in constants]
    del fixed.graph.input[:]
    fixed.graph.input.extend(kept)
    # The file's type of the input still holds for its value.
    fixed.graph.value_info.extend(entry for entry in model.graph.input if entry.name in constants)
    kept_weights = [tensor for tensor in model.graph.initializer if tensor.name not in constants]
    del fixed.graph.initializer[:]
    fixed.graph.initializer.extend(kept_weights)
    fixed.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    return fixed


def _check_fixed(entry: onnx.ValueInfoProto, array: Array) -> None:
    """Check that an array can replace an input."""
    tensor = entry.type.tensor_type
    wanted = [max(dimension.dim_value, 0) or dimension.dim_param or "?" for dimension in tensor.shape.dim]
    kind = tensor.elem_type
    fits = isinstance(array, np.ndarray) and (not kind or helper.tensor_dtype_to_np_dtype(kind) == array.dtype)
    if fits and tensor.HasField("shape"):
        fits = len(array.shape) == len(wanted) and all(
            not isinstance(dim, int) or dim == extent for dim, extent in zip(wanted, array.shape, strict=True)
        )
    if not fits:
        declared = onnx.TensorProto.DataType.Name(kind).lower()
        actual = f"{array.dtype}{list(array.shape)}" if isinstance(array, np.ndarray) else f"a {type(array).__name__}"
        raise ModelFormatError(f"the value of input {entry.name!r} is {actual}; the model says {declared}{wanted}")


def with_sorted_nodes(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with every node behind those whose results it reads, as ONNX wants it: converters of types write
    others. A cycle stays, for ONNX's checker.
    """
    graphs = [model.graph, *_inner_graphs(model.graph)]
    if all(_sorted_nodes(graph) is None for graph in graphs):
        return model
    ordered = onnx.ModelProto()
    ordered.CopyFrom(model)
    # From the innermost graph outward, since sorting copies the graphs in attributes.
    for graph in reversed([ordered.graph, *_inner_graphs(ordered.graph)]):
        nodes = _sorted_nodes(graph)
        if nodes is not None:
            copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
            del graph.node[:]
            graph.node.extend(copies)
    return ordered


def _sorted_nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto] | None:
    """The nodes in an order that computes operands first; None if they are in such an order, or there is none."""
    maker = {name: number for number, node in enumerate(graph.node) for name in node.output if name}
    needs = [{maker[name] for name in read_names(node) if name in maker} for node in graph.node]
    if all(need < number for number, its in enumerate(needs) for need in its):
        return None
    try:
        order = TopologicalSorter(dict(enumerate(needs))).static_order()
        return [graph.node[number] for number in order]
    except CycleError:
        return None


def with_contributed_domain(model: onnx.ModelProto, known: Container[str]) -> onnx.ModelProto:
    """The model with ONNX Runtime's domain on operators that ONNX Runtime alone has in ONNX's domain, such as
    SimplifiedLayerNormalization, and LayerNormalization before operator set 17.
    """

    def is_contributed(node: onnx.NodeProto) -> bool:
        contributed = f"{CONTRIBUTED_DOMAIN}.{node.op_type}" in known
        return contributed and is_standard(node.domain) and _schema_of(model, node) is None

    if not any(map(is_contributed, all_nodes(model.graph))):
        return model
    renamed = onnx.ModelProto()
    renamed.CopyFrom(model)
    for node in filter(is_contributed, all_nodes(renamed.graph)):
        node.domain = CONTRIBUTED_DOMAIN
    if all(entry.domain != CONTRIBUTED_DOMAIN for entry in model.opset_import):
        renamed.opset_import.add(domain=CONTRIBUTED_DOMAIN, version=1)
    return renamed


def at_supported_opset(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model in our oldest operator set if its own is older and ONNX can convert it."""
    if version_of(model) >= OLDEST_OPSET:
        return model
    try:
        converted = version_converter.convert_version(_with_hidden_scans(model), OLDEST_OPSET)
        for node in converted.graph.node:
            if node.domain == _OLD_SCANS:
                _renew_scan(node)
    except Exception as error:  # any error of its C++ code; or a scan does not fit its body
        _log.info("not converted to operator set %d: %s", OLDEST_OPSET, error)
        return model
    # ONNX's converter keeps it; before version 4, every initializer had to be an input as well.
    converted.ir_version = max(converted.ir_version, _IR_OF_OLDEST)
    return converted


def _with_hidden_scans(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the batched scans of operator set 8, which ONNX cannot convert, in a domain that it ignores.

    Scans with sequence lengths stay.
    """
    if version_of(model) != _OPSET_OF_OLD_SCANS or not any(map(_is_old_scan, model.graph.node)):
        return model
    hidden = onnx.ModelProto()
    hidden.CopyFrom(model)
    hidden.opset_import.add(domain=_OLD_SCANS, version=1)
    for node in filter(_is_old_scan, hidden.graph.node):
        node.domain = _OLD_SCANS
    return hidden


def _is_old_scan(node: onnx.NodeProto) -> bool:
    return node.op_type == "Scan" and is_standard(node.domain) and bool(node.input) and not node.input[0]


def _renew_scan(node: onnx.NodeProto) -> None:
    """Turn a scan of operator set 8 into a current scan over the batch, whose body is a scan over the sequences."""
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    # Operator set 8 ran a scan for each element of a batch: now an outer scan over the batch contains one over the
    # sequence.
    body, operands = attributes["body"], list(node.input[1:])
    inner = [f"{node.output[0]}_batch_{entry.name}" for entry in body.input]
    results = [f"{node.output[0]}_batch_{index}" for index in range(len(node.output))]
    directions = attributes.get("directions", [0] * attributes["num_scan_inputs"])
    count = attributes["num_scan_inputs"]
    inner_scan = helper.make_node(
        "Scan", inner, results, body=body, num_scan_inputs=count, scan_input_directions=directions
    )
    inputs, outputs = (
        [helper.make_tensor_value_info(name, entry.type.tensor_type.elem_type, None) for name, entry in pairs]
        for pairs in (zip(inner, body.input, strict=True), zip(results, body.output, strict=True))
    )
    batch = helper.make_graph([inner_scan], f"{node.output[0]}_batch", inputs, outputs)
    whole = helper.make_node(
        "Scan", operands, list(node.output), name=node.name, body=batch, num_scan_inputs=len(operands)
    )
    node.CopyFrom(whole)


def expand_functions(model: onnx.ModelProto, known: Container[str]) -> onnx.ModelProto:
    """The model with its own functions inlined, and ONNX's function operators outside `known` expanded."""
    if model.functions:
        _check_functions(model)
        try:
            model = inliner.inline_local_functions(model)
        except Exception as error:  # any error of its C++ code
            raise ModelFormatError(f"the model's functions cannot be inlined: {error!s:.300}") from None
    # Functions may call functions that we lack too: expanded level by level.
    for _ in range(_DEEPEST):
        wanted = {
            (node.domain, node.op_type)
            for node in all_nodes(model.graph)
            if operator_of(node) not in known and _is_function(model, node)
        }
        if not wanted:
            break
        try:
            expanded = inliner.inline_selected_functions(_with_defaults(model, wanted), sorted(wanted), False, True)
            del expanded.graph.value_info[:]
            expanded.graph.value_info.extend(model.graph.value_info)
        except Exception as error:  # any error of its C++ code; the nodes are then reported as unsupported
            _log.info("not expanded: %s", error)
            break
        if expanded == model:
            break
        model = expanded
    return model


def _check_functions(model: onnx.ModelProto) -> None:
    """Reject recursive functions, deeply nested ones, and those that are huge once inlined."""

    def full_name(domain: str, name: str, overload: str) -> tuple[str, str, str]:
        return "" if is_standard(domain) else domain, name, overload  # one domain has two names

    def key(node: onnx.NodeProto) -> tuple[str, str, str]:
        return full_name(node.domain, node.op_type, node.overload)

    nodes_of = {
        full_name(function.domain, function.name, function.overload): list(all_nodes(function))
        for function in model.functions
    }

    waiting = {name: {key(node) for node in nodes} & nodes_of.keys() for name, nodes in nodes_of.items()}
    order: list[tuple[str, str, str]] = []
    for _ in range(_DEEPEST_CALLS):
        # Kahn's algorithm by levels: the rest after so many rounds is a cycle or too deep.
        ready = [name for name, called in waiting.items() if not called]
        for name in ready:
            del waiting[name]
        order += ready
        for called in waiting.values():
            called.difference_update(ready)
    if waiting:
        _, first, _ = next(iter(waiting))
        raise ModelFormatError(
            f"the function {first!r} of the model calls itself, or functions are nested over {_DEEPEST_CALLS} deep"
        )
    limits: tuple[tuple[str, int, Callable[[onnx.NodeProto], int]], ...] = (
        ("nodes", MOST_NODES, lambda _: 1),
        ("bytes", _MOST_BYTES, onnx.NodeProto.ByteSize),
    )
    for what, most, size in limits:
        total: dict[tuple[str, str, str], int] = {}
        for name in order:
            # Sizes are multiplied out without inlining: nested functions can grow exponentially.
            total[name] = sum(total.get(key(node), 0) or size(node) for node in nodes_of[name])
        count = sum(total.get(key(node), 0) or size(node) for node in all_nodes(model.graph))
        if count > most:
            raise ModelFormatError(f"the model has more than {most:,} {what} once its functions are inlined")


def all_nodes(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
    yield from graph.node
    for inner in _inner_graphs(graph):
        yield from inner.node


def _inner_graphs(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.GraphProto]:
    """The graphs in attributes of the nodes of `graph`, at every depth."""
    for node in graph.node:
        for inner in bodies(node):
            yield inner
            yield from _inner_graphs(inner)


def _with_defaults(model: onnx.ModelProto, wanted: Container[tuple[str, str]]) -> onnx.ModelProto:
    """The model with default attributes written out on nodes to be expanded: the inliner forgets them.

    It also looks for the types of all operands in `value_info`: omitted operands and initializers get a type there.
    """
    full = onnx.ModelProto()
    full.CopyFrom(model)
    for node in all_nodes(full.graph):
        schema = _schema_of(model, node) if (node.domain, node.op_type) in wanted else None
        present = {attribute.name for attribute in node.attribute}
        for name, attribute in schema.attributes.items() if schema else ():
            if name not in present and attribute.default_value.type != onnx.AttributeProto.UNDEFINED:
                node.attribute.append(attribute.default_value)
    typed = {entry.name for entry in (*model.graph.value_info, *model.graph.input)}
    stored = [
        tensor
        for graph in (model.graph, *_inner_graphs(model.graph))
        for tensor in (*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer))
        if tensor.name not in typed
    ]
    types = {tensor.name: tensor.data_type for tensor in stored}
    # It has one type for a name, so initializers of two branches with one name and two types stay without.
    for tensor in stored:
        if types[tensor.name] != tensor.data_type:
            types[tensor.name] = onnx.TensorProto.UNDEFINED
    full.graph.value_info.extend(
        helper.make_tensor_value_info(name, kind, None) for name, kind in types.items() if kind
    )
    full.graph.value_info.append(helper.make_tensor_value_info("", onnx.TensorProto.FLOAT, None))
    return full


def _is_function(model: onnx.ModelProto, node: onnx.NodeProto) -> bool:
    schema = _schema_of(model, node)
    return bool(schema and (schema.has_function or schema.has_context_dependent_function))


def _schema_of(model: onnx.ModelProto, node: onnx.NodeProto) -> Any:
    """ONNX's schema of the node's operator, None if unknown."""
    versions = {("" if is_standard(entry.domain) else entry.domain): entry.version for entry in model.opset_import}
    domain = "" if is_standard(node.domain) else node.domain
    try:
        return onnx.defs.get_schema(node.op_type, versions.get(domain, 1), domain)
    except (onnx.defs.SchemaError, TypeError):  # TypeError for versions that no int holds
        return None
