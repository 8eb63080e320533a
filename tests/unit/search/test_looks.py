"""What programs look like is the same when it was kept, and is left out when it does not hold any more."""

from dataclasses import replace

import numpy as np
import pytest

from retune.compiler.cost_model import RandomModel
from retune.compiler.errors import CorruptRecordError
from retune.compiler.schedule.steps import dump_steps
from retune.compiler.search.looks import KeptLooks, Look, identity_of, looks_from_bytes, looks_to_bytes
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.policy import SketchPolicy, Told
from tests.unit.search.test_policy import CONV, MATMUL, OPTIONS, Spy

NAME = identity_of(CONV, OPTIONS)


def policy_of(spy: Spy) -> SketchPolicy:
    return SketchPolicy(CONV, spy, OPTIONS, seed=4)


@pytest.fixture(scope="module")
def told() -> list[Told]:
    """Programs of the sketches, and one of none."""
    candidates = SketchPolicy(CONV, RandomModel(0), OPTIONS, seed=4).ask(16, 0)
    return [*(Told(one.steps_text, 1e-3) for one in candidates), Told(dump_steps(()), 1e-3)]


@pytest.fixture(scope="module")
def looks(told: list[Told]) -> dict[str, Look]:
    policy = policy_of(Spy())
    policy.tell(told)
    return policy.told.fresh()


def kept(looks: dict[str, Look]) -> KeptLooks:
    return looks_from_bytes(looks_to_bytes({"other": {}, NAME: looks}), (NAME,))[NAME]


def test_a_policy_that_takes_them_over_learns_the_same_and_asks_for_the_same(
    told: list[Told], looks: dict[str, Look], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, quick = Spy(), Spy()
    first, second = policy_of(plain), policy_of(quick)
    first.tell(told)
    second.told.recall([one.steps_text for one in told], kept(looks))
    with monkeypatch.context() as blind:
        blind.setattr(
            "retune.compiler.search.scored.extract", lambda *_, **__: pytest.fail("it looks at programs again")
        )
        second.tell(told)
    np.testing.assert_array_equal(plain.batches[0].features, quick.batches[0].features)
    assert first.ask(16, 1) == second.ask(16, 1)
    assert set(looks) == {one.steps_text for one in told}
    assert second.told.fresh() == {}


def test_a_place_that_holds_another_program_now_is_left_out(looks: dict[str, Look]) -> None:
    policy = policy_of(Spy())
    found = kept(looks)
    whole = found.at(looks, policy.spaces)
    assert len(whole) == len(looks)
    assert len(kept(looks).at(looks, policy.spaces[::-1])) < len(looks)
    assert len(kept(looks).at(looks, policy.spaces[:1])) < len(looks)
    for spoilt in (found.rows * 2, found.rows - 2, found.rows + 2**40, found.rows[:, :3], np.full_like(found.rows, 7)):
        wrong = replace(found, rows=spoilt).at(looks, policy.spaces)
        assert list(wrong) == [text for text, look in looks.items() if look.row is None]


def test_a_task_is_told_apart_by_all_that_features_depend_on() -> None:
    other = replace(CONV, hardware=replace(CONV.hardware, num_cores=7))
    names = {identity_of(CONV, OPTIONS), identity_of(MATMUL, OPTIONS), identity_of(other, OPTIONS)}
    assert len({*names, identity_of(CONV, SearchOptions())}) == 4
    assert looks_from_bytes(looks_to_bytes({NAME: {}}), ("another",)) == {}


def test_bytes_that_are_something_else_are_refused(looks: dict[str, Look]) -> None:
    data = looks_to_bytes({NAME: looks})
    for damaged in (b"", b"PK", data[:-100], data[: len(data) // 2] + b"\0" * 64 + data[len(data) // 2 :]):
        with pytest.raises(CorruptRecordError):
            looks_from_bytes(damaged, (NAME,))
    narrow = {text: replace(look, features=np.ones((2, 3), np.float32)) for text, look in looks.items()}
    with pytest.raises(ValueError, match="must match exactly"):
        looks_to_bytes({NAME: narrow})
    strange = {text: replace(look, features=look.features * np.float32(np.nan)) for text, look in looks.items()}  # type: ignore[operator]
    with pytest.raises(CorruptRecordError, match="are none"):
        looks_from_bytes(looks_to_bytes({NAME: strange}), (NAME,))
