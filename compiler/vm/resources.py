"""`VMOptions` and `Resources`: what all regions and calls of one virtual machine share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from retune.compiler.core.errors import OptionError
from retune.compiler.runtime.artifact import ALIGNMENT, Array
from retune.compiler.runtime.buffers import address, aligned_array
from retune.compiler.runtime.device import Device
from retune.compiler.runtime.loader import Kernel
from retune.compiler.vm.allocator import Allocator
from retune.compiler.vm.library import VMLibrary

NEEDED, NOW, BACKGROUND, NEVER = "needed", "now", "background", "never"
_WAYS = (NEEDED, NOW, BACKGROUND, NEVER)


@dataclass(frozen=True, slots=True)
class VMOptions:
    """How regions are compiled whose shapes are known only at run time."""

    specialize: str = NEEDED
    """When regions are compiled for new shapes: where "needed", since there are no kernels for all shapes; always,
    "now" before the call goes on, or in the "background", while kernels for all shapes or NumPy compute; or "never".
    """
    specializations: int = 64
    """A region is ready for so many shapes: those of its last calls."""
    prepared_bytes: int = 2 << 30
    """Arrays that are computed from weights for one shape are kept for others, up to so many bytes."""

    def __post_init__(self) -> None:
        if not isinstance(self.specialize, str) or self.specialize not in _WAYS:
            raise OptionError(f"specialize is {' or '.join(map(repr, _WAYS))}, not {self.specialize!r}")
        for name, least in (("specializations", 1), ("prepared_bytes", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise OptionError(f"{name} is an integer from {least} on, not {value!r}")


class Workspace:
    """Memory that kernels use while they run, one for all of them: they run one after the other."""

    def __init__(self) -> None:
        self._array = aligned_array((ALIGNMENT,), "uint8")
        self._nbytes = ALIGNMENT
        self._address = address(self._array)

    def array(self, nbytes: int) -> Array:
        """Memory of at least so many bytes. Raises: ArtifactError when there is none."""
        if nbytes > self._nbytes:
            self._array = aligned_array((nbytes,), "uint8")
            self._nbytes = nbytes
            self._address = address(self._array)
        return self._array

    def address(self, nbytes: int) -> int:
        """Where memory of at least so many bytes begins, until more is asked for. Raises: as `array`."""
        if nbytes > self._nbytes:
            self.array(nbytes)
        return self._address


@dataclass(frozen=True, slots=True, eq=False)
class Resources:
    """The library of an executable, its kernels, loaded, and memory: `allocator` has that of values, `arena` what lies
    between the kernels of a network, `workspace` what one kernel uses. Regions run on `devices`, see `executor_of`.
    """

    library: VMLibrary
    kernels: Mapping[str, Kernel]
    allocator: Allocator
    threads: int
    options: VMOptions = field(default_factory=VMOptions)
    devices: Sequence[Device] = ()
    arena: Workspace = field(default_factory=Workspace)
    workspace: Workspace = field(default_factory=Workspace)
