"""Random ONNX graphs against ONNX Runtime without optimizations; second opinion: `onnx.reference`."""

import io
import random
import resource
import warnings
from math import erf
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

import retune
from benchmarks.correctness.compare import ROUNDOFF, Arrays, Outcome, judged, nudged, tolerance
from benchmarks.correctness.onnx_nodes import random_nodes
from retune.compiler.core.errors import RetuneError
from tests.support.property.onnx_models import COLUMNS, random_model

Feeds = dict[str, NDArray[Any]]
_MODEL_BYTES = 12 << 30


class Erf(OpRun):
    """Erf in float64, which ONNX Runtime does not have; that of onnx.reference is float32's."""

    op_domain = ""

    def _run(self, x: NDArray[Any]) -> tuple[NDArray[Any]]:
        return (np.vectorize(erf, otypes=[np.float64])(x).astype(x.dtype),)


def nested(seed: int) -> Outcome:
    """A graph of the project's generator, with conditions, loops and scans, run by the virtual machine."""
    rng = np.random.default_rng([seed, 1])
    rows = int(rng.integers(1, 9))
    feeds = {name: rng.standard_normal((rows, COLUMNS)).astype(np.float32) for name in ("x", "z")}
    return _against_onnxruntime(random_model(seed), feeds, seed, dynamic=True)


def nodes(seed: int) -> Outcome:
    """A graph of the project's generator of plain nodes."""
    return _against_onnxruntime(*random_nodes(seed), seed)


def nnsmith(seed: int) -> Outcome:
    """A graph of NNSmith."""
    model = _nnsmith_model(seed)
    if isinstance(model, str):
        return Outcome(skipped=(model,))
    rng = np.random.default_rng([seed, 2])
    feeds = {}
    for value in model.graph.input:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        feeds[value.name] = (
            np.asarray(rng.integers(-9 if dtype.kind == "i" else 0, 2 if dtype.kind == "b" else 9, shape)).astype(dtype)
            if dtype.kind in "iub"
            else np.asarray(rng.uniform(-2, 2, shape)).astype(dtype)
        )
    return _against_onnxruntime(model, feeds, seed)


def _nnsmith_model(seed: int) -> onnx.ModelProto | str:
    """The model of a seed, or why there is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch
        from nnsmith.abstract.extension import activate_ext
        from nnsmith.graph_gen import model_gen
        from nnsmith.materialize import Model
    kind = Model.init("torch")
    operators = [op for op in kind.operators() if not op.limit_domain]
    activate_ext(opset=operators, factory=None)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    file = io.BytesIO()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    try:
        # Some of its tensors take all memory.
        resource.setrlimit(resource.RLIMIT_AS, (_MODEL_BYTES, limits[1]))
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            generator = model_gen(opset=operators, seed=seed, max_nodes=4 + seed % 9, timeout_ms=10000)
            network = kind.from_gir(generator.make_concrete()).torch_model.eval()
            if network.proxy_enabled:
                network.disable_proxy_grad()
            examples = [
                torch.ones(size=value.shape).uniform_(1, 2).to(value.dtype.torch())
                for value in network.input_like.values()
            ]
            names = list(network.input_like), list(network.output_like)
            torch.onnx.export(
                network,
                tuple(examples),
                file,
                input_names=names[0],
                output_names=names[1],
                opset_version=17,
                dynamo=False,
            )
    except Exception as error:  # of NNSmith or the exporter: no model is no result
        return f"no model: {type(error).__name__}"
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    return onnx.load_from_string(file.getvalue())


def _against_onnxruntime(model: onnx.ModelProto, feeds: Feeds, seed: int, dynamic: bool = False) -> Outcome:
    try:
        wanted = _onnxruntime(model, feeds)
        second = None
    except Exception as error:  # it has no kernel for every type
        second = f"{type(error).__name__}"
        try:
            wanted = _reference(model, feeds)
        except Exception as failure:
            return Outcome(skipped=(f"no reference: {second}, {type(failure).__name__}",))
    known = {value.name for value in model.graph.input}
    try:
        network = retune.compile(model, dynamic=dynamic, threads=1 + seed % 2)
        found = network(**{name: value for name, value in feeds.items() if name in known})
    except RetuneError as error:
        return Outcome(refused=(f"{type(error).__name__}: {error}",))
    except Exception as error:
        return Outcome(wrong=(f"{type(error).__name__}: {error}",))
    found = [np.asarray(one) for one in (found if isinstance(found, (list, tuple)) else [found])]

    def nudge(number: int) -> Arrays:
        rng = np.random.default_rng([seed, 3, number])
        other = onnx.ModelProto()
        other.CopyFrom(model)
        for weight in other.graph.initializer:
            weight.CopyFrom(numpy_helper.from_array(nudged(numpy_helper.to_array(weight), rng), weight.name))
        changed = {name: nudged(value, rng) for name, value in feeds.items()}
        return _reference(other, changed) if second else _onnxruntime(other, changed)

    allowed = tolerance(_types(model), len(model.graph.node))
    return judged(found, wanted, allowed, lambda: _reference(model, feeds), nudge)


def _onnxruntime(model: onnx.ModelProto, feeds: Feeds) -> Arrays:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [np.asarray(one) for one in session.run(None, feeds)]


def _reference(model: onnx.ModelProto, feeds: Feeds) -> Arrays:
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [np.asarray(one) for one in ReferenceEvaluator(model, new_ops=[Erf]).run(None, feeds)]


def _types(model: onnx.ModelProto) -> list[np.dtype[Any]]:
    """The types of floats that occur among the values of a model."""
    graph = onnx.shape_inference.infer_shapes(model).graph
    numbers = {value.type.tensor_type.elem_type for value in (*graph.input, *graph.value_info, *graph.output)}
    types = [onnx.helper.tensor_dtype_to_np_dtype(number) for number in numbers if number]
    return [dtype for dtype in types if dtype in ROUNDOFF]
