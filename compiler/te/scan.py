"""Recurrences: tensors whose elements along the first axis follow from earlier elements.

The stages of a step are ordinary computes without the step's axis, in which the step is a variable. So schedules,
lowering and code generation treat them as they treat other stages, inside one loop over the steps.
"""

from collections.abc import Mapping, Sequence
from typing import overload

from retune.compiler.core.errors import DefinitionError
from retune.compiler.ir.affine import affine
from retune.compiler.ir.dims import may_be_positive
from retune.compiler.ir.expr import Expr, Var
from retune.compiler.ir.visit import find, substitute, transform
from retune.compiler.te.checks import checked_attributes, checked_name, with_tag
from retune.compiler.te.compute import compute
from retune.compiler.te.tensor import (
    CONCATENATED,
    PARTIAL_SUMS,
    RANKS,
    SCATTERS,
    ComputeOp,
    PlaceholderOp,
    ScanOp,
    Tensor,
    TensorRead,
    post_order,
    results_of,
    sources_of,
)

_OF_AXES = (CONCATENATED, PARTIAL_SUMS, RANKS, SCATTERS)
"""Attributes that do not hold for a compute with an axis less, or whose result is a state."""


@overload
def scan(
    init: Tensor,
    update: Tensor,
    state_placeholder: Tensor,
    inputs: Sequence[Tensor] | None = None,
    name: str = "scan",
    tag: str = "",
    attrs: Mapping[str, object] | None = None,
) -> Tensor: ...
@overload
def scan(
    init: Sequence[Tensor],
    update: Sequence[Tensor],
    state_placeholder: Sequence[Tensor],
    inputs: Sequence[Tensor] | None = None,
    name: str = "scan",
    tag: str = "",
    attrs: Mapping[str, object] | None = None,
) -> tuple[Tensor, ...]: ...
def scan(
    init: Tensor | Sequence[Tensor],
    update: Tensor | Sequence[Tensor],
    state_placeholder: Tensor | Sequence[Tensor],
    inputs: Sequence[Tensor] | None = None,
    name: str = "scan",
    tag: str = "",
    attrs: Mapping[str, object] | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """States of shape (T, ...), computed step by step along their first axis; several states give a tuple.

        state = te.placeholder((T, n))                       # what a step reads: state[t - 1, i]
        init = te.compute((1, n), lambda t, i: x[0, i])      # the first elements
        update = te.compute((T, n), lambda t, i: state[t - 1, i] + x[t, i])
        total = te.scan(init, update, state)

    `init` has the first `k` elements, `k > 0`. `update` has the shape of the state; its elements from `k` on are
    computed, in order. Its compute, and all between it and the states, have the step as their first axis `t`: they read
    states at `t - 1` up to `t - k`, each other at `t`, and other tensors anywhere. `inputs` may list those, as in TVM;
    they are found without.
    Raises: DefinitionError when shapes, types or reads do not fit.
    """
    inits, updates, states = (_list(name, tensors) for tensors in (init, update, state_placeholder))
    del inputs
    _check(checked_name("a tensor", name), inits, updates, states)
    step = Var(f"{name}.step")
    per_step = _without_steps(name, updates, states, step, inits[0].shape[0])
    attributes = checked_attributes(name, with_tag(attrs, tag))
    results = scan_steps(step, inits, [per_step[update] for update in updates], states, name, attributes)
    return results[0] if isinstance(state_placeholder, Tensor) else results


def scan_steps(
    step: Var,
    inits: Sequence[Tensor],
    updates: Sequence[Tensor],
    states: Sequence[Tensor],
    name: str,
    attrs: Mapping[str, object] | None = None,
) -> tuple[Tensor, ...]:
    """As `scan`, of computes without the step's axis, which read the variable `step`.

    Raises: DefinitionError when an operation makes an update and something else.
    """
    # The loops that write the first elements: an input, or a tensor with other readers, has a buffer of its own.
    first = [compute(init.shape, lambda *point, init=init: init[point], name=f"{name}.init") for init in inits]
    for update in updates:
        if not all(result in updates for result in results_of(update.op)):
            raise DefinitionError(f"{name}: {update.op.name} has a result that updates no state; compute it apart")
    return results_of(ScanOp(name, step, tuple(first), tuple(states), tuple(updates), dict(attrs or {})))


def _list(name: str, tensors: object) -> list[Tensor]:
    listed = [tensors] if isinstance(tensors, Tensor) else tensors
    if not isinstance(listed, Sequence) or not listed or not all(isinstance(tensor, Tensor) for tensor in listed):
        raise DefinitionError(f"{name}: {tensors!r:.80} is no tensor and no list of tensors")
    return list(listed)


def _check(name: str, inits: Sequence[Tensor], updates: Sequence[Tensor], states: Sequence[Tensor]) -> None:
    """Check kinds, numbers, shapes and types. Raises: DefinitionError."""
    if not len(inits) == len(updates) == len(states):
        raise DefinitionError(f"{name}: {len(inits)} first values and {len(updates)} updates of {len(states)} states")
    if len(set(updates)) != len(updates) or len(set(states)) != len(states):
        raise DefinitionError(f"{name}: every state needs a placeholder and an update of its own")
    for init, update, state in zip(inits, updates, states, strict=True):
        if not isinstance(state.op, PlaceholderOp) or not isinstance(update.op, ComputeOp):
            raise DefinitionError(f"{name}: a state is a placeholder and its update a compute, not {state}, {update}")
        if {init.dtype, update.dtype} != {state.dtype}:
            raise DefinitionError(f"{name}: {init} and {update} have another type than the state {state}")
        fits = state.shape and update.shape == state.shape and init.shape[1:] == state.shape[1:]
        if not fits or len(init.shape) != len(state.shape):
            raise DefinitionError(f"{name}: the shapes of {init} and {update} do not fit the state {state}")
        if init.shape[0] != inits[0].shape[0] or state.shape[0] != states[0].shape[0]:
            raise DefinitionError(
                f"{name}: its states differ in the number of elements along the first axis, or of first elements"
            )
        if not may_be_positive(state.shape[0] - init.shape[0]):
            raise DefinitionError(f"{name}: {init} leaves no step of {state} to compute")
    if any(state.op in post_order(inits) for state in states):
        raise DefinitionError(f"{name}: the first values read a state")


def _without_steps(
    name: str, updates: Sequence[Tensor], states: Sequence[Tensor], step: Var, most: int
) -> dict[Tensor, Tensor]:
    """Each tensor of a step without the first axis, which is `step`; states may be read up to `most` steps back."""
    replaced: dict[Tensor, Tensor] = {}
    made = {update.op for update in updates}
    for op in post_order(updates):
        moves = any(source in states or source in replaced for source in sources_of(op))
        if not moves and op not in made:
            continue
        if not isinstance(op, ComputeOp):
            raise DefinitionError(f"{name}: {op.name} reads a state but is no compute; only computes run in a step")
        if not op.axes or op.axes[0].extent != states[0].shape[0]:
            raise DefinitionError(
                f"{name}: {op.name} is computed in every step, so its first axis must run over the "
                f"{states[0].shape[0]} steps"
            )
        attrs = {key: value for key, value in op.attrs.items() if key not in _OF_AXES}
        body = _body_of_step(name, op, replaced, states, step, most)
        replaced.update(zip(results_of(op), results_of(ComputeOp(op.name, op.axes[1:], body, attrs)), strict=True))
    return replaced


def _body_of_step(
    name: str, op: ComputeOp, replaced: Mapping[Tensor, Tensor], states: Sequence[Tensor], step: Var, most: int
) -> Expr:
    time = op.axes[0]
    for read in find(TensorRead, op.body):
        if read.tensor not in states and read.tensor not in replaced:
            continue
        form = affine(read.indices[0])
        back = -form.const if dict(form.terms) == {time: 1} else None
        if read.tensor in states and (back is None or not 1 <= back <= most):
            raise DefinitionError(
                f"{name}: {op.name} reads {read}; a step {time} reads a state at {time} - 1"
                + (f" to {time} - {most}" if most > 1 else "")
            )
        if read.tensor in replaced and back != 0:
            raise DefinitionError(f"{name}: {op.name} reads {read}; a step {time} has only its own elements, at {time}")

    def rule(node: Expr) -> Expr | None:
        if not isinstance(node, TensorRead) or node.tensor not in replaced:
            return None
        return TensorRead(replaced[node.tensor], node.indices[1:])

    return substitute(transform(op.body, rule), {time: step})
