"""The command `retune export`: writes a network for ONNX Runtime, as a model and a library of its operators.

Nothing is measured: kernels use the best records there are, as with `retune compile`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from retune.compiler.core import config
from retune.compiler.core.errors import OptionError
from retune.compiler.core.input_shapes import fixed_shapes
from retune.compiler.core.options import TuneOptions, tune_options
from retune.compiler.core.target import Target
from retune.compiler.driver.hardware import threads_of
from retune.compiler.driver.onnx_export import (
    ExportedModel,
    check_runtime,
    export_network,
    export_parts,
    library_path,
)
from retune.compiler.frontend.network import offload_network
from retune.compiler.frontend.offload.offload import OffloadedModel
from retune.compiler.runtime.archive import VM_EXECUTABLE, kind_of
from retune.compiler.runtime.arguments import require_thread_count
from retune.compiler.runtime.atomic_write import require_writable
from retune.compiler.runtime.executor.library import Library
from retune.compiler.runtime.executor.network import KIND, CompiledNetwork
from retune.compiler.runtime.executor.shared_library import is_shared_library
from retune.compiler.runtime.kernel_row import CoverageReport
from retune.compiler.tune.extract import extract_part
from retune.flows.cli.commands.arguments import Shapes, Store, home_of, option_of
from retune.flows.cli.commands.compile import HOST, coverage_fields
from retune.flows.cli.commands.output import Output
from retune.flows.parameters import add_options
from retune.storage.store_url import Location
from retune.tasks.find_programs import find_programs


def export(
    output: Output,
    network: Annotated[
        str, typer.Argument(help="A name of the zoo, the path of an ONNX file, or a compiled network (.retune).")
    ],
    to: Annotated[Path, typer.Option("--output", "-o", help="The ONNX file; its library is NAME.so beside it.")],
    runtime: Annotated[str, typer.Option(help="What runs it: onnxruntime.")] = "onnxruntime",
    shape: Shapes = None,
    store: Store = None,
    **given: object,
) -> None:
    """Export a network to ONNX Runtime: a model, and a library of its custom operators."""
    check_runtime(runtime)
    for path in (to, library_path(to)):
        require_writable(path)
    options = TuneOptions.of(config.load(), **given)
    if _is_compiled(network):
        if shape or options.threads or options.target:
            raise OptionError(f"{network} is compiled: --shape, --threads and --target are for networks that are not")
        compiled = Library.load(network).network
        exported, networks = export_network(compiled, to), [compiled]
    else:
        shapes = fixed_shapes(shape or (), "`retune export`")
        exported, networks = export_model(network, to, options, shapes, home_of(store))
    for part in networks:
        coverage = CoverageReport.of(part.coverage)
        output.say(f"{part.plan.name}: {coverage}", part=part.plan.name, **coverage_fields(coverage))
    if exported.remaining:
        nodes = ", ".join(exported.remaining)
        output.say(f"ONNX Runtime computes {nodes}", remaining=list(exported.remaining))
    files = {"model": exported.model, "library": exported.library}
    output.say("\n".join(map(str, files.values())), **files, threads=networks[0].metadata.get("threads"))


add_options(export, tune_options("threads", "target", "winograd"), option_of)


def export_model(
    network: str, to: Path, options: TuneOptions, shapes: Mapping[str, Sequence[int]], home: Location
) -> tuple[ExportedModel, list[CompiledNetwork]]:
    """Compile the parts of a network that can be compiled, with the best records at `home`, and write the files.

    Raises: ModelFormatError, DynamicShapeError; UnsupportedOperatorError when no node can be compiled; as
    `export_parts`.
    """
    library_path(to)  # which rejects a wrong suffix before the work
    if Path(network).exists() and to.resolve() == Path(network).resolve():
        raise OptionError(f"{to} is the model itself; name another file for what is exported")
    offloaded, networks = _compile_parts(network, options, shapes, home)
    return export_parts(offloaded, networks, to), networks


def _compile_parts(
    network: str, options: TuneOptions, shapes: Mapping[str, Sequence[int]], home: Location
) -> tuple[OffloadedModel, list[CompiledNetwork]]:
    count = threads_of(Target(options.target or HOST), options.threads)
    require_thread_count(count)
    offloaded = offload_network(network, shapes=shapes)
    # Shared by all parts: their kernels are linked into one library, which may define each symbol once.
    names: set[str] = set()
    networks = []
    for graph in offloaded.parts:
        part = extract_part(network, graph, Target(options.target or HOST), count, options.winograd, names)
        networks.append(part.compile(find_programs(part, home, None)))
    return offloaded, networks


def _is_compiled(network: str) -> bool:
    path = Path(network)
    if not path.is_file():
        return False
    if is_shared_library(path):
        return True
    kind = kind_of(path)
    if kind == VM_EXECUTABLE:
        # Operators of ONNX Runtime have plans of fixed sizes; formulas of sizes are computed in Python.
        raise OptionError(f"{path} has dynamic shapes: compile it with fixed ones, --shape NAME=1,128, to export it")
    return kind == KIND
