"""Writes compiled networks for ONNX Runtime: an ONNX file, and beside it a shared library of its custom operators.

Both files are written together: if either cannot be written, neither is changed. The type of each operator ends in
a hash of what it computes with, so a session does not load a file with the library of another export.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retune.compiler.codegen.abi.custom_ops import DOMAIN, ENTRY, custom_op, library_objects
from retune.compiler.core.errors import ArtifactError, OptionError
from retune.compiler.frontend.offload.offload import CustomNode, OffloadedModel, custom_model, write_model
from retune.compiler.graph.ir import Value
from retune.compiler.runtime.atomic_write import atomic_write
from retune.compiler.runtime.executor.network import CompiledNetwork
from retune.compiler.runtime.ffi.linking import LINKERS, link_objects

_SUFFIX = ".onnx"
# By their sonames: libm.so itself comes with a package for developers.
_LIBRARIES = ("libm.so.6", "libc.so.6")

RUNTIMES = ("onnxruntime",)


@dataclass(frozen=True, slots=True)
class ExportedModel:
    """The files of an exported network: `model` is for `InferenceSession`, `library` for `register_custom_ops_library`.
    Both paths are absolute: a library without a folder is looked for among those of the system. `remaining` are the
    nodes of the original that ONNX Runtime computes.
    """

    model: Path
    library: Path
    remaining: tuple[str, ...] = ()


def check_runtime(name: str) -> None:
    """Check that networks can be exported for the runtime `name`. Raises: OptionError."""
    if name not in RUNTIMES:
        raise OptionError(f"there is no export for the runtime {name!r}; there is one for {', '.join(RUNTIMES)}")


def library_path(path: Path) -> Path:
    """The library that belongs to an ONNX file. Raises: ArtifactError when the file has another ending."""
    if path.suffix != _SUFFIX:
        raise ArtifactError(f"{path}: a network for ONNX Runtime is exported to {_SUFFIX}")
    return path.with_suffix(".so")


def export_network(network: CompiledNetwork, path: Path, linkers: Sequence[str] = LINKERS) -> ExportedModel:
    """Write a compiled network as a model of one node, and its library.

    Raises: ArtifactError for another ending than .onnx, a network that is not for a CPU or has no object code, when
    there is no linker or it fails, or a file cannot be written.
    """
    library_path(path)
    op = custom_op(network)
    plan = network.plan
    inputs, outputs = (
        tuple(Value(spec.name, spec.shape, spec.dtype) for spec in (plan.buffers[number] for number in numbers))
        for numbers in (plan.inputs, plan.outputs)
    )
    model = custom_model(plan.name, DOMAIN, CustomNode(op.name, inputs, outputs))
    return _write(path, model, [op], (), linkers)


def export_parts(offloaded: OffloadedModel, networks: Sequence[CompiledNetwork], path: Path) -> ExportedModel:
    """Write a model whose parts were compiled as `networks`, and its library. No two kernels may have one name.

    Raises: as `export_network`.
    """
    library_path(path)
    ops = [custom_op(network) for network in networks]
    model = offloaded.with_custom_nodes(DOMAIN, [op.name for op in ops])
    return _write(path, model, ops, offloaded.remaining, LINKERS)


def _write(
    path: Path, model: Any, ops: Sequence[Any], remaining: tuple[str, ...], linkers: Sequence[str]
) -> ExportedModel:
    library = library_path(path)
    with tempfile.TemporaryDirectory() as folder:
        # Before either file is opened: what fails here leaves both as they were.
        objects = library_objects(ops, Path(folder))
    with atomic_write(path) as model_file, atomic_write(library) as library_file:
        write_model(model, model_file)
        link_objects(objects, library_file, linkers, _LIBRARIES, exports=(ENTRY,))
    return ExportedModel(path.absolute(), library.absolute(), remaining)
