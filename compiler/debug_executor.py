"""TVM-compatible `debug_executor`: runs a compiled network node by node, with times and all intermediate values."""

from retune.compiler.executor.debug_module import GraphModuleDebug, create
from retune.compiler.executor.debug_report import Report

__all__ = ["GraphModuleDebug", "Report", "create"]
