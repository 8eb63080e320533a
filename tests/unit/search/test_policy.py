"""The policy: distinct legal candidates, determinism, resuming, foreign programs, and an end."""

import json
from contextlib import suppress
from math import inf

import numpy as np
import pytest
from numpy.typing import NDArray

from retune.compiler import te
from retune.compiler.core.errors import OptionError, ScheduleError
from retune.compiler.measure.record import TaskProgram
from retune.compiler.model import RandomModel, TrainingBatch, XGBModel
from retune.compiler.model.features import FEATURE_NAMES
from retune.compiler.schedule.choices import choices_of
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import replay
from retune.compiler.schedule.statements import statement_nests
from retune.compiler.schedule.steps import Annotate, dump_steps, load_steps
from retune.compiler.search.genome import Rows
from retune.compiler.search.legality import legal
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.policy import SketchPolicy
from retune.compiler.search.protocol import EmptyPolicy, program_id
from retune.compiler.search.rules import PreloadCustomSketchRule
from retune.compiler.search.space import SketchSpace
from tests.support.workloads import CORES, conv_residual_nhwc, matmul, relu_only, task_of

OPTIONS = SearchOptions(population=96, generations=2, max_location_variants=3)
CONV = task_of("conv", conv_residual_nhwc(14, 32))
MATMUL = task_of("matmul", matmul(64, 64, 64))


class Spy(RandomModel):
    """A random model that remembers what it was taught."""

    def __init__(self) -> None:
        super().__init__(0)
        self.batches: list[TrainingBatch] = []

    def update(self, batch: TrainingBatch) -> None:
        self.batches.append(batch)


class Hopeless(RandomModel):
    """A model that holds every program for invalid."""

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        return np.full(len(features), -np.inf)


def timed(candidates: tuple[TaskProgram, ...]) -> list[TaskProgram]:
    """Made-up but reproducible times; every seventh program fails."""
    return [
        TaskProgram("", text, inf if int(program_id(text), 16) % 7 == 0 else 1e-6 * len(text) ** 2)
        for text in (program.steps for program in candidates)
    ]


@pytest.mark.parametrize("task", [CONV, MATMUL])
def test_candidates_are_distinct_legal_and_of_every_sketch(task: object) -> None:
    assert task in (CONV, MATMUL)
    chosen = CONV if task is CONV else MATMUL
    policy = SketchPolicy(chosen, RandomModel(0), OPTIONS, seed=1)
    candidates = policy.ask(32, 0)
    assert len({program.steps for program in candidates}) == 32
    spaces = set()
    for one in candidates:
        state = replay(chosen.dag, load_steps(one.steps))
        assert legal(statement_nests(state), choices_of(state), CORES, OPTIONS, 1).all()
        spaces.add(next(n for n, space in enumerate(policy.spaces) if space.row_of(load_steps(one.steps)) is not None))
    assert spaces == set(range(3))


@pytest.mark.parametrize(("ratio", "least", "most"), [(0.0, 0, 15), (0.5, 12, 27), (1.0, 32, 32)])
def test_a_part_of_the_first_batches_are_samples_as_they_were_drawn(ratio: float, least: int, most: int) -> None:
    options = SearchOptions(population=256, generations=4, sampled_ratio=ratio, prior_ratio=1.0)
    candidates = SketchPolicy(CONV, RandomModel(0), options).ask(32, 0)
    assert least <= sum(one.mutation == "sample" for one in candidates) <= most


def test_equal_seeds_ask_alike_and_other_seeds_or_rounds_do_not() -> None:
    def asked(seed: int, round_index: int) -> list[str]:
        return [program.steps for program in SketchPolicy(CONV, RandomModel(0), OPTIONS, seed).ask(16, round_index)]

    assert asked(0, 0) == asked(0, 0)
    assert asked(0, 0) != asked(1, 0)
    assert asked(0, 0) != asked(0, 1)


def test_observed_programs_are_not_proposed_again() -> None:
    policy = SketchPolicy(CONV, RandomModel(0), OPTIONS)
    told: set[str] = set()
    for round_index in range(3):
        candidates = policy.ask(24, round_index)
        assert len(candidates) == 24
        assert not told & {program.steps for program in candidates}
        told |= {program.steps for program in candidates}
        policy.tell(timed(candidates))


def test_a_resumed_policy_goes_on_as_the_uninterrupted_one() -> None:
    whole = SketchPolicy(CONV, XGBModel(0, threads=1), OPTIONS, seed=4)
    batches = []
    for round_index in range(3):
        batches.append(timed(whole.ask(16, round_index)))
        whole.tell(batches[-1])
    resumed = SketchPolicy(CONV, XGBModel(0, threads=1), OPTIONS, seed=4)
    for batch in batches:
        resumed.tell(batch)
    assert resumed.ask(16, 3) == whole.ask(16, 3)


def test_features_extracted_ahead_train_the_same_model() -> None:
    def told(ahead: bool) -> tuple[list[TrainingBatch], tuple[TaskProgram, ...]]:
        spy = Spy()
        policy = SketchPolicy(CONV, spy, OPTIONS, seed=4)
        if ahead:
            policy.expect(program.steps for batch in batches for program in batch)
        for batch in batches:
            policy.tell(batch)
        return spy.batches, policy.ask(16, 3)

    source = SketchPolicy(CONV, RandomModel(0), OPTIONS, seed=4)
    foreign = TaskProgram("", dump_steps(()), 1e-3)
    batches = [[*timed(source.ask(16, number)), foreign] for number in range(3)]
    (plain, next_plain), (ahead, next_ahead) = told(ahead=False), told(ahead=True)
    assert next_plain == next_ahead
    assert len(plain) == len(ahead) == 3
    for one, other in zip(plain, ahead, strict=True):
        np.testing.assert_array_equal(one.features, other.features)
        np.testing.assert_array_equal(one.seconds, other.seconds)


def test_features_of_proposed_programs_are_extracted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    proposing, loading = Spy(), Spy()
    policy = SketchPolicy(CONV, proposing, OPTIONS, seed=4)
    results = timed(policy.ask(16, 0))
    SketchPolicy(CONV, loading, OPTIONS, seed=4).tell(results)
    monkeypatch.setattr(
        "retune.compiler.search.program_features.extract", lambda *_, **__: pytest.fail("extracted again")
    )
    policy.tell(results)
    np.testing.assert_array_equal(proposing.batches[0].features, loading.batches[0].features)


def test_each_tell_is_one_model_update_in_order() -> None:
    model = Spy()
    policy = SketchPolicy(MATMUL, model, OPTIONS)
    results = timed(policy.ask(20, 0))
    policy.tell(results)
    (batch,) = model.batches
    assert batch.task_key == MATMUL.workload_key
    assert batch.features.shape == (20, 2, len(FEATURE_NAMES))
    assert batch.seconds.tolist() == [np.inf if told.seconds is None else told.seconds for told in results]


def test_features_of_observed_programs_do_not_depend_on_the_batch() -> None:
    model = Spy()
    policy = SketchPolicy(CONV, model, OPTIONS)
    results = timed(policy.ask(12, 0))
    policy.tell(results)
    for told in results:
        policy.tell([told])
    together, *alone = model.batches
    assert np.array_equal(together.features, np.concatenate([batch.features for batch in alone]))


def test_the_best_measured_programs_have_children() -> None:
    policy = SketchPolicy(CONV, XGBModel(0, threads=1), OPTIONS)
    for round_index in range(3):
        results = timed(policy.ask(32, round_index))
        policy.tell(results)
    told = {program_id(text) for text in policy.observed.seconds}
    assert any(program.parent_id in told for program in policy.ask(32, 3))


def test_programs_of_other_searches_train_the_model() -> None:
    model = Spy()
    policy = SketchPolicy(MATMUL, model, OPTIONS)
    foreign = dump_steps((Annotate(2, 0, 3),))
    policy.tell([TaskProgram("", foreign, 1e-3), TaskProgram("", dump_steps((Annotate(9, 0, 3),)), 1e-3)])
    (batch,) = model.batches
    assert len(batch.features) == 1
    assert policy.best_seconds == 1e-3
    assert len(policy.ask(8, 1)) == 8


def test_a_small_space_is_exhausted() -> None:
    policy = SketchPolicy(task_of("relu", relu_only(64)), RandomModel(0), OPTIONS)
    asked: list[str] = []
    for round_index in range(10):
        candidates = policy.ask(16, round_index)
        asked += [program.steps for program in candidates]
        policy.tell(timed(candidates))
        if not candidates:
            break
    assert policy.ask(16, 11) == ()
    assert 0 < len(asked) == len(set(asked)) < 10


def test_the_last_attempt_of_a_small_batch_samples_all_placements(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int | None] = []

    def sample(space: SketchSpace, rng: np.random.Generator, count: int, placements: int | None = None) -> Rows:  # noqa: ARG001
        asked.append(placements)
        return np.ones((0, space.layout.width), dtype=np.int64)

    monkeypatch.setattr(SketchSpace, "sample", sample)
    policy = SketchPolicy(CONV, RandomModel(0), SearchOptions(batch_per_placement=2, retries=2))
    assert policy.ask(5, 0) == ()
    assert list(dict.fromkeys(asked)) == [3, None]
    assert asked.count(3) == 2 * asked.count(None)


def test_a_round_that_yields_nothing_is_tried_again_with_other_samples() -> None:
    """A population of one program a sketch, asked for the same round again: it samples what is known already."""

    def asked(retries: int) -> list[str]:
        options = SearchOptions(population=1, generations=0, retries=retries)
        policy = SketchPolicy(MATMUL, RandomModel(0), options)
        texts: list[str] = []
        while candidates := policy.ask(8, 0):
            texts += [program.steps for program in candidates]
            policy.tell(timed(candidates))
        return texts

    once, twice, often = asked(0), asked(1), asked(4)
    assert 0 < len(once) < len(twice) < len(often) == len(set(often))
    assert often[: len(twice)] == twice
    assert twice[: len(once)] == once
    with pytest.raises(OptionError, match="retries"):
        SearchOptions(retries=-1)
    with pytest.raises(OptionError, match="batch_per_placement"):
        SearchOptions(batch_per_placement=0)


def test_two_sketches_that_are_one_give_their_programs_once() -> None:
    unchanged = PreloadCustomSketchRule(lambda *_: 1, lambda _, state, stage: [(state, stage - 1)])
    task = task_of("relu", relu_only(64))
    policy = SketchPolicy(task, RandomModel(0), OPTIONS, init_search_callbacks=[unchanged])
    assert len({sketch.steps for sketch in policy.generate_sketches()}) < len(policy.generate_sketches())
    texts = [program.steps for program in policy.ask(64, 0)]
    assert len(texts) == len(set(texts)) == len(SketchPolicy(task, RandomModel(0), OPTIONS).ask(64, 0))


HOSTILE = [
    '[["SP",2,0,64,[4294967296,4294967296,1],1]]',
    '[["SP",2,0,64,[0,1,1],1]]',
    '[["SP",2,0,64,[-1,-1,1],1]]',
    '[["SP",2,0,64,[99999999999999999999999999,1,1],1]]',
    '[["PR",2,0,"auto_unroll_max_step$x"]]',
    '[["PR",2,0,"auto_unroll_max_step$-1"]]',
    '[["FU",2,[0,2147483647]]]',
    '[["PR",2,0,"auto_unroll_max_step$99999999999999999999"]]',
    '[["AN",99999999999999999999999999,-1,3]]',
]


@pytest.mark.parametrize("text", HOSTILE)
def test_malformed_observed_steps_are_ignored(text: str) -> None:
    policy = SketchPolicy(MATMUL, Spy(), OPTIONS)
    whole = json.loads(policy.ask(1, 0)[0].steps)
    (wrong,) = json.loads(text)
    place = next((number for number, step in enumerate(whole) if step[0] == wrong[0]), 0)
    mixed = json.dumps([*whole[:place], wrong, *whole[place + 1 :]])
    for given in (text, mixed):
        with suppress(ScheduleError):  # what cannot be read at all is refused with a sentence
            policy.tell([TaskProgram("", given, 1e-3)])
            policy.warm_start([given])
    assert policy.ask(4, 1)


def test_a_task_without_any_valid_program_is_exhausted_at_once() -> None:
    policy = SketchPolicy(MATMUL, Hopeless(), OPTIONS)
    policy.tell([TaskProgram("", dump_steps((Annotate(2, 0, 3),)), 1e-3)])
    assert policy.ask(8, 1) == ()


def test_the_empty_policy_measures_the_naive_program_once() -> None:
    policy = EmptyPolicy(MATMUL)
    (only,) = policy.ask(8, 0)
    assert only.steps == "[]"
    policy.tell([TaskProgram("", only.steps, 1.0)])
    assert policy.ask(8, 1) == ()


@pytest.mark.parametrize("bad", [{"population": 0}, {"eps_greedy": 2.0}, {"tiling": "SXR"}, {"unroll_limits": ()}])
def test_invalid_search_options_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(OptionError):
        SearchOptions(**bad)  # type: ignore[arg-type]


def test_prime_extents_have_programs() -> None:
    vector = te.placeholder((128,), name="A")
    k = te.reduce_axis(128, "k")
    scalar = ComputeDAG([vector, te.compute((), lambda: te.sum(vector[k], k), "B")])
    for dag in (scalar, matmul(1, 1, 1), matmul(1, 1009, 13), relu_only(1)):
        candidates = SketchPolicy(task_of("odd", dag), RandomModel(0), OPTIONS).ask(4, 0)
        assert candidates
        for one in candidates:
            replay(dag, load_steps(one.steps))


def test_tell_takes_any_number_of_results() -> None:
    policy = SketchPolicy(MATMUL, XGBModel(0, threads=1), OPTIONS)
    policy.tell([])
    results = timed(policy.ask(8, 0))
    policy.tell([*results, *results])
    assert not {told.steps for told in results} & {program.steps for program in policy.ask(8, 1)}
    assert policy.ask(0, 2) == ()


def test_a_batch_has_its_share_of_random_programs() -> None:
    class Shortest(RandomModel):
        """Prefers programs by one column of their features, so that the best are known."""

        def predict(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
            return np.asarray(features.sum(axis=(1, 2)), dtype=np.float64)

    def random_ones(eps: float) -> int:
        options = SearchOptions(population=256, generations=0, eps_greedy=eps, prior_trials=0, max_per_tiling=64)
        policy = SketchPolicy(MATMUL, Shortest(0), options)
        policy.tell(timed(policy.ask(4, 0)))
        scores = [one.predicted for one in policy.ask(40, 1)]
        best = sorted((score for score in scores if score is not None), reverse=True)
        return next((at for at, (one, other) in enumerate(zip(scores, best, strict=True)) if one != other), 40)

    assert random_ones(0.0) == 40
    assert 36 <= random_ones(0.1) <= 40
    assert 20 <= random_ones(0.5) <= 24


@pytest.mark.parametrize(("failed", "disturbed", "taught"), [(0, 3, 5), (0, 4, 4), (0, 5, 8), (4, 2, 2), (4, 4, 4)])
def test_disturbed_timings_teach_only_where_most_are(failed: int, disturbed: int, taught: int) -> None:
    model = Spy()
    policy = SketchPolicy(MATMUL, model, SearchOptions(population=96, generations=2, learn_failures=False))
    texts = [program.steps for program in policy.ask(8, 0)]
    failures = [TaskProgram("", text) for text in texts[:failed]]
    ran = [TaskProgram("", text, 1e-3, is_disturbed=at < disturbed) for at, text in enumerate(texts[failed:])]
    policy.tell([*failures, *ran])
    assert [len(batch.seconds) for batch in model.batches] == [taught]
    assert policy.best_seconds == 1e-3


def test_failures_are_taught_only_where_the_model_may_learn_from_them() -> None:
    for learn in (True, False):
        model = Spy()
        policy = SketchPolicy(MATMUL, model, SearchOptions(population=96, generations=2, learn_failures=learn))
        asked = policy.ask(8, 0)
        policy.tell([TaskProgram("", one.steps, inf if place < 3 else 1e-3) for place, one in enumerate(asked)])
        assert [len(batch.seconds) for batch in model.batches] == [8 if learn else 5]
        assert not {program.steps for program in policy.ask(8, 1)} & {program.steps for program in asked}
