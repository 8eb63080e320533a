"""In: a compiled network, which is plain data. Out: its outputs for given inputs.

Always: needs the runtime only, no compiler pass.
"""

from retune.compiler.executor.graph_executor import CallTime, GraphExecutor
from retune.compiler.executor.network import CompiledNetwork, Coverage
from retune.compiler.executor.plan import BufferKind, BufferSpec, Call, Plan

__all__ = ["BufferKind", "BufferSpec", "Call", "CallTime", "CompiledNetwork", "Coverage", "GraphExecutor", "Plan"]
