"""Features of whole search spaces: a family in columns, its programs one by one, and replayed steps."""

import numpy as np
import pytest

from benchmarks.search_speed import HARDWARE, convolution
from retune.compiler.model.features import FEATURE_NAMES, extract
from retune.compiler.schedule.choices import choices_of
from retune.compiler.schedule.state import replay
from retune.compiler.schedule.statements import statement_nests
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.spaces import build_spaces

COUNT = 24


@pytest.fixture(scope="module")
def task() -> SearchTask:
    return convolution(14, 32, 48, 3, 2)


def test_a_family_has_the_features_of_its_programs_steps(task: SearchTask) -> None:
    rng = np.random.default_rng(0)
    seen = 0
    for space in build_spaces(task, SearchOptions()):
        for _, group in space.groups(space.sample(rng, COUNT)):
            family = extract(group.nests, group.choices, HARDWARE, count=len(group.rows))
            assert np.isfinite(family).all()
            for row, features in zip(group.rows[:3], family[:3], strict=True):
                state = replay(task.dag, space.steps(row))
                single = extract(statement_nests(state), choices_of(state), HARDWARE)[0]
                differing = {FEATURE_NAMES[column] for column in np.argwhere(single != features)[:, 1]}
                assert not differing
                seen += 1
    assert seen > 10


def test_every_statement_does_its_work_once_or_more(task: SearchTask) -> None:
    mad, moved = FEATURE_NAMES.index("float_mad"), FEATURE_NAMES.index("traffic_8m")
    work = 14 * 14 * 48 * 32 * 9
    for space in build_spaces(task, SearchOptions()):
        for _, group in space.groups(space.sample(np.random.default_rng(1), COUNT)):
            family = extract(group.nests, group.choices, HARDWARE, count=len(group.rows))
            done = np.exp2(family[:, :, mad].astype(np.float64)).max(axis=1)
            assert np.all(done >= work * 0.999)
            assert np.all(family[:, :, moved] > 0)
