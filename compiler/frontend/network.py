"""In: a name of the zoo or a path. Out: its `Graph`, or its ONNX bytes. Always: zoo names come first."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from compiler.errors import ModelFormatError
from compiler.frontend import zoo
from compiler.frontend.onnx.importer import load_model
from compiler.frontend.onnx.model_file import read_model
from compiler.frontend.onnx.program import load_program
from compiler.graph.ir import Graph
from compiler.graph.program import Program
from compiler.graph.region import Dimension


def load_network(name_or_path: str, *, shapes: Mapping[str, Sequence[int]] | None = None) -> Graph:
    """Import a network as it is, without any pass; `compiler.graph.pipeline.optimize` applies those.

    The graph is named after the zoo network or the file's stem. `shapes` gives static shapes to dynamic inputs.
    Raises: ModelFormatError, DynamicShapeError or UnsupportedOperatorError with one sentence.
    """
    if name_or_path in zoo.NAMES:
        return load_model(zoo.build(name_or_path), name=name_or_path, shapes=shapes)
    return load_model(_existing(name_or_path), shapes=shapes)


def load_program_network(
    name_or_path: str, *, shapes: Mapping[str, Sequence[Dimension]] | None = None, **options: Any
) -> Program:
    """Import a network whose shapes or course need not be known before it runs.

    `options` are those of a zoo network, such as `tokens="tokens"`. Raises: as `load_network`, but for dynamic shapes.
    """
    if name_or_path in zoo.NAMES or name_or_path in zoo.PROGRAM_NAMES:
        return load_program(zoo.build(name_or_path, **options), name=name_or_path, shapes=shapes)
    return load_program(_existing(name_or_path), shapes=shapes)


def network_bytes(name_or_path: str) -> bytes:
    """The network as one ONNX message, weights included, for other runtimes.

    Raises: ModelFormatError when there is no such network, or it is larger than a message may be (2 GiB).
    """
    model = zoo.build(name_or_path) if name_or_path in zoo.NAMES else read_model(_existing(name_or_path))
    try:
        return bytes(model.SerializeToString())
    except ValueError:
        raise ModelFormatError(f"{name_or_path} is larger than the 2 GiB that one ONNX message may have") from None


def _existing(path: str) -> Path:
    if not Path(path).is_file():
        raise ModelFormatError(f"no network {path!r}: neither a file nor one of the zoo: {', '.join(zoo.NAMES)}")
    return Path(path)
