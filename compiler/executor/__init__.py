"""In: a compiled network, which is plain data. Out: its outputs for given inputs.

Always: needs the runtime only, no compiler pass.
"""

from compiler.executor.graph_executor import CallTime, GraphExecutor
from compiler.executor.network import CompiledNetwork, Coverage
from compiler.executor.plan import BufferKind, BufferSpec, Call, Plan

__all__ = ["BufferKind", "BufferSpec", "Call", "CallTime", "CompiledNetwork", "Coverage", "GraphExecutor", "Plan"]
