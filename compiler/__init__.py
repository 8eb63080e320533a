"""The Retune compiler: frontends, graph passes, scheduling, search, code generation and runtime.

Names are imported on first use, so `import retune.compiler` is fast, and a program that only runs compiled networks
never loads the compiler.
"""

import importlib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from retune.compiler import lower, runtime
from retune.compiler.core.lazy import lazy
from retune.compiler.runtime.ffi.load import load_ffi_library

if TYPE_CHECKING:
    from retune.compiler import te as te
    from retune.compiler import vm as vm
    from retune.compiler.core import target as target
    from retune.compiler.core.version import __version__ as __version__
    from retune.compiler.driver.modules import build as build
    from retune.compiler.driver.network_build import build_network as build_network
    from retune.compiler.driver.pass_context import PassContext as PassContext
    from retune.compiler.runtime.device import cpu as cpu
    from retune.compiler.runtime.device import cuda as cuda
    from retune.compiler.runtime.device import device as device
    from retune.compiler.runtime.device import opencl as opencl
    from retune.compiler.runtime.ffi.registry import get_global_func as get_global_func
    from retune.compiler.runtime.ffi.registry import list_global_func_names as list_global_func_names
    from retune.compiler.runtime.ffi.registry import register_func as register_func
    from retune.compiler.runtime.ffi.registry import remove_global_func as remove_global_func
    from retune.compiler.tvm import auto_scheduler as auto_scheduler
    from retune.compiler.tvm import debug_executor as debug_executor
    from retune.compiler.tvm import graph_executor as graph_executor
    from retune.compiler.tvm import nd as nd


def load_module(path: str | Path) -> Any:
    """Load a file of compiled code, see `retune.compiler.tvm.loading.load_module`. Raises: the same."""
    return importlib.import_module(f"{__name__}.tvm.loading").load_module(path)


class _RuntimePackage(ModuleType):
    """The package `runtime`, in which TVM also has the virtual machine."""

    @property
    def vm(self) -> ModuleType:
        return importlib.import_module(f"{__name__}.vm")


runtime.__class__ = _RuntimePackage
# TVM's scripts say `tvm.runtime.load_module`; set here because `runtime` itself loads no part that knows networks.
runtime.load_module = load_module


class _CallablePackage(ModuleType):
    """The package `lower`, which is also TVM's function of that name."""

    def __call__(
        self,
        inp: Any,
        args: Sequence[Any] | None = None,
        name: str = "main",
        simple_mode: bool = False,
        *,
        target: Any = None,
    ) -> str:
        """The loops of a program as text, see `retune.compiler.driver.modules.lower`. Raises: the same."""
        del simple_mode  # both print the same
        text: str = importlib.import_module(f"{__name__}.driver.modules").lower(inp, args, name, target)
        return text


# TVM has `tvm.lower` the function, and we have a package of that name: a module's class may be replaced after its
# import, so that both are one object.
lower.__class__ = _CallablePackage
# Early, so that `ctypes.CDLL` loads libraries linked with the FFI before its Python package is first used.
load_ffi_library()


__getattr__, __all__ = lazy(
    __name__,
    {
        **dict.fromkeys(
            ("core.target", "te", "tvm.auto_scheduler", "tvm.debug_executor", "tvm.graph_executor", "tvm.nd", "vm"), ""
        ),
        "core.version": "__version__",
        "driver.modules": "build",
        "driver.network_build": "build_network",
        "driver.pass_context": "PassContext",
        "runtime.device": "cpu cuda device opencl",
        "runtime.ffi.registry": "get_global_func list_global_func_names register_func remove_global_func",
    },
)
__all__ += ["load_module", "lower"]
