"""Binds the regions of a program to what computes them on one machine.

A `PlanRegion` is bound to its kernels. Any other region is bound to code that compiles it when its shapes are known; a
region of a `HostCall` to NumPy.
"""

import importlib
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from retune.compiler.core.errors import ArtifactError
from retune.compiler.graph.program import Call, HostCall, Program
from retune.compiler.graph.region import Region
from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.executor.network import CompiledNetwork
from retune.compiler.runtime.loader import Kernel
from retune.compiler.vm.plan_region import PlanRegion
from retune.compiler.vm.plan_run import Callee, PlanRun, SymbolicCallee
from retune.compiler.vm.program_constants import POOL
from retune.compiler.vm.resources import BACKGROUND, NEVER, NOW, Resources
from retune.compiler.vm.symbolic_plan import SymbolicPlan, SymbolicPlanRegion
from retune.compiler.vm.values import evaluate_region


class Callees:
    """The callees of one machine."""

    def __init__(self, program: Program, resources: Resources) -> None:
        self.resources = resources
        self._constants = program.constants
        self._bound: dict[tuple[object, ...], Callee] = {}
        self.specialized: dict[str, Any] = {}
        """Callees of regions without a plan, by name of the region."""
        self._compiler: Any = None

    def constant(self, name: str) -> Array:
        """The constant of that name, aligned and read-only."""
        return POOL.intern(self._constants[name])

    def of(self, call: Call | HostCall, own: Collection[str]) -> tuple[Callee, tuple[str, ...]]:
        """The callee of `call`, and the inputs that it is passed. `own` are names that the function of the call has
        defined; other names are constants, which only a plan is passed.

        Raises: ArtifactError when the library lacks a kernel, or a plan does not fit.
        """
        region = call.region
        pairs = list(zip(region.inputs, call.inputs, strict=True))
        is_plan = isinstance(region, PlanRegion)
        fixed = {} if is_plan else {inner: name for inner, name in pairs if name not in own}
        key = (id(region), type(call), *fixed.items())
        if key not in self._bound and isinstance(region, PlanRegion):
            self._bound[key] = self._plan(region)
        elif key not in self._bound:
            arrays = {inner: self._constants[name] for inner, name in fixed.items()}
            if isinstance(region, SymbolicPlanRegion):
                self._bound[key] = self._symbolic(region, arrays)
            else:
                self._bound[key] = self._specialize(region, arrays, is_host=isinstance(call, HostCall))
        return self._bound[key], tuple(name for inner, name in pairs if inner not in fixed)

    def _specialize(
        self, region: Region, fixed: Mapping[str, Array], *, is_host: bool = False, run: PlanRun | None = None
    ) -> Callee:
        """What computes a region when its shapes are known: compiled code, or NumPy; `run` is for many shapes."""
        evaluate = partial(evaluate_region, region, fixed, self._constants, self.resources.allocator)
        callee: Callee = evaluate
        if not is_host and self.resources.options.specialize != NEVER:
            # A network whose kernels are all there needs no compiler to run.
            module = importlib.import_module("retune.compiler.vm.specialize")
            self._compiler = self._compiler or module.RegionCompiler(self.resources, self._constants)
            meanwhile = evaluate if run is None else SymbolicCallee(run, lambda: evaluate)
            callee = module.SpecializedRegion(region, fixed, self._compiler, meanwhile)
        self.specialized[region.name] = callee
        return callee

    def _symbolic(self, region: SymbolicPlanRegion, fixed: Mapping[str, Array]) -> Callee:
        """A plan for all shapes. Raises: ArtifactError when plan, kernels and constants do not fit each other."""
        if self.resources.options.specialize == NOW:
            return self._specialize(region.original, fixed)
        kernels = {name: self._kernel(name) for name in region.kernels}
        constants = {number: self.constant(name) for number, name in region.buffers.items()}
        groups = {name: self._specialize(region.group(name), {}) for name in region.groups}
        region.plan.verify({name: kernel.artifact for name, kernel in kernels.items()}, constants)
        run = PlanRun(region.plan, kernels, constants, groups, self.resources)
        if self.resources.options.specialize == BACKGROUND:
            return self._specialize(region.original, fixed, run=run)
        return SymbolicCallee(run, lambda: self._specialize(region.original, fixed))

    def _plan(self, region: PlanRegion) -> PlanRun:
        """A network of known shapes. Raises: ArtifactError when plan, kernels and constants do not fit each other."""
        kernels = {name: self._kernel(name) for name in region.kernels}
        constants = {number: self.constant(name) for number, name in region.buffers.items()}
        CompiledNetwork(region.plan, tuple(kernel.artifact for kernel in kernels.values()), constants).verify()
        return PlanRun(SymbolicPlan(region.plan), kernels, constants, {}, self.resources)

    def _kernel(self, name: str) -> Kernel:
        if name not in self.resources.kernels:
            raise ArtifactError(f"the library has no kernel {name!r}")
        return self.resources.kernels[name]
