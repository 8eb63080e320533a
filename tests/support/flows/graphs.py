"""The graph that Prefect's page of a flow run draws."""

from itertools import pairwise

from prefect import get_client
from prefect.client.schemas.filters import FlowRunFilter


def arrows(flow_run: str) -> dict[str, set[str]]:
    """What each task run or flow run on the page of a flow run follows, in the order of their beginning."""
    with get_client(sync_client=True) as client:
        named = FlowRunFilter.model_validate({"name": {"any_": [flow_run]}})
        run = max(client.read_flow_runs(flow_run_filter=named), key=lambda each: str(each.created))
        nodes = dict(client.request("GET", "/flow_runs/{id}/graph-v2", path_params={"id": run.id}).json()["nodes"])
    names = {key: node["label"].partition(" / ")[0] for key, node in nodes.items()}
    return {names[key]: {names[each["id"]] for each in node["parents"]} for key, node in nodes.items()}


def follow(graph: dict[str, set[str]], order: list[str]) -> None:
    """Each name, or the one that begins so, follows the one before."""
    names = [next(name for name in graph if name.startswith(start)) for start in order]
    for before, name in pairwise(names):
        assert before in graph[name], name
