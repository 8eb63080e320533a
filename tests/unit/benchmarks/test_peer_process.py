"""Peers in other interpreters: how they answer, join a comparison, and fail."""

import sys
from pathlib import Path

import pytest

from benchmarks.harness import interleaved
from benchmarks.peer_process import PeerProcess
from retune.compiler.core.errors import MeasureError

PEER = """#!{0}
import json, sys
assert sys.argv[1].endswith("zentorch_peer.py"), sys.argv
print(json.dumps({{**json.loads(sys.argv[2]), "error": 0.0}}), flush=True)
for line in sys.stdin:
    print(json.dumps({{"times": [float(line), 3.0, 2.0]}}), flush=True)
"""


def test_a_peer_joins_a_comparison_with_its_own_times(tmp_path: Path) -> None:
    interpreter = tmp_path / "python"
    interpreter.write_text(PEER.format(sys.executable), encoding="utf-8")
    interpreter.chmod(0o755)
    with PeerProcess(str(interpreter), "zentorch_peer.py", {"model": "m"}, "zentorch", {}) as peer:
        assert peer.ready == {"model": "m", "error": 0.0}
        seconds = interleaved({"ours": lambda: None, "theirs": peer}, passes=2, pass_seconds=0.001)
    assert seconds["theirs"] == 2.0
    assert seconds["ours"] < 1.0


def test_a_peer_that_cannot_start_says_why() -> None:
    with pytest.raises(MeasureError, match=r"zentorch ended early; its last output:[^$]*(zentorch|torch|KeyError)"):
        PeerProcess(sys.executable, "zentorch_peer.py", {}, "zentorch", {})
    with pytest.raises(MeasureError, match="the interpreter '/no/such' for zentorch cannot be started"):
        PeerProcess("/no/such", "zentorch_peer.py", {}, "zentorch", {})
