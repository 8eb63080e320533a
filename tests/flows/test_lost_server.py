"""The Prefect server is killed in the middle of a run, and started again or not. What is stored is right either way."""

import subprocess
from pathlib import Path

import pytest

from retune.storage.runs import RunLedger
from tests.support.flows.servers import free_port, server
from tests.support.flows.simulated_runs import PATIENCE_SECONDS, TRIALS, Lab, outcome


def wait_or_kill(process: "subprocess.Popen[bytes]") -> None:
    """Prefect may ask a server that is away for many minutes; who does not want to wait ends the run."""
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("returns", [True, False], ids=["returns", "stays away"])
def test_a_server_that_is_killed(tmp_path: Path, returns: bool) -> None:
    port = free_port()
    lab = Lab(tmp_path, f"http://127.0.0.1:{port}/api")
    with server(tmp_path / "prefect", port):
        lab.finish()
        undisturbed = outcome(lab.home)
    lab.name = "disturbed"
    with server(tmp_path / "prefect", port):
        disturbed = lab.started(pause=0.5)
        process = disturbed.__enter__()
        lab.wait_for_rounds(process, 3)
    acknowledged = {record.record_id for record in lab.stored()}
    try:
        if returns:
            with server(tmp_path / "prefect", port):
                process.wait(PATIENCE_SECONDS)
        else:
            wait_or_kill(process)
    finally:
        disturbed.__exit__(None, None, None)
    assert acknowledged <= {record.record_id for record in lab.stored()}
    (run,) = RunLedger(lab.home).list()
    if not run.is_complete:
        with server(tmp_path / "prefect", port):
            lab.finish()
    assert outcome(lab.home) == undisturbed
    assert len(undisturbed) == TRIALS
