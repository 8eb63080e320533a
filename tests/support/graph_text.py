"""Graphs from the text that `str(graph)` gives.

Constants whose values are not part of the text are random numbers that depend on the name.
"""

import ast
import re
import zlib
from collections.abc import Mapping

import numpy as np

from retune.compiler.graph.ir import Array, Attribute, Graph, Node, Value

_VALUE = re.compile(r"(\S+): (\w+)\[([\d, ]*)\]")
_TYPE = re.compile(r"(\w+)\[([\d, ]*)\]")
_NODE = re.compile(r"(?P<outputs>.+?) = (?P<op>\w+)\((?P<inputs>[^)]*)\)(?: \{(?P<attrs>.*)\})? : (?P<types>.+)")
_HEAD = re.compile(r"graph (?P<name>\S+)\((?P<inputs>.*)\)")


def parse_graph(text: str) -> Graph:
    """The graph of a string.

    Raises: ValueError with the line that is not understood.
    """
    head, *lines, last = text.strip().splitlines()
    found = _HEAD.fullmatch(head)
    if found is None or not last.startswith("  return "):
        raise ValueError(f"no graph: {head} ... {last}")
    inputs = tuple(_value(*one) for one in _VALUE.findall(found["inputs"]))
    values = {value.name: value for value in inputs}
    constants: dict[str, Array] = {}
    nodes = []
    for line in map(str.strip, lines):
        if line.startswith("const "):
            described, _, contents = line.removeprefix("const ").partition(" = ")
            value = _value(*_VALUE.findall(described)[0])
            values[value.name], constants[value.name] = value, constant_of(value, contents)
            continue
        parts = _NODE.fullmatch(line)
        if parts is None:
            raise ValueError(f"no node: {line}")
        outputs = _names(parts["outputs"])
        types = _TYPE.findall(parts["types"])
        values.update((name, _value(name, *each)) for name, each in zip(outputs, types, strict=True))
        nodes.append(Node(parts["op"], _names(parts["inputs"]), outputs, _attributes(parts["attrs"] or "")))
    return Graph(found["name"], inputs, _names(last.removeprefix("  return ")), tuple(nodes), constants, values)


def constant_of(value: Value, contents: str = "") -> Array:
    """An array of a described constant: `contents` where the text has them, else random."""
    dtype = np.dtype(value.dtype)
    if contents:
        return np.array(ast.literal_eval(contents), dtype).reshape(value.shape)
    rng = np.random.default_rng(zlib.crc32(value.name.encode()))
    if dtype.kind == "b":
        return rng.integers(0, 2, value.shape).astype(dtype)
    if dtype.kind in "iu":
        return rng.integers(0, 5, value.shape).astype(dtype)
    return rng.uniform(0.5, 1.5, value.shape).astype(dtype)


def _value(name: str, dtype: str, shape: str) -> Value:
    return Value(name, tuple(int(extent) for extent in shape.split(",") if extent.strip()), dtype)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(", ") if name)


def _attributes(text: str) -> Mapping[str, Attribute]:
    call = ast.parse(f"attributes({text})", mode="eval").body
    assert isinstance(call, ast.Call)
    return {str(one.arg): _literal(one.value) for one in call.keywords}


def _literal(node: ast.expr) -> Attribute:
    """A literal, or an infinity or a NaN, which Python prints as names."""
    number: Attribute
    match node:
        case ast.Name(id="inf" | "nan" as name):
            number = float(name)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Name(id="inf")):
            number = float("-inf")
        case _:
            number = ast.literal_eval(node)
    return number
