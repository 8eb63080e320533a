"""The command `retune export`: writes a network for another runtime, such as a model and a library of its operators.

Nothing is measured: kernels use the best records there are, as with `retune compile`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from retune.compiler.core import config
from retune.compiler.core.errors import DynamicShapeError, OptionError
from retune.compiler.core.input_shapes import fixed_shapes, has_sizes
from retune.compiler.core.options import TuneOptions, tune_options
from retune.compiler.core.target import Target
from retune.compiler.driver.export import ONNX_RUNTIME, C, ExportedModel, export_network, export_parts, exported_files
from retune.compiler.driver.hardware import threads_of
from retune.compiler.frontend.network import offload_network
from retune.compiler.frontend.offload.offload import OffloadedModel
from retune.compiler.runtime.archive import VM_EXECUTABLE, kind_of
from retune.compiler.runtime.arguments import require_thread_count
from retune.compiler.runtime.atomic_write import require_writable
from retune.compiler.runtime.executor.library import NETWORK_SUFFIX, Library
from retune.compiler.runtime.executor.network import KIND, CompiledNetwork
from retune.compiler.runtime.executor.shared_library import is_shared_library
from retune.compiler.runtime.kernel_row import CoverageReport
from retune.compiler.tune.extract import extract_part
from retune.compiler.vm.executable import Executable
from retune.compiler.vm.exported_plan import exported_plan
from retune.flows.cli.commands.arguments import Shapes, Store, home_of, option_of
from retune.flows.cli.commands.compile import HOST, coverage_fields
from retune.flows.cli.commands.output import Output
from retune.flows.dynamic_network import compile_dynamic
from retune.flows.parameters import add_options
from retune.storage.store_url import Location
from retune.tasks.find_programs import find_programs


def export(
    output: Output,
    network: Annotated[
        str, typer.Argument(help="A name of the zoo, the path of an ONNX file, or a compiled network (.retune).")
    ],
    to: Annotated[
        Path, typer.Option("--output", "-o", help="NAME.onnx, with NAME.so beside it; for C NAME.so, with NAME.h.")
    ],
    runtime: Annotated[str, typer.Option(help="What runs it: onnxruntime or c.")] = ONNX_RUNTIME,
    shape: Shapes = None,
    store: Store = None,
    **given: object,
) -> None:
    """Export a network as a model and library for ONNX Runtime, or as a library for C."""
    for path in exported_files(to, runtime):
        require_writable(path)
    options = TuneOptions.of(config.load(), **given)
    if _is_compiled(network):
        if shape or options.threads or options.target:
            raise OptionError(f"{network} is compiled: --shape, --threads and --target are for networks that are not")
        exported, networks = _export_compiled(Path(network), to, runtime)
    else:
        exported, networks = export_model(network, to, runtime, options, shape or (), home_of(store))
    for part in networks:
        coverage = CoverageReport.of(part.coverage)
        output.say(f"{part.plan.name}: {coverage}", part=part.plan.name, **coverage_fields(coverage))
    if exported.remaining:
        nodes = ", ".join(exported.remaining)
        output.say(f"ONNX Runtime computes {nodes}", remaining=list(exported.remaining))
    if exported.limits:
        output.say(f"sizes: {exported.limits}", limits=exported.limits)
    files = {"model": exported.model, "library": exported.library}
    output.say("\n".join(map(str, files.values())), **files, threads=networks[0].metadata.get("threads"))


add_options(export, tune_options("threads", "target", "winograd"), option_of)


def export_model(
    network: str, to: Path, runtime: str, options: TuneOptions, shapes: Sequence[str], home: Location
) -> tuple[ExportedModel, list[CompiledNetwork]]:
    """Compile the parts of a network that can be compiled, with the best records at `home`, and write the files.

    A network whose extents may change is compiled whole. Raises: ModelFormatError, DynamicShapeError; OptionError and
    UnsupportedOperatorError for what cannot be compiled; as `export_network`.
    """
    exported_files(to, runtime)  # which rejects a wrong suffix before the work
    if Path(network).exists() and to.resolve() == Path(network).resolve():
        raise OptionError(f"{to} is the model itself; name another file for what is exported")
    target, count = options.target or HOST, threads_of(Target(options.target or HOST), options.threads)
    require_thread_count(count)
    try:
        offloaded = None if has_sizes(shapes) else offload_network(network, shapes=fixed_shapes(shapes, "an export"))
    except DynamicShapeError:
        if shapes:
            raise
        offloaded = None
    if offloaded is None:
        plan = exported_plan(compile_dynamic(network, shapes, target, count, None, home).get_exec())
        return export_network(plan, to, runtime), [plan.network]
    if runtime == C and (offloaded.remaining or len(offloaded.parts) != 1):
        raise OptionError(
            f"{network} cannot be exported for C: there are no kernels for {', '.join(offloaded.remaining)}"
        )
    networks = _compile_parts(network, offloaded, Target(target), count, options, home)
    exported = export_network(networks[0], to, C) if runtime == C else export_parts(offloaded, networks, to)
    return exported, networks


def _compile_parts(
    network: str, offloaded: OffloadedModel, target: Target, count: int, options: TuneOptions, home: Location
) -> list[CompiledNetwork]:
    # Shared by all parts: their kernels are linked into one library, which may define each symbol once.
    names: set[str] = set()
    networks = []
    for graph in offloaded.parts:
        part = extract_part(network, graph, target, count, options.winograd, names)
        networks.append(part.compile(find_programs(part, home, None)))
    return networks


def _is_compiled(network: str) -> bool:
    path = Path(network)
    if not path.is_file():
        return False
    # by its name, too: of a damaged file the loader says that it is damaged
    return path.suffix == NETWORK_SUFFIX or is_shared_library(path) or kind_of(path) in (KIND, VM_EXECUTABLE)


def _export_compiled(path: Path, to: Path, runtime: str) -> tuple[ExportedModel, list[CompiledNetwork]]:
    if not is_shared_library(path) and kind_of(path) == VM_EXECUTABLE:
        plan = exported_plan(Executable.load(path))
        return export_network(plan, to, runtime), [plan.network]
    network = Library.load(path).network
    return export_network(network, to, runtime), [network]
