"""In: a compute graph and derivation rules. Out: its sketches: program structures with unknown tile lengths. Always:
the same order, wave by wave.
"""

from collections.abc import Sequence

from compiler.schedule.dag import ComputeDAG
from compiler.schedule.state import State
from compiler.search.sketch_rules import CPU_RULES, SketchContext, SketchRule, Verdict


def derive_sketches(
    dag: ComputeDAG, context: SketchContext, rules: Sequence[SketchRule] = CPU_RULES
) -> tuple[State, ...]:
    """Visit the stages from the last to the first, letting every rule that applies branch the derivation."""
    finished: list[State] = []
    initial = State.initial(dag)
    wave: list[tuple[State, int]] = [(initial, len(initial.stages) - 1)]
    while wave:
        following: list[tuple[State, int]] = []
        for state, stage in wave:
            if stage < 0:
                finished.append(state)
                continue
            for rule in rules:
                verdict = rule.judge(context, state, stage)
                if verdict is Verdict.SKIP:
                    continue
                following.extend(rule.expand(context, state, stage))
                if verdict is Verdict.APPLY_AND_STOP:
                    break
        wave = following
    return tuple(finished)
