"""Finds the nodes of an ONNX model that each part of it computes, and hashes them for a provider.

A hash covers type, names of what a node reads and writes, content of constants, and attributes with their defaults.
Results of `Constant` are constants, as ONNX Runtime has them.
"""

from collections.abc import Collection, Mapping, Sequence, Set

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import AttributeProto, numpy_helper

from retune.compiler.codegen.node_hash import FIRST, hash_data, hash_text, mix
from retune.compiler.codegen.provider import Region
from retune.compiler.errors import UnsupportedOperatorError
from retune.compiler.frontend.onnx.dependence import bodies, read_names
from retune.compiler.frontend.onnx.model_file import is_standard, version_of
from retune.compiler.graph.ir import Graph

_Bytes = NDArray[np.uint8]
# The library computes hashes in 64-bit integers, which wrap.
_MASK = 2**64 - 1
_MOST_BYTES = 65535
"""Of an attribute: what the library reads of one."""


def find_regions(model: onnx.ModelProto, parts: Sequence[Graph]) -> list[Region]:
    """What each part of a model computes of it.

    Raises: UnsupportedOperatorError when the nodes of a part cannot be replaced by one.
    """
    constants = {tensor.name: _content(numpy_helper.to_array(tensor)) for tensor in model.graph.initializer}
    constants |= {node.output[0]: _constant(node) for node in model.graph.node if _is_constant(node)}
    makers = {name: node for node in model.graph.node if not _is_constant(node) for name in node.output if name}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        for name in read_names(node):
            readers.setdefault(name, []).append(node)
    opset = version_of(model)
    found, taken = [], set[str]()
    for part in parts:
        nodes = _region(part, makers)
        keys = {_key(node) for node in nodes}
        _check(part, nodes, keys, taken, readers, {entry.name for entry in model.graph.output})
        taken |= keys
        hashes = tuple(_node_hash(node, constants, opset) for node in nodes)
        found.append(Region(tuple(value.name for value in part.inputs), part.outputs, hashes))
    return found


def _region(part: Graph, makers: Mapping[str, onnx.NodeProto]) -> list[onnx.NodeProto]:
    """The nodes between the outputs of a part and its inputs."""
    inputs = {value.name for value in part.inputs}
    found: dict[str, onnx.NodeProto] = {}
    asked = list(part.outputs)
    while asked:
        name = asked.pop()
        node = makers.get(name)
        if name not in inputs and node is not None and _key(node) not in found:
            found[_key(node)] = node
            asked += read_names(node)
    return list(found.values())


def _check(
    part: Graph,
    nodes: Sequence[onnx.NodeProto],
    keys: Set[str],
    taken: Set[str],
    readers: Mapping[str, Sequence[onnx.NodeProto]],
    results: Collection[str],
) -> None:
    read = {name for node in nodes for name in read_names(node)}
    made = {name for node in nodes for name in node.output if name}
    escaping = {
        name for name in made if name in results or any(_key(reader) not in keys for reader in readers.get(name, ()))
    }
    why = ""
    if keys & taken:
        why = "another part has nodes of it"
    elif odd := next((node for node in nodes if [*bodies(node)] or not is_standard(node.domain)), None):
        why = f"its node {_key(odd)} has a graph of its own or is of the domain {odd.domain!r}"
    elif lost := next((value.name for value in part.inputs if value.name not in read), ""):
        why = f"no node of it reads its input {lost}"
    elif lost := next(iter(sorted(escaping ^ set(part.outputs))), ""):
        why = f"{lost} is an output of the part or of its nodes, but not of both"
    elif large := next((node for node in nodes for each in node.attribute if each.ByteSize() > _MOST_BYTES), None):
        why = f"an attribute of its node {_key(large)} is too large"
    if why:
        raise UnsupportedOperatorError(
            f"a provider cannot compute {part.name}: {why}; export it for the runtime onnxruntime"
        )


def _node_hash(node: onnx.NodeProto, constants: Mapping[str, _Bytes], opset: int) -> int:
    found = hash_text(hash_text(FIRST, b""), node.op_type.encode())
    for names in (node.input, node.output):
        for name in names:
            found = hash_text(found, name.encode())
            if name in constants:
                found = hash_data(found, constants[name])
        found = mix(found, 1)
    given = {attribute.name: attribute for attribute in node.attribute}
    schema = onnx.defs.get_schema(node.op_type, opset)
    defaults = {name: each.default_value for name, each in schema.attributes.items() if each.default_value.name}
    # A sum, so that the order of attributes does not matter: ONNX Runtime keeps them in a map without order.
    return mix(found, sum(map(_hash_attribute, {**defaults, **given}.values())) & _MASK)


def _hash_attribute(attribute: AttributeProto) -> int:
    named = hash_text(FIRST, attribute.name.encode())
    if attribute.type == AttributeProto.STRING:
        return hash_text(named, attribute.s)
    content = _attribute(attribute)
    return named if content is None else hash_data(named, content)


def _attribute(attribute: AttributeProto) -> _Bytes | None:
    """The content of an attribute of numbers; None for others."""
    match attribute.type:
        case AttributeProto.TENSOR:
            return _content(numpy_helper.to_array(attribute.t))
        case AttributeProto.INT:
            return _content(np.array([attribute.i], np.int64))
        case AttributeProto.INTS:
            return _content(np.array(attribute.ints, np.int64))
        case AttributeProto.FLOAT:
            return _content(np.array([attribute.f], np.float32))
        case AttributeProto.FLOATS:
            return _content(np.array(attribute.floats, np.float32))
    return None


def _content(array: NDArray[np.generic]) -> _Bytes:
    return np.frombuffer(array.tobytes(), np.uint8)


def _is_constant(node: onnx.NodeProto) -> bool:
    return node.op_type == "Constant" and is_standard(node.domain)


def _constant(node: onnx.NodeProto) -> _Bytes:
    content = _attribute(node.attribute[0])
    return np.zeros(0, np.uint8) if content is None else content


def _key(node: onnx.NodeProto) -> str:
    """What identifies a node: its first result."""
    return str(next(filter(None, node.output)))
