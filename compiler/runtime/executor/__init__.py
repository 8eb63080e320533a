"""Runs compiled networks, which are plain data: needs the runtime only, no compiler pass."""

from retune.compiler.runtime.executor.graph_executor import GraphExecutor
from retune.compiler.runtime.executor.network import CompiledNetwork
from retune.compiler.runtime.executor.plan import BufferKind, BufferSpec, Call, Plan
from retune.compiler.runtime.executor.timed_executor import CallTime

__all__ = ["BufferKind", "BufferSpec", "Call", "CallTime", "CompiledNetwork", "GraphExecutor", "Plan"]
