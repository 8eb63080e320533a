"""Loads a network by zoo name or path, as a `Graph`, as a `Program` or as ONNX bytes; zoo names take precedence."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from retune.compiler.errors import ModelFormatError
from retune.compiler.frontend import zoo
from retune.compiler.frontend.onnx.importer import Constants, load_model
from retune.compiler.frontend.onnx.model_file import read_model
from retune.compiler.frontend.onnx.offload import OffloadedModel, offload_model
from retune.compiler.frontend.onnx.program import Dimensions, load_program
from retune.compiler.graph.ir import Graph
from retune.compiler.graph.program import Program

_ZOO = (*zoo.NAMES, *zoo.PROGRAM_NAMES)


def load_network(name_or_path: str, *, shapes: Mapping[str, Sequence[int]] | None = None) -> Graph:
    """Import a network as it is, without any pass; `retune.compiler.graph.pipeline.optimize` applies those.

    The graph is named after the zoo network or the file's stem. `shapes` gives static shapes to dynamic inputs.
    Raises: ModelFormatError, DynamicShapeError or UnsupportedOperatorError with one sentence.
    """
    if name_or_path in zoo.NAMES:
        return load_model(zoo.build(name_or_path), name=name_or_path, shapes=shapes)
    return load_model(_existing(name_or_path), shapes=shapes)


def offload_network(name_or_path: str, *, shapes: Mapping[str, Sequence[int]] | None = None) -> OffloadedModel:
    """Import what can be imported of a network; the other nodes stay as they are.

    Raises: as `load_network`; UnsupportedOperatorError when no node can be imported.
    """
    if name_or_path in zoo.NAMES:
        return offload_model(zoo.build(name_or_path), name=name_or_path, shapes=shapes)
    return offload_model(_existing(name_or_path), shapes=shapes)


def load_network_program(
    name_or_path: str, *, shapes: Dimensions | None = None, constants: Constants | None = None
) -> Program:
    """Import a network whose shapes or course need not be known before it runs.

    `shapes` gives dimensions to inputs, `constants` fixes inputs for good: see `load_program`.
    Raises: ModelFormatError or UnsupportedOperatorError with one sentence.
    """
    if name_or_path in _ZOO:
        return load_program(zoo.build(name_or_path), name=name_or_path, shapes=shapes, constants=constants)
    return load_program(_existing(name_or_path, _ZOO), shapes=shapes, constants=constants)


def network_bytes(name_or_path: str) -> bytes:
    """The network as one ONNX message, weights included, for other runtimes.

    Raises: ModelFormatError when there is no such network, or it is larger than a message may be (2 GiB).
    """
    model = zoo.build(name_or_path) if name_or_path in _ZOO else read_model(_existing(name_or_path))
    try:
        return bytes(model.SerializeToString())
    except ValueError:
        raise ModelFormatError(f"{name_or_path} is larger than the 2 GiB that one ONNX message may have") from None


def _existing(path: str, names: Sequence[str] = zoo.NAMES) -> Path:
    if Path(path).is_dir():
        raise ModelFormatError(f"{path} is a folder: name the ONNX file in it")
    if not Path(path).is_file():
        raise ModelFormatError(f"no network {path!r}: neither a file nor one of the zoo: {', '.join(names)}")
    return Path(path)
