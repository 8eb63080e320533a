"""Every version of ONNX's standard operators with every element type that it allows, as models of one node.

The node tests of the installed onnx give attributes, shapes and data. A test of a newer version of an operator becomes
one of an older version where its attributes and operands can be said there.
"""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import defs, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import retune
from retune.compiler.core.dtype import item_bits
from retune.compiler.core.errors import RetuneError, UnknownValueError
from retune.compiler.frontend.ops.elementwise import DTYPES
from retune.compiler.ir.numeric import convert

Array = NDArray[Any]

OLDEST = 7
"""Operator sets before it are from before ONNX 1.2, and no exporter in use writes them."""
_IR = 8
_RENAMED = {"constant_value": "value"}
"""Attributes of older versions that have another name than the operand they became."""


@dataclass(frozen=True, slots=True)
class Case:
    """A version of an operator with operands of some types. `varied` names the type that differs from the test's."""

    op: str
    version: int
    varied: str
    test: str
    model: onnx.ModelProto
    feeds: Mapping[str, Array]

    @property
    def label(self) -> str:
        """How reports name the case."""
        return f"{self.op}-{self.version} {self.varied} ({self.test})"


@dataclass(frozen=True, slots=True)
class _Test:
    name: str
    node: onnx.NodeProto
    feeds: Mapping[str, Array]
    results: Sequence[Any]


@cache
def _node_tests() -> dict[str, list[_Test]]:
    """The node tests of one node on tensors, by operator."""
    from onnx.backend.test.case.node import collect_testcases

    tests: dict[str, list[_Test]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        collected = collect_testcases(None)
    for test in collected:
        model = test.model
        if model is None or len(model.graph.node) != 1 or not test.data_sets:
            continue
        node, (inputs, results) = model.graph.node[0], test.data_sets[0]
        names = [entry.name for entry in model.graph.input]
        inputs = [numpy_helper.to_array(one) if isinstance(one, onnx.TensorProto) else one for one in inputs]
        if node.domain == "" and all(isinstance(array, np.ndarray | np.generic) for array in inputs):
            arrays = tuple(map(np.asarray, inputs))
            tests.setdefault(node.op_type, []).append(
                _Test(test.name, node, dict(zip(names, arrays, strict=False)), results)
            )
    return tests


def schemas() -> list[Any]:
    """Each version of each standard operator from `OLDEST` on, also the one that is older and was valid then."""
    history: dict[str, list[Any]] = {}
    for schema in defs.get_all_schemas_with_history():
        if schema.domain == "" and (not schema.deprecated or schema.name == "GroupNormalization"):
            history.setdefault(schema.name, []).append(schema)
    found = []
    for versions in history.values():
        versions.sort(key=lambda schema: schema.since_version)
        old = [schema for schema in versions if schema.since_version <= OLDEST]
        found += [*old[-1:], *(schema for schema in versions if schema.since_version > OLDEST)]
    return sorted(found, key=lambda schema: (schema.name, schema.since_version))


def cases(most: int, operators: Iterable[str] = ()) -> Iterator[Case]:
    """The cases of the operators, of all unless some are named: at most so many tests of each version and type."""
    wanted = set(operators)
    for schema in schemas():
        if not wanted or schema.name in wanted:
            yield from _cases_of(schema, most)


def _cases_of(schema: Any, most: int) -> Iterator[Case]:
    counts: dict[str, int] = {}
    for test in _node_tests().get(schema.name, ()):
        node = _node_of(schema, test.node, test.feeds)
        if node is None:
            continue
        feeds = {name: array for name, array in test.feeds.items() if name in node.input}
        if schema.name in ("Cast", "CastLike"):  # of a negative float to an unsigned integer nothing is said
            feeds = {name: np.abs(np.nan_to_num(array, posinf=1, neginf=1)) for name, array in feeds.items()}
        to = [attribute.i for attribute in node.attribute if attribute.name == "to"]
        if any(helper.tensor_dtype_to_np_dtype(kind).name not in DTYPES for kind in to):
            continue
        of_types = _of_types(schema, node, feeds)
        if any(attribute.HasField("g") for attribute in node.attribute):  # its body says the types
            of_types = iter([("the test's types", feeds)])
        for varied, typed in of_types:
            sizes = {item_bits(helper.tensor_dtype_to_np_dtype(kind).name) for kind in to}
            if schema.name == "BitCast" and sizes != {item_bits(array.dtype.name) for array in typed.values()}:
                continue
            varied += "".join(f" to {attribute.i}" for attribute in node.attribute if attribute.name == "to")
            if counts.get(varied, 0) < most and (made := _model(schema, node, typed, test.results)) is not None:
                counts[varied] = counts.get(varied, 0) + 1
                yield Case(schema.name, schema.since_version, varied, test.name, made, typed)


def _node_of(schema: Any, source: onnx.NodeProto, feeds: Mapping[str, Array]) -> onnx.NodeProto | None:
    """The node as this version says it; None where it cannot."""
    node = onnx.NodeProto()
    node.CopyFrom(source)
    newest = defs.get_schema(source.op_type, defs.onnx_opset_version(), "")
    attributes, operands = [], list(node.input)
    for attribute in node.attribute:
        if attribute.name in schema.attributes:
            attributes.append(attribute)
        elif attribute.name not in newest.attributes or attribute != newest.attributes[attribute.name].default_value:
            return None
    formal = [parameter.name for parameter in newest.inputs]
    for place in range(len(operands) - 1, 0, -1):
        name = formal[place].lower() if place < len(formal) else ""
        name = _RENAMED.get(name, name)
        if name in schema.attributes and place >= len(schema.inputs):
            operand = operands.pop(place)
            if operand:
                value = feeds[operand].tolist() if operand in feeds else None
                is_list = schema.attributes[name].type.name.endswith("S")
                value = value[0] if isinstance(value, list) and not is_list and len(value) == 1 else value
                if value != []:  # none says the same
                    attributes.append(helper.make_attribute(name, value))
    while operands and not operands[-1]:
        operands.pop()
    if len(operands) > schema.max_input or len(operands) < schema.min_input or len(node.output) > schema.max_output:
        return None
    optional = defs.OpSchema.FormalParameterOption.Optional
    if operands and not operands[0] and schema.inputs[0].option != optional:  # a scan of operator set 8
        return None
    required = {name for name, attribute in schema.attributes.items() if attribute.required}
    if required - {attribute.name for attribute in attributes}:
        return None
    node.input[:] = operands
    del node.attribute[:]
    node.attribute.extend(attributes)
    return node


def _of_types(schema: Any, node: onnx.NodeProto, feeds: Mapping[str, Array]) -> Iterator[tuple[str, dict[str, Array]]]:
    """The feeds with the elements of each type that an operand may have, one type parameter after the other."""
    yielded = set()
    allowed = {one.type_param_str: _dtypes(one.allowed_type_strs) for one in schema.type_constraints}
    parameters = _parameters(schema, node)
    for parameter, dtypes in allowed.items():
        for dtype in dtypes:
            typed = dict(feeds)
            for name, other in zip(node.input, parameters, strict=True):
                if name in typed and other == parameter:
                    typed[name] = _as(typed[name], dtype)
            kinds = tuple(array.dtype.name for array in typed.values())
            valid = all(
                array.dtype.name in allowed.get(other, [array.dtype.name]) or f"tensor({other})" == other
                for name, other in zip(node.input, parameters, strict=True)
                if (array := typed.get(name)) is not None
            )
            if valid and kinds not in yielded:
                yielded.add(kinds)
                yield f"{parameter}={dtype}", typed


_ONNX_NAMES = {
    "float32": "float",
    "float64": "double",
    "float8_e8m0fnu": "float8e8m0",
    "float4_e2m1fn": "float4e2m1",
}


def _dtypes(texts: Iterable[str]) -> list[str]:
    """Those of our element types that a list of ONNX's names."""
    own = {f"tensor({_ONNX_NAMES.get(name, name.replace('_', ''))})": name for name in DTYPES}
    return [own[text] for text in sorted(texts) if text in own]


def _parameters(schema: Any, node: onnx.NodeProto) -> list[str]:
    """The type parameter of each operand, the last one of a variadic operator again and again."""
    formal = [parameter.type_str for parameter in schema.inputs]
    return [formal[min(place, len(formal) - 1)] for place in range(len(node.input))]


def _as(array: Array, dtype: str) -> Array:
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    if array.dtype.kind in "US" or array.dtype == object:
        return array
    with np.errstate(all="ignore"):
        if kind.kind == "u":
            return np.abs(array.astype("int64") if array.dtype != bool else array).astype(kind)
        return convert(array, kind.name)


def _model(
    schema: Any, node: onnx.NodeProto, feeds: Mapping[str, Array], results: Sequence[Any]
) -> onnx.ModelProto | None:
    """The model of the node, with the types that ONNX infers for its results; None where the node is not valid."""
    if any(array.dtype.kind in "USO" for array in feeds.values()):
        return None
    opset = schema.since_version if schema.since_version > OLDEST else OLDEST
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in feeds.items()
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([node], node.op_type, inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=_IR)
    try:
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
        typed = dict(zip(_parameters(schema, node), (feeds.get(name) for name in node.input), strict=True))
        formal = [parameter.type_str for parameter in schema.outputs]
        for place, (entry, array) in enumerate(zip(inferred.graph.output, results, strict=False)):
            if entry.type.HasField("sequence_type"):  # the node tests have these
                return None
            if not entry.type.tensor_type.elem_type:
                like = typed.get(formal[min(place, len(formal) - 1)])
                dtype = np.asarray(array if like is None else like).dtype
                entry.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(dtype)
            if not entry.type.tensor_type.HasField("shape"):  # which the checker wants
                entry.type.tensor_type.shape.SetInParent()
                entry.type.tensor_type.shape.dim.extend([onnx.TensorShapeProto.Dimension()] * np.ndim(array))
        onnx.checker.check_model(inferred)
    except Exception:  # whatever its C++ code throws: the type is not one that the operator takes here
        return None
    return inferred


def fixed(model: onnx.ModelProto, feeds: Mapping[str, Array], names: Iterable[str]) -> onnx.ModelProto:
    """The model with some of its inputs as constants."""
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    kept = [entry for entry in copied.graph.input if entry.name not in set(names)]
    del copied.graph.input[:]
    copied.graph.input.extend(kept)
    copied.graph.initializer.extend(numpy_helper.from_array(feeds[name], name) for name in names)
    return copied


def expected(case: Case) -> Iterator[list[Array]]:
    """What onnx.reference computes, then what ONNX Runtime does; neither where it cannot."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for run in (_by_reference, _by_runtime):
            try:
                found = [np.asarray(array) for array in run(case)]
            except Exception:  # of any kind
                continue
            yield found


def _by_reference(case: Case) -> Sequence[Any]:
    return list(ReferenceEvaluator(case.model).run(None, dict(case.feeds)))


def _by_runtime(case: Case) -> Sequence[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    session = onnxruntime.InferenceSession(case.model.SerializeToString(), options)
    return list(session.run(None, dict(case.feeds)))


def computed(case: Case, store: Path) -> tuple[str, list[Array]]:
    """How Retune compiles the case, and its results: static, with inputs fixed where these decide on shapes, or else
    dynamic. Raises: RetuneError where it refuses all.
    """
    model, feeds = case.model, dict(case.feeds)
    try:
        network, how = retune.compile(model, threads=1, store=store), "static"
    except UnknownValueError as error:
        try:
            network = retune.compile(fixed(model, feeds, error.inputs), threads=1, store=store)
            how, feeds = "fixed", {name: array for name, array in feeds.items() if name not in error.inputs}
        except RetuneError:
            network, how = retune.compile(model, dynamic=True, threads=1, store=store), "dynamic"
    found = network(**feeds)
    return how, [np.asarray(array) for array in (found if isinstance(found, tuple | list) else [found])]


def disagreement(case: Case, found: Sequence[Array]) -> str:
    """Why the results are wrong: of a wrong type, or no runtime gives the same; "" where they are right."""
    declared = [helper.tensor_dtype_to_np_dtype(entry.type.tensor_type.elem_type) for entry in case.model.graph.output]
    if [array.dtype for array in found] != declared:
        return f"{[array.dtype.name for array in found]} in place of {[dtype.name for dtype in declared]}"
    wrong = ""
    for wanted in expected(case):
        if not (wrong := next(filter(None, map(_difference, found, wanted)), "")):
            break
    return wrong


def _difference(found: Array, wanted: Array) -> str:
    if found.shape != wanted.shape:
        return f"shape {found.shape} in place of {wanted.shape}"
    if found.dtype.kind not in "fV":
        return "" if np.array_equal(found, wanted) else f"{int((found != wanted).sum())} of {found.size} elements"
    left, right = found.astype("float64"), wanted.astype("float64")
    scale = max(1.0, float(np.abs(right[np.isfinite(right)]).max(initial=0)))
    # The reference may have computed in a narrower type than that of the result.
    tolerance = scale * {1: 0.25, 2: 2e-2, 4: 1e-3, 8: 1e-5}[min(found.dtype.itemsize, wanted.dtype.itemsize)]
    same = np.allclose(left, right, rtol=tolerance, atol=tolerance, equal_nan=True)
    return "" if same else f"off by {np.nanmax(np.abs(left - right)):.3g} of {scale:.3g}"
