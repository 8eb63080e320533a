"""Search policies in TVM's form: rounds of programs of one task, measured, and the best of them.

A search with equal seed, parameters and results proposes equal programs.

Differences from TVM:

* 0 is an ordinary seed, and the default;
* if no score is positive the search selects by rank, where TVM always selects the first program;
* a round without a valid program ends the search of its task with a message, not the process.
"""

import logging
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from retune.compiler.codegen.backend import default_steps_of
from retune.compiler.core.errors import OptionError
from retune.compiler.measure.logs.history import carries_over
from retune.compiler.measure.logs.log import read_log
from retune.compiler.measure.record import TaskProgram
from retune.compiler.schedule import state as immutable
from retune.compiler.schedule.steps import dump_steps, load_steps
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search import policy as search
from retune.compiler.search import protocol, rules
from retune.compiler.search.options import SearchOptions
from retune.compiler.tune.tuning_loop import EMPTY_ROUND, Budget, TaskProgress, TuningLoop, first_state
from retune.compiler.tvm.auto_scheduler.cost_model import CostModel, RandomModel, learns_by_itself, searchable, seed_of
from retune.compiler.tvm.auto_scheduler.loop_state import State
from retune.compiler.tvm.auto_scheduler.measure import MeasureInput, MeasureResult, ProgramMeasurer, announce

_log = logging.getLogger(__name__)

# TVM's names and values: scripts read and change this dictionary.
DEFAULT_PARAMS: Mapping[str, Any] = {
    "eps_greedy": 0.05, "retry_search_one_round_on_empty": 1, "sample_init_min_population": 50,
    "sample_init_use_measured_ratio": 0.2, "evolutionary_search_population": 2048, "evolutionary_search_num_iters": 4,
    "evolutionary_search_mutation_prob": 0.85, "cpu_multi_level_tiling_structure": "SSRSRS",
    "gpu_multi_level_tiling_structure": "SSSRRSRS", "max_innermost_split_factor": 64, "max_vectorize_size": 16,
    "disable_change_compute_location": 0,
}  # fmt: skip
"""The parameters of `SketchPolicy`; `SearchOptions.of_params` has their meaning here."""

# TVM's default, too: a policy without a model searches at random.
_KNOWS_NOTHING = RandomModel()

GAVE_UP = "too many of its programs failed in a row"
"""The reason for ending a task without valid programs."""


class PreloadMeasuredStates(protocol.PreloadMeasuredStates):
    """Gives a policy a log's results of its task: no program is measured again, and the best seed the search.

    Records count if they are of the same workload and kind of target. A missing file is empty.
    Raises: LogFormatError, when a policy is created, for a file that is no log.
    """

    def __init__(self, filename: str | Path) -> None:
        super().__init__(lambda task: logged_programs(filename, task))


def logged_programs(filename: str | Path, task: SearchTask) -> list[TaskProgram]:
    """A log's results of a task. Raises: LogFormatError."""
    path = Path(filename)
    if not path.exists():
        _log.warning("there is no log %s yet: nothing to begin with", path)
        return []
    target, key = str(task.target), task.workload_key
    return [
        trial.program
        for trial in read_log(path)
        if trial.task.workload_key == key and carries_over(trial.task.target_text, target)
    ]


class PreloadCustomSketchRule(rules.PreloadCustomSketchRule):
    """A custom sketch rule, applied before the others.

    `meet_condition_func(search_policy, state, stage_id)` returns PASS, APPLY or APPLY_AND_SKIP_REST;
    `apply_func(search_policy, state, stage_id)` returns pairs of a state and the stage to visit next, -1 to end the
    derivation. Both get their own state, which they may change.
    """

    def __init__(
        self,
        meet_condition_func: Callable[[Any, State, int], int],
        apply_func: Callable[[Any, State, int], Iterable[Any]],
        rule_name: str = "CustomSketchRule",
    ) -> None:
        def condition(policy: Any, state: immutable.State, stage: int) -> int:
            return meet_condition_func(_face(policy), State(state), stage)

        def apply(policy: Any, state: immutable.State, stage: int) -> Iterable[tuple[immutable.State, int]]:
            for made in apply_func(_face(policy), State(state), stage):
                if not isinstance(made, Sequence) or len(made) != 2:
                    raise OptionError(f"{rule_name}: apply_func gives pairs [state, stage], not {made!r:.80}")
                yield State(made[0]).value, int(made[1])

        super().__init__(condition, apply, rule_name)


SearchCallback = protocol.SearchCallback | rules.PreloadCustomSketchRule


class SearchPolicy:
    """A search for the best program of a task, round by round.

    `policy` proposes programs and learns: any object with `ask` and `tell` of `retune.compiler.search.policy.Policy`.
    `model` is a cost model that the policy does not train itself. `spent` is the used share of a search's trials.
    """

    def __init__(
        self, task: SearchTask, policy: protocol.Policy, model: CostModel | None = None, verbose: int = 1
    ) -> None:
        self.search_task = task
        self.verbose = verbose
        self.rounds = 0
        self.spent = 0.0
        self.policy = policy
        self._model = model

    def preload(self, results: Sequence[TaskProgram]) -> None:
        """Take in earlier measurements, without training the cost model if possible."""
        # The model may come from a file that has learned these results already.
        take = getattr(self.policy, "preload", self.policy.tell)
        take(results)

    def warm_start(self, programs: Sequence[str]) -> None:
        """Take good programs of similar tasks, as steps strings, best first; a sketch search refits their tiles."""
        if isinstance(self.policy, search.SketchPolicy):
            self.policy.warm_start(programs)

    def propose(self, count: int) -> list[MeasureInput]:
        """At most `count` unmeasured programs, the most promising first."""
        if isinstance(self.policy, search.SketchPolicy):
            candidates = self.policy.ask(count, self.rounds, self.spent)
        else:
            candidates = self.policy.ask(count, self.rounds)
        programs = [load_steps(candidate.steps) for candidate in candidates]
        if isinstance(self.policy, search.SketchPolicy) and not self.policy.spaces and not self.rounds:
            programs = [default_steps_of(self.search_task)]  # no sketch is left: every rule failed
        graph = self.search_task.dag
        return [MeasureInput(self.search_task, State(immutable.replay(graph, steps))) for steps in programs]

    def continue_search_one_round(
        self, num_measure: int, measurer: ProgramMeasurer
    ) -> tuple[list[MeasureInput], list[MeasureResult]]:
        """Measure a round of at most `num_measure` programs and learn from it; empty if there is no further program.

        Raises: MeasureError.
        """
        inputs = self.propose(num_measure)
        results = measurer.measure(self, inputs)
        self.rounds += 1
        if inputs:
            self.policy.tell(measured_programs(inputs, results))
            if self._model is not None:
                self._model.update(inputs, results)
        return inputs, results

    def search(
        self,
        num_measure_trials: int,
        early_stopping: int | None,
        num_measures_per_round: int,
        measurer: ProgramMeasurer,
    ) -> State | None:
        """The fastest of `num_measure_trials` measured programs; with 0 the first candidate. None if there is no valid
        program.

        Raises: MeasureError.
        """
        if num_measure_trials < 1:
            candidates = self.propose(1)
            return State(candidates[0].state) if candidates and isinstance(candidates[0].state, State) else None
        loop = TuningLoop([TaskProgress(self.search_task, first_state(self.search_task, 1.0))])
        seconds: list[float] = []
        for round_ in loop.rounds_until(Budget(num_measure_trials, None, rounds_each=0), num_measures_per_round):
            self.spent = round_.spent
            inputs, results = self.continue_search_one_round(round_.count, measurer)
            seconds += [result.seconds for result in results]
            finish_round(loop, 0, measured_programs(inputs, results), measurer)
            best = min(seconds, default=math.inf)
            unimproved = len(seconds) - 1 - seconds.index(best) if math.isfinite(best) else 0
            # More than, and counted in measurements, as in TVM.
            if early_stopping is not None and unimproved > early_stopping:
                self._say(f"stopped early: {unimproved} measurements brought nothing")
                break
        if reason := loop.tasks[0].stop_reason:
            self._say(reason)
        fastest = measurer.best(self.search_task)
        return State(fastest[1].state) if fastest is not None and isinstance(fastest[1].state, State) else None

    def _say(self, text: str) -> None:
        announce(_log, self.verbose, f"{self.search_task.name}: {text}")


class EmptyPolicy(SearchPolicy):
    """Measures the program without steps, once."""

    def __init__(
        self, task: SearchTask, init_search_callbacks: Sequence[protocol.SearchCallback] | None = None
    ) -> None:
        super().__init__(task, protocol.EmptyPolicy(task, init_search_callbacks or ()))


class SketchPolicy(SearchPolicy):
    """Samples programs from sketches and evolves them under a cost model.

    `params` are some of `DEFAULT_PARAMS`. `init_search_callbacks` are `PreloadMeasuredStates` and
    `PreloadCustomSketchRule`, or objects with their methods. `seed` None means 0.
    """

    DEFAULT_PARAMS = DEFAULT_PARAMS

    def __init__(
        self,
        task: SearchTask,
        program_cost_model: CostModel = _KNOWS_NOTHING,
        params: Mapping[str, Any] | None = None,
        seed: int | None = None,
        verbose: int = 1,
        init_search_callbacks: Sequence[SearchCallback] | None = None,
    ) -> None:
        """Derives the sketches. Raises: OptionError for an unknown or invalid parameter or seed."""
        if not isinstance(program_cost_model, CostModel):
            raise OptionError(f"a cost model has the methods update and predict, {program_cost_model!r} has not")
        self.search_task = task  # custom rules use it during the derivation of the sketches
        self.seed = seed_of(seed)
        self.program_cost_model = program_cost_model
        self._sketch = _Sketches(
            task,
            searchable(program_cost_model),
            SearchOptions.of_params({**DEFAULT_PARAMS, **(params or {})}),
            self.seed,
            init_search_callbacks or (),
            face=self,
        )
        for failure in self._sketch.failed_rules:
            _log.warning("%s: %s", task.name, failure)
        own = None if learns_by_itself(program_cost_model) else program_cost_model
        super().__init__(task, self._sketch, own, verbose)

    def generate_sketches(self, print_for_debug: bool = False) -> list[State]:
        """The sketches in the order of their derivation, tile sizes unknown; `print_for_debug` prints them."""
        sketches = [State(sketch) for sketch in self._sketch.generate_sketches()]
        for number, sketch in enumerate(sketches if print_for_debug else ()):
            sys.stdout.write(f"sketch {number} of {self.search_task.name}:\n{sketch}\n")
        return sketches

    def sample_initial_population(self) -> list[State]:
        """Different valid programs of all sketches, new at every call."""
        return [State(state) for state in self._sketch.sample_initial_population()]

    def evolutionary_search(self, init_populations: Sequence[State], out_size: int) -> list[State]:
        """The best `out_size` programs evolved from `init_populations` under the cost model, best first."""
        first = [State(state).value for state in init_populations]
        return [State(state) for state in self._sketch.evolutionary_search(first, out_size)]


class _Sketches(search.SketchPolicy):
    """The search itself, which passes `face`, the user's policy, to the user's rules."""

    def __init__(self, *args: Any, face: SketchPolicy) -> None:
        self.face = face
        super().__init__(*args)


def _face(policy: Any) -> Any:
    return getattr(policy, "face", policy)


def measured_programs(inputs: Sequence[MeasureInput], results: Sequence[MeasureResult]) -> list[TaskProgram]:
    """Measurements in the form for policies of `retune.compiler.search`."""
    return [
        TaskProgram(inp.task.workload_key, dump_steps(inp.state.steps), result.seconds)
        for inp, result in zip(inputs, results, strict=True)
    ]


def finish_round(loop: TuningLoop[Any], index: int, programs: Sequence[TaskProgram], measurer: ProgramMeasurer) -> None:
    """Report a round of task `index` to the loop. An empty round, or too many failures, end the task."""
    gave_up = measurer.gave_up(loop.tasks[index].task)
    loop.finish_round(index, programs, EMPTY_ROUND if not programs else GAVE_UP if gave_up else "")


def search_policy_of(task: SearchTask, policy: Any) -> Any:
    """A policy that searches in rounds, from a user's object: a policy of this module, or anything with `ask` and
    `tell`.

    Raises: OptionError for anything else.
    """
    if hasattr(policy, "continue_search_one_round"):
        return policy
    if hasattr(policy, "ask") and hasattr(policy, "tell"):
        return SearchPolicy(task, policy)
    raise OptionError(f"a search policy has the methods ask and tell, or is one of this package, not {policy!r}")
