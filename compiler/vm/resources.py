"""`Resources`: what all that one virtual machine runs has in common."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from retune.compiler.runtime.device import Device
from retune.compiler.runtime.loader import Kernel
from retune.compiler.vm.allocator import Allocator
from retune.compiler.vm.kernel_run import Workspace
from retune.compiler.vm.library import VMLibrary
from retune.compiler.vm.options import VMOptions


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
