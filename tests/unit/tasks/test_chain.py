"""The order of runs comes from what they wait for, not from the addresses of values."""

from types import SimpleNamespace

import pytest
from prefect.context import FlowRunContext
from prefect.utilities.engine import get_state_for_result, link_state_to_task_run_result

from retune.tasks.chain import finished_state, forget_results


def test_a_value_at_the_address_of_a_forgotten_result_belongs_to_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    context = SimpleNamespace(run_results={})
    monkeypatch.setattr(FlowRunContext, "get", lambda: context)
    result = ["a list, of which Prefect keeps the address"]
    link_state_to_task_run_result(finished_state(None), result)
    assert get_state_for_result(result) is not None
    forget_results()
    assert get_state_for_result(result) is None
