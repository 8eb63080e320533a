"""A large parameter reaches its task as it is, and Prefect does not look into it."""

from dataclasses import dataclass, field

import pytest
from prefect import flow, task
from prefect.cache_policies import NO_CACHE

from retune.tasks.chain import opaque

pytestmark = pytest.mark.usefixtures("prefect_api")


@dataclass
class Watched:
    """Knows who looks at it."""

    probes: list[str] = field(default_factory=list)

    def __getattribute__(self, name: str) -> object:
        if name == "inside":
            object.__getattribute__(self, "probes").append(name)
        return object.__getattribute__(self, name)

    inside: int = 7


@task(cache_policy=NO_CACHE)
def take(given: list[Watched]) -> int:
    assert isinstance(given, list)
    return len(given)


@flow
def hand_over(given: int, *, plain: bool) -> list[str]:
    large = [Watched() for _ in range(given)]
    assert take(large if plain else opaque(large)) == given
    return [probe for one in large for probe in one.probes]


def test_a_task_gets_the_thing_itself_unseen() -> None:
    assert hand_over(3, plain=False) == []
    assert len(hand_over(3, plain=True)) >= 3
