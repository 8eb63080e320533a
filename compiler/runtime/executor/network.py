"""A compiled network as data, and its `.retune` file.

The file is an archive (`retune.compiler.runtime.archive`) of

    plan.json         see `retune.compiler.runtime.executor.plan`
    metadata.json     target, tool versions; coverage: which record every task was built from
    its kernels       see `retune.compiler.runtime.kernel_archive`
    constants/N.npy   the constant of buffer N, stored as its kernel reads it, so that it is used where it is mapped
"""

import platform
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from retune.compiler.core.errors import ArtifactError, OptionError
from retune.compiler.core.json_reader import JsonObject
from retune.compiler.runtime.archive import Archive, reject_damage, write_archive
from retune.compiler.runtime.artifact import Array, KernelArtifact
from retune.compiler.runtime.buffers import constant_array
from retune.compiler.runtime.executor.plan import BufferKind, Plan
from retune.compiler.runtime.kernel_archive import kernel_parts, read_kernels
from retune.compiler.runtime.kernel_row import KernelRow
from retune.compiler.runtime.loader import host_features

KIND, VERSION = "network", 2


@dataclass(frozen=True, slots=True, eq=False)
class CompiledNetwork:
    """A network as data: `constants` are by buffer number of the plan, `metadata` is JSON (target, versions).

    Constants that are not read-only, contiguous and aligned yet are copied, so that executors read them where they are.
    """

    plan: Plan
    kernels: tuple[KernelArtifact, ...]
    constants: Mapping[int, Array]
    coverage: tuple[KernelRow, ...] = ()
    metadata: JsonObject = field(default_factory=dict)
    # A frozen network that was found consistent stays so; executors would otherwise check it again each time.
    _is_verified: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        # Read-only from here on: executors, processes that map one file, and GPUs' copies all share these arrays.
        held = {number: constant_array(np.asarray(array)) for number, array in self.constants.items()}
        object.__setattr__(self, "constants", held)

    def verify(self, functions: Collection[str] = ()) -> None:
        """Check that plan, kernels and constants fit each other; `functions` may be called beside the kernels.

        Raises: ArtifactError that names what does not.
        """
        if self._is_verified and not functions:
            return
        self.plan.verify({kernel.name: kernel for kernel in self.kernels}, functions)
        for number, buffer in enumerate(self.plan.buffers):
            if buffer.kind is not BufferKind.CONSTANT or buffer.storage != number:
                continue
            array = self.constants.get(number)
            if array is None:
                raise ArtifactError(f"network {self.plan.name}: the constant {buffer.name} is missing")
            if array.nbytes != buffer.nbytes or array.dtype != np.dtype(buffer.dtype):
                raise ArtifactError(
                    f"network {self.plan.name}: the constant {buffer.name} is {array.dtype.name}{list(array.shape)}, "
                    f"the plan says {buffer.dtype}{list(buffer.shape)}"
                )
        object.__setattr__(self, "_is_verified", not functions)

    def require_cpu_code(self, what: str) -> None:
        """Check that all kernels have object code for a CPU and call no Python function, as `what` needs.

        Raises: ArtifactError that names a kernel which does not.
        """
        for kernel in self.kernels:
            if kernel.device is not None:
                raise ArtifactError(
                    f"kernel {kernel.name} is code for {kernel.target}, and {what} is for a CPU; save the network as "
                    ".retune"
                )
            if kernel.calls:
                raise ArtifactError(
                    f"kernel {kernel.name} calls {kernel.calls[0].function}, a function of Python, which {what} cannot "
                    "hold; save the network as .retune"
                )
            if not kernel.object_code:
                raise ArtifactError(
                    f"kernel {kernel.name} was loaded from a shared library and has no object code, which {what} needs"
                )

    def save(self, path: str | Path) -> Path:
        """Write one file and return its path; an existing file is replaced at once or not at all.

        Raises: ArtifactError when it cannot be written.
        """
        path = Path(path)
        write_archive(path, KIND, VERSION, network_parts(self))
        return path

    @classmethod
    def load(cls, path: str | Path, *, copy: bool = False) -> "CompiledNetwork":
        """Read what `save` wrote. Constants are mapped from the file, which must not be changed in place meanwhile;
        with `copy` they are read into memory and all checksums are checked.

        Raises: ArtifactError when the file is missing, damaged, inconsistent, or of another version.
        """
        path = Path(path)
        with reject_damage("compiled network", path):
            network = read_network(Archive(path.read_bytes() if copy else path, KIND, VERSION))
            network.verify()
        return network


def require_network(network: object) -> None:
    """Check that it is a compiled network. Raises: OptionError."""
    if not isinstance(network, CompiledNetwork):
        raise OptionError(f"a CompiledNetwork is needed, not {network!r:.80}; Library.load reads one from a file")


def check_machine(network: CompiledNetwork) -> None:
    """Check that this machine's CPU can run the network. Raises: ArtifactError."""
    check_cpu(f"network {network.plan.name}", network.metadata)


def check_cpu(what: str, facts: JsonObject) -> None:
    """Check that code can run here: an instruction that the CPU lacks would end the process. `facts` has LLVM's
    `triple`, the name `cpu`, and the features that the code `needs`.

    Raises: ArtifactError that begins with `what`.
    """
    triple, needs = facts.get("triple", ""), facts.get("needs", ())
    if not isinstance(triple, str) or not isinstance(needs, list | tuple) or not all(isinstance(n, str) for n in needs):
        raise ArtifactError(f"{what} is damaged: it says {triple!r} and {needs!r} of the CPU that it needs")
    kind, here = triple.partition("-")[0], platform.machine()
    if kind not in ("", here) and not kind.startswith("nvptx"):
        raise ArtifactError(f"{what} was compiled for {kind} CPUs; this machine's is {here}: compile it here")
    # By features and not by CPU name: a newer CPU of another name runs the code as well.
    missing = sorted(set(needs) - host_features())
    if missing:
        made_for = facts.get("cpu", "another CPU")
        raise ArtifactError(f"{what} was compiled for {made_for}; this machine lacks {', '.join(missing)}")


def network_parts(network: CompiledNetwork, *, with_code: bool = True) -> dict[str, object]:
    """The parts of a network for an archive; object code only if asked for."""
    constants = {f"constants/{number}.npy": array for number, array in network.constants.items()}
    coverage = [row.to_json() for row in network.coverage]
    return {
        "plan.json": network.plan.dumps().encode(),
        "metadata.json": {"metadata": network.metadata, "coverage": coverage},
        **kernel_parts(network.kernels, with_code=with_code),
        **constants,
    }


def read_network(archive: Archive, *, with_code: bool = True) -> CompiledNetwork:
    """The network in an archive, which is not verified yet; without `with_code` its kernels have no object code.

    Raises: ArtifactError when the format is another; an error of `DAMAGE` when it is damaged.
    """
    about = archive.json("metadata.json")
    constants = {int(Path(name).stem): archive.array(name) for name in archive.names("constants/")}
    coverage = tuple(map(KernelRow.of, about["coverage"]))
    plan = Plan.loads(archive.blob("plan.json").decode())
    kernels = read_kernels(archive, with_code=with_code)
    return CompiledNetwork(plan, kernels, constants, coverage, dict(about["metadata"]))
