"""Writes compiled networks for other runtimes: an ONNX file and a shared library of its custom operators for ONNX
Runtime, or a shared library with C functions and its header.

Both files are written together: if either cannot be written, neither is changed. The type of each operator ends in
a hash of what it computes with, so a session does not load a file with the library of another export.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from retune.compiler.codegen.abi.c_library import CLibrary
from retune.compiler.codegen.abi.custom_ops import DOMAIN, ENTRY, custom_op, library_objects
from retune.compiler.codegen.abi.plan_code import ExportedPlan
from retune.compiler.core.errors import ArtifactError, OptionError
from retune.compiler.frontend.offload.offload import CustomNode, OffloadedModel, custom_model, write_model
from retune.compiler.graph.ir import Value
from retune.compiler.runtime.atomic_write import atomic_write
from retune.compiler.runtime.executor.network import CompiledNetwork
from retune.compiler.runtime.ffi.linking import LINKERS, link_objects

# By their sonames: libm.so itself comes with a package for developers.
_LIBRARIES = ("libm.so.6", "libc.so.6")

ONNX_RUNTIME, C = "onnxruntime", "c"
RUNTIMES = {ONNX_RUNTIME: (".onnx", ".so"), C: (".so", ".h")}
"""The runtimes, and the endings of the two files: of that which is named, and of that beside it."""


@dataclass(frozen=True, slots=True)
class ExportedModel:
    """The files of an exported network, as absolute paths: a library without a folder is looked for among those of the
    system. For ONNX Runtime `model` is for `InferenceSession`, `library` for `register_custom_ops_library`, and
    `remaining` are the nodes of the original that ONNX Runtime computes. For C `model` is the header. `limits` are
    what the sizes of a network of dynamic shapes must fulfill.
    """

    model: Path
    library: Path
    remaining: tuple[str, ...] = ()
    limits: str = ""


def exported_files(path: Path, runtime: str) -> tuple[Path, Path]:
    """The file at `path` of an export, and that beside it.

    Raises: OptionError for an unknown runtime, ArtifactError when the file has another ending.
    """
    if runtime not in RUNTIMES:
        raise OptionError(f"there is no export for the runtime {runtime!r}; there is one for {', '.join(RUNTIMES)}")
    ending, other = RUNTIMES[runtime]
    if path.suffix != ending:
        raise ArtifactError(f"{path}: a network for the runtime {runtime} is exported to {ending}")
    return path, path.with_suffix(other)


def export_network(
    network: CompiledNetwork | ExportedPlan, path: Path, runtime: str = ONNX_RUNTIME, linkers: Sequence[str] = LINKERS
) -> ExportedModel:
    """Write a compiled network: for ONNX Runtime a model of one node, and its library; for C a library and its header.

    Raises: ArtifactError for another ending, a network that is not for a CPU or has no object code, when there is no
    linker or it fails, or a file cannot be written; OptionError for another runtime.
    """
    exported = ExportedPlan.of(network) if isinstance(network, CompiledNetwork) else network
    files = exported_files(path, runtime)
    if runtime == C:
        return _write_library(exported, *files, linkers)
    op = custom_op(exported)
    inputs, outputs = (
        tuple(
            Value(param.name, exported.shape(number), str(param.dtype))
            for param, number in zip(params, numbers, strict=True)
        )
        for params, numbers in ((exported.inputs, exported.plan.inputs), (exported.outputs, exported.plan.outputs))
    )
    model = custom_model(exported.plan.name, DOMAIN, CustomNode(op.name, inputs, outputs))
    return replace(_write_model(path, model, [op], (), linkers), limits=exported.limits)


def export_parts(offloaded: OffloadedModel, networks: Sequence[CompiledNetwork], path: Path) -> ExportedModel:
    """Write a model whose parts were compiled as `networks`, and its library. No two kernels may have one name.

    Raises: as `export_network`.
    """
    ops = [custom_op(ExportedPlan.of(network)) for network in networks]
    model = offloaded.with_custom_nodes(DOMAIN, [op.name for op in ops])
    return _write_model(path, model, ops, offloaded.remaining, LINKERS)


def _write_model(
    path: Path, model: Any, ops: Sequence[Any], remaining: tuple[str, ...], linkers: Sequence[str]
) -> ExportedModel:
    _, library = exported_files(path, ONNX_RUNTIME)
    with tempfile.TemporaryDirectory() as folder:
        # Before either file is opened: what fails here leaves both as they were.
        objects = library_objects(ops, Path(folder))
    with atomic_write(path) as model_file, atomic_write(library) as library_file:
        write_model(model, model_file)
        link_objects(objects, library_file, linkers, _LIBRARIES, exports=(ENTRY,))
    return ExportedModel(path.absolute(), library.absolute(), remaining)


def _write_library(exported: ExportedPlan, path: Path, header: Path, linkers: Sequence[str]) -> ExportedModel:
    library = CLibrary(exported, path.stem)
    with tempfile.TemporaryDirectory() as folder:
        objects = library.objects(Path(folder))
    with atomic_write(path) as library_file, atomic_write(header) as header_file:
        header_file.write_text(library.header())
        link_objects(objects, library_file, linkers, ("libgomp.so.1", *_LIBRARIES), exports=library.exports)
    return ExportedModel(header.absolute(), path.absolute(), limits=exported.limits)
