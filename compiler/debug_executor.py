"""In: a graph, a library and a device. Out: something that runs it node by node, with times and all values.

Always: names only, the work is done in `retune.compiler.executor`.
"""

from retune.compiler.executor.debug_module import GraphModuleDebug, create
from retune.compiler.executor.debug_report import Report

__all__ = ["GraphModuleDebug", "Report", "create"]
