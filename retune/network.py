"""A compiled network that is called like the model it was made from.

Loading and running one imports the runtime alone; the compiler and the virtual machine are imported where needed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from retune.compiler.core.errors import OptionError
from retune.compiler.runtime.archive import VM_EXECUTABLE, kind_of
from retune.compiler.runtime.arguments import path_of
from retune.compiler.runtime.atomic_write import require_writable
from retune.compiler.runtime.executor.library import Library
from retune.compiler.runtime.executor.shared_library import is_shared_library
from retune.compiler.runtime.readable import count
from retune.network_calls import Calls, GraphCalls, Kind, MachineCalls, Shapes, arrays_in
from retune.network_report import NetworkReport

if TYPE_CHECKING:
    from retune.compiler.driver.export import ExportedModel
    from retune.compiler.tune.precision.request import PrecisionChoice
    from retune.compiler.vm.executable import Executable
    from retune.flows.cli.kernel_explainer import KernelExplainer


class Signature(Protocol):
    """How a model is called: turns its arguments into the inputs of the network, and outputs into its result."""

    def inputs(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> list[object]:
        """The arrays for the inputs of the network, in order."""

    def result(self, outputs: list[object]) -> object:
        """What the model returns, made of the outputs of the network."""


@dataclass(frozen=True, slots=True)
class InputNames:
    """The signature of a network that came from a file: inputs in order or by name; one output, or a tuple of them."""

    names: tuple[str, ...]

    def inputs(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> list[object]:
        """The arrays in the inputs' order. Raises: OptionError when an input is missing, unknown or given twice."""
        given = dict(zip(self.names, args, strict=False))
        if len(args) > len(self.names):
            raise OptionError(
                f"the network has {count(len(self.names), 'input')}, {', '.join(self.names)}: {len(args)} were given"
            )
        for name, value in kwargs.items():
            if name not in self.names:
                raise OptionError(f"the network has no input {name!r}; its inputs are {', '.join(self.names)}")
            if name in given:
                raise OptionError(f"the input {name!r} is given twice: by its place and by its name")
            given[name] = value
        missing = [name for name in self.names if name not in given]
        if missing:
            raise OptionError(f"no value for {', '.join(missing)}; the inputs are {', '.join(self.names)}")
        return [given[name] for name in self.names]

    def result(self, outputs: list[object]) -> object:
        """A single output itself, else a tuple."""
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


class Network:
    """A compiled network. `retune.compile`, `retune.tune` and `retune.load` make it.

    fast = retune.compile("resnet18")
    scores = fast(image)

    Arrays may be of NumPy, PyTorch or any library with DLPack; results are of the kind of the first input. An aligned,
    dense input is read where it lies. Threads may call one network at the same time: each call takes an executor of
    its own, which shares kernels and weights with the others.
    """

    def __init__(
        self,
        program: "Library | Executable",
        signature: Signature | None = None,
        explainer: "KernelExplainer | None" = None,
        precision: "PrecisionChoice | None" = None,
    ) -> None:
        self.precision = precision
        """The precision of each layer, and the error of the outputs; None in float32, and for a file."""
        self.explainer = explainer
        """What `retune.explain` asks; None for a network from a file."""
        self._program = program
        self._calls: Calls = GraphCalls(program) if isinstance(program, Library) else MachineCalls(program)
        self._signature = signature or InputNames(self._calls.input_names)

    @property
    def name(self) -> str:
        """What the network is called."""
        return self._calls.name

    @property
    def inputs(self) -> dict[str, str]:
        """The inputs by name, as a type and a shape such as `float32[1, 3, 224, 224]`."""
        return self._calls.inputs

    @property
    def outputs(self) -> dict[str, str]:
        """The outputs by name, as `inputs`; an extent that is not known before a run is `?`."""
        return self._calls.outputs

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Run the network. Raises: OptionError when an input is missing, or is of another shape or type."""
        values = self._signature.inputs(args, kwargs)
        kind = Kind.of(next(arrays_in(values), None))
        return self._signature.result(self._calls.run(values, kind))

    def save(self, path: str | Path) -> Path:
        """Write the network into one file, NAME.retune or a shared library NAME.so, which `retune.load` reads.

        Raises: ArtifactError for another ending, or when the folder is missing or the file cannot be written.
        """
        path = path_of(path)
        require_writable(path)
        return self._program.export_library(path)

    def export(self, path: str | Path, *, runtime: str = "onnxruntime") -> "ExportedModel":
        """Write the network for another runtime: for ONNX Runtime NAME.onnx, and NAME.so for
        `SessionOptions.register_custom_ops_library`; with `runtime="c"` NAME.so, and NAME.h with its C functions. The
        network there takes and returns the tensors of this network.

        Raises: OptionError for another runtime, or a network that is not compiled for all its shapes as a whole;
        ArtifactError for another ending, a network for a GPU or from a shared library, when there is no linker, or a
        file cannot be written.
        """
        from retune.compiler.driver.export import export_network, exported_files

        path = path_of(path)
        for file in exported_files(path, runtime):
            require_writable(file)
        if isinstance(self._program, Library):
            return export_network(self._program.network, path, runtime)
        from retune.compiler.vm.exported_plan import exported_plan

        return export_network(exported_plan(self._program), path, runtime)

    def benchmark(self, *, repeat: int = 20, shapes: Shapes | None = None) -> float:
        """The median latency of `repeat` runs, in seconds, on zeros. Of a network of dynamic shapes `shapes` are those
        of its inputs by name, by default the middle of its ranges. Raises: OptionError.
        """
        return self._calls.benchmark(repeat, shapes)

    def report(self, *, shapes: Shapes | None = None) -> NetworkReport:
        """Where the time of a run on zeros goes, measured now; `shapes` as for `benchmark`. Raises: OptionError."""
        return self._calls.report(None, shapes)

    def profile(self, *args: object, **kwargs: object) -> NetworkReport:
        """The same for a run on the given inputs."""
        return self._calls.report(self._signature.inputs(args, kwargs), None)

    def __repr__(self) -> str:
        takes = ", ".join(f"{name}: {kind}" for name, kind in self.inputs.items())
        gives = f" -> {', '.join(self.outputs.values())}" if self.outputs else ""
        return f"<retune.Network {self.name}({takes}){gives}>"

    def _repr_html_(self) -> str:
        rows = [("input", *row) for row in self.inputs.items()] + [("output", *row) for row in self.outputs.items()]
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
        return f"<p><b>{escape(self.name)}</b><br>{escape(self._calls.coverage)}</p><table>{body}</table>"


def load(path: str | Path) -> Network:
    """A network that `Network.save`, `retune tune` or `retune compile` wrote: NAME.retune or NAME.so.

    Raises: ArtifactError when the file is missing, damaged, of another version, or for a CPU with other instructions.
    """
    path = path_of(path)
    if not is_shared_library(path) and kind_of(path) == VM_EXECUTABLE:
        from retune.compiler.vm.executable import Executable

        return Network(Executable.load(path))
    return Network(Library.load(path))
