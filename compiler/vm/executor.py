"""`VMExecutor`: compiles a network once and returns a function that runs it on the virtual machine."""

from collections.abc import Callable
from typing import Any

from retune.compiler.core.errors import ModelError
from retune.compiler.core.target import Target
from retune.compiler.runtime.device import Device
from retune.compiler.vm.compiler import compile
from retune.compiler.vm.executable import Executable
from retune.compiler.vm.machine import VirtualMachine


class VMExecutor:
    """Compiles and runs a network: for experiments, and to look at its `executable` and its machine `vm`
    afterwards. The interface is TVM's. `mod` is a network as `compile` reads it, such as a path or a `Program`.

    scores = VMExecutor("model.onnx", cpu(), "llvm").evaluate()(image)
    """

    def __init__(self, mod: Any, device: Device, target: Target | str | None = None) -> None:
        """Raises: ModelError when there is no network."""
        if mod is None:
            raise ModelError("a network is needed to make a virtual machine of")
        self.mod = mod
        self.device = device
        self.target = target
        self.executable: Executable | None = None
        self.vm: VirtualMachine | None = None

    def evaluate(self, expr: Any = None) -> Callable[..., Any]:
        """Compile the network, or `expr` in its place. Returns `VirtualMachine.run`, which takes the inputs in order or
        by name. Raises: as `compile`.
        """
        if expr is not None:
            self.mod = expr
        self.executable = compile(self.mod, self.target)
        machine = self.vm = VirtualMachine(self.executable, self.device)
        return machine.run
