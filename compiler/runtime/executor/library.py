"""A library of a compiled network: makes executors of it, gives its graph and parameters, writes files.

It needs the runtime only, and loads kernels once for all executors.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from retune.compiler.core import config
from retune.compiler.core.errors import ArtifactError, OptionError
from retune.compiler.runtime.arguments import is_thread_count, path_of
from retune.compiler.runtime.artifact import Array, KernelArtifact
from retune.compiler.runtime.device import Device
from retune.compiler.runtime.executor.executors import executor_of
from retune.compiler.runtime.executor.graph_executor import GraphExecutor
from retune.compiler.runtime.executor.graph_export import export_graph
from retune.compiler.runtime.executor.graph_import import import_graph
from retune.compiler.runtime.executor.network import CompiledNetwork, check_machine, require_network
from retune.compiler.runtime.executor.shared_library import is_shared_library, load_shared_library, write_shared_library
from retune.compiler.runtime.ffi.host_array import HostArray
from retune.compiler.runtime.loader import LoadedKernels, load_kernels

_ENTRY = "default"
NETWORK_SUFFIX = ".retune"
_LIBRARY_SUFFIX = ".so"


def require_suffix(path: Path) -> None:
    """Check the suffix of an export path. Raises: ArtifactError."""
    if path.suffix not in (_LIBRARY_SUFFIX, NETWORK_SUFFIX):
        raise ArtifactError(f"{path}: a library is exported to {_LIBRARY_SUFFIX} or {NETWORK_SUFFIX}")


class Library:
    """The kernels of a network, its graph, and its parameters until they are removed.

    For example:

        library = Library(network)                       or Library.load(path)
        executor = library["default"](cpu())
        graph_json, kernels, params = library
    """

    def __init__(self, network: CompiledNetwork, kernels: LoadedKernels | None = None) -> None:
        """`kernels` are the network's kernels if already loaded.

        Raises: ArtifactError when the network is inconsistent, OptionError when it is no network.
        """
        require_network(network)
        network.verify()
        self.network = network
        self._kernels = kernels
        self._graph: str | None = None
        self._params: dict[str, Array] = {}
        self._complete = True

    @classmethod
    def load(cls, path: str | Path) -> "Library":
        """Read a file of `export_library` or `CompiledNetwork.save`.

        Raises: ArtifactError when the file is missing, damaged, of another version or for another instruction set;
        OptionError for an invalid `path`.
        """
        path = path_of(path)
        if path.suffix == ".onnx":
            raise ArtifactError(f"{path} is a model, no compiled network: `retune compile {path}` makes one of it")
        if is_shared_library(path):
            return cls(*load_shared_library(path))
        return cls(CompiledNetwork.load(path))

    @property
    def threads(self) -> int:
        """Number of threads of executors: RETUNE_NUM_THREADS or OMP_NUM_THREADS in the environment, else the network's,
        limited by the CPUs. Raises: ArtifactError for an invalid number in the file.
        """
        return config.thread_count(min(self._number_of("threads"), config.usable_cores()))

    @property
    def instances(self) -> int:
        """Number of concurrent executors that the network is meant for: more than one if it was tuned for throughput.
        Raises: ArtifactError for an invalid number in the file.
        """
        return self._number_of("instances")

    def _number_of(self, what: str) -> int:
        number = self.network.metadata.get(what, 1)
        if not is_thread_count(number):
            raise ArtifactError(f"network {self.network.plan.name} is damaged: it says {number!r} of its {what}")
        return int(number)

    @property
    def kernels(self) -> LoadedKernels:
        """The kernels for the CPU, ready to be bound.

        Raises: ArtifactError when this machine cannot run them.
        """
        if self._kernels is None:
            check_machine(self.network)
            self._kernels = load_kernels([kernel for kernel in self.network.kernels if kernel.device is None])
        return self._kernels

    @property
    def gpu_kernels(self) -> dict[str, KernelArtifact]:
        """The kernels for GPUs, by name; executors load them where they run."""
        return {kernel.name: kernel for kernel in self.network.kernels if kernel.device is not None}

    def __reduce__(self) -> tuple[Callable[..., "Library"], tuple[CompiledNetwork, bool]]:
        """Pickled and copied as its network, with the object code. Raises: ArtifactError without object code."""
        if any(not kernel.object_code for kernel in self.network.kernels):
            raise ArtifactError(
                "a library that was loaded from a shared one cannot be copied or pickled: load it again"
            )
        return _unpickle, (self.network, self._complete)

    def __getitem__(self, name: str) -> Callable[..., GraphExecutor]:
        """The factory of executors; its only name is "default". It takes the network's device, `cpu()` or `cuda(0)`,
        and more for further devices.

        Raises: AttributeError for another name.
        """
        if not isinstance(name, str) or name != _ENTRY:
            raise AttributeError(f"the library of a network has no function {name!r}; it has {_ENTRY!r}")
        return self._create

    def _create(self, *devices: Device) -> GraphExecutor:
        if not all(isinstance(device, Device) for device in devices):
            raise OptionError(f"devices are needed, such as cpu() or cuda(0), not {devices!r:.80}")
        network = self.network
        if not self._complete:
            # In the graph parameters are inputs, as they are now.
            plan = import_graph(self.get_graph_json(), self.gpu_kernels, self.network.plan.name).plan
            network = replace(self.network, plan=plan, constants={})
        executor = executor_of(network, self.threads, devices, self.kernels)
        if not self._complete:
            load_library_params(self, executor)
        return executor

    def __iter__(self) -> Iterator[object]:
        """The graph's JSON text, this library, the parameters."""
        # TVM's scripts unpack what a build returns into graph, library and parameters.
        return iter((self.get_graph_json(), self, self.get_graph_params()))

    def get_graph_json(self) -> str:
        """The graph of the network as JSON text. Raises: ArtifactError when it has none, see `export_graph`."""
        if self._graph is None:
            self._graph, self._params = export_graph(self.network)
        return self._graph

    def get_graph_params(self) -> dict[str, HostArray]:
        """The parameters by the names of their nodes, in their kernels' packing."""
        params = self._params if self.get_graph_json() and self._complete else {}
        return {name: array.view(HostArray) for name, array in params.items()}

    def get_lib(self) -> "Library":
        """The functions' table for `create`: this library."""
        return self

    def remove_params(self) -> "Library":
        """The same library without parameters: its executors take them with `load_params` or `set_input`."""
        # With the loaded kernels: they are loaded once for all libraries that share them.
        bare = Library(self.network, self.kernels)
        bare._graph, bare._params, bare._complete = self.get_graph_json(), self._params, False
        return bare

    def export_library(self, path: str | Path) -> Path:
        """Write one file: for .so a shared library, made with the system's linker; for .retune a network, as
        `CompiledNetwork.save` writes it.

        Raises: ArtifactError for another suffix, when there is no linker or it fails, when a kernel calls a Python
        function (.so only), when the parameters were removed, or when the file cannot be written.
        """
        path = path_of(path)
        if not self._complete:
            raise ArtifactError(f"{path}: the parameters were removed; export the library that has them")
        require_suffix(path)
        if any(not kernel.object_code for kernel in self.network.kernels):
            raise ArtifactError(f"{path}: this library was loaded from a shared one; copy that file instead")
        if path.suffix == NETWORK_SUFFIX:
            return self.network.save(path)
        return write_shared_library(self.network, path)


def load_library_params(library: Library, executor: GraphExecutor) -> None:
    """Set an executor's inputs that are parameters of a library; it does not run without them."""
    library.get_graph_json()
    shapes, dtypes = executor.get_input_info()
    executor.unset_params = library._params.keys() & shapes.keys()
    fitting = {
        name: array
        for name, array in library.get_graph_params().items()
        if (array.shape, array.dtype.name) == (shapes.get(name), dtypes.get(name))
    }
    executor.load_params(fitting)


def _unpickle(network: CompiledNetwork, complete: bool) -> Library:
    """The inverse of `Library.__reduce__`."""
    library = Library(network)
    return library if complete else library.remove_params()
