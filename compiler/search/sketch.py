"""Sketch generation: derives program structures with unknown tile lengths from a compute graph.

The derivation is breadth-first, and the order of sketches is deterministic.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

from retune.compiler.core.errors import OptionError
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import State
from retune.compiler.schedule.steps import Rfactor, Split
from retune.compiler.search.rules import RULES, SketchContext, SketchRule, Verdict

_log = logging.getLogger(__name__)


def rules_of(context: SketchContext) -> tuple[SketchRule, ...]:
    """The rules of the machine that the options leave in."""
    off = context.options.without_rules
    return tuple(rule for rule in RULES[context.kind.name] if type(rule).__name__ not in off)


def derive_sketches(
    dag: ComputeDAG,
    context: SketchContext,
    rules: Sequence[SketchRule] | None = None,
    failures: list[str] | None = None,
) -> tuple[State, ...]:
    """Visit the stages from the last to the first; every rule that applies branches the derivation.

    `rules` default to the machine's. A rule that raises loses its sketches: `failures` gets a sentence, or the log if
    `failures` is None.
    """
    rules = rules_of(context) if rules is None else rules
    finished: list[State] = []
    initial = State.initial(dag)
    # Ansor's derivation: a worklist of states, each with the stage to visit next, in waves.
    wave: list[tuple[State, int]] = [(initial, len(initial.stages) - 1)]
    while wave:
        following: list[tuple[State, int]] = []
        for state, stage in wave:
            if stage < 0:
                finished.append(_with_open_factors(state))
                continue
            for rule in rules:
                try:
                    verdict = rule.judge(context, state, stage)
                    if verdict is Verdict.SKIP:
                        continue
                    following.extend(tuple(rule.expand(context, state, stage)))
                except OptionError:
                    raise
                except Exception as error:  # of a user's rule, which may raise anything
                    name = getattr(rule, "name", type(rule).__name__)
                    text = " ".join(f"{type(error).__name__}: {error}".split())
                    report_failure(failures, f"sketch rule {name} fails at {state.stages[stage].op.name}: {text}")
                    continue
                if verdict is Verdict.APPLY_AND_STOP:
                    break
        wave = following
    return tuple(finished)


def report_failure(failures: list[str] | None, text: str) -> None:
    """Add a sentence to `failures` once, or log it if `failures` is None."""
    if failures is None:
        _log.warning("%s", text)
    elif text not in failures:
        failures.append(text)


def _with_open_factors(state: State) -> State:
    """The sketch with every factor of 1 of a factored reduction unknown in its history; its loops stay."""
    steps = list(state.steps)
    for number, step in enumerate(steps):
        # `AddRfactor` splits by 1 for now: the number of parts is searched like a tile length.
        before = steps[number - 1] if number else None
        if isinstance(step, Rfactor) and isinstance(before, Split) and before.lengths == (1,):
            steps[number - 1] = replace(before, lengths=(None,))
    return replace(state, steps=tuple(steps))
