"""Loads a network by zoo name or path, as a `Graph`, as a `Program` or as ONNX bytes; zoo names take precedence."""

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx

from retune.compiler.core.errors import ModelFormatError
from retune.compiler.frontend import zoo
from retune.compiler.frontend.importer import Constants, load_model
from retune.compiler.frontend.model_file import read_model
from retune.compiler.frontend.offload.offload import OffloadedModel, offload_model
from retune.compiler.frontend.program import Dimensions, load_program
from retune.compiler.graph.ir import Graph
from retune.compiler.graph.program import Program


def load_network(
    name_or_path: str, *, shapes: Mapping[str, Sequence[int]] | None = None, constants: Constants | None = None
) -> Graph:
    """Import a network as it is, without any pass; `retune.compiler.graph.pipeline.optimize` applies those.

    The graph is named after the zoo network or the file's stem. `shapes` gives static shapes to dynamic inputs,
    `constants` values to inputs and initializers.
    Raises: ModelFormatError, DynamicShapeError or UnsupportedOperatorError with one sentence.
    """
    model, name = _model_of(name_or_path)
    return load_model(model, name=name, shapes=shapes, constants=constants)


def offload_network(name_or_path: str, *, shapes: Mapping[str, Sequence[int]] | None = None) -> OffloadedModel:
    """Import what can be imported of a network; the other nodes stay as they are.

    Raises: as `load_network`; UnsupportedOperatorError when no node can be imported.
    """
    model, name = _model_of(name_or_path)
    return offload_model(model, name=name, shapes=shapes)


def load_network_program(
    name_or_path: str, *, shapes: Dimensions | None = None, constants: Constants | None = None
) -> Program:
    """Import a network with dynamic shapes or control flow.

    `shapes` gives dimensions to inputs, `constants` fixes inputs for good: see `load_program`.
    Raises: ModelFormatError or UnsupportedOperatorError with one sentence.
    """
    model, name = _model_of(name_or_path)
    return load_program(model, name=name, shapes=shapes, constants=constants)


def network_bytes(name_or_path: str) -> bytes:
    """The network as one ONNX message, weights included, for other runtimes.

    Raises: ModelFormatError when there is no such network, or it is larger than a message may be (2 GiB).
    """
    model = read_model(_model_of(name_or_path)[0])
    try:
        return bytes(model.SerializeToString())
    except ValueError:
        raise ModelFormatError(f"{name_or_path} is larger than the 2 GiB that one ONNX message may have") from None


def _model_of(name_or_path: str) -> tuple[onnx.ModelProto | Path, str | None]:
    """The model and its name, for a network of the zoo; the path and None for a file, whose stem names the network."""
    if name_or_path in zoo.NAMES:
        return zoo.build(name_or_path), name_or_path
    if Path(name_or_path).is_dir():
        raise ModelFormatError(f"{name_or_path} is a folder: name the ONNX file in it")
    if not Path(name_or_path).is_file():
        close = difflib.get_close_matches(name_or_path, zoo.NAMES)
        hint = f"did you mean {' or '.join(close)}?" if close else "`retune networks` lists the zoo"
        raise ModelFormatError(f"no network {name_or_path!r}: neither a file nor one of the zoo; {hint}")
    return Path(name_or_path), None
