"""TVM-compatible `debug_executor`: runs a compiled network node by node, with times and all intermediate values."""

from retune.compiler.runtime.executor.debug_report import Report
from retune.compiler.tvm.debug_module import GraphModuleDebug, create

__all__ = ["GraphModuleDebug", "Report", "create"]
