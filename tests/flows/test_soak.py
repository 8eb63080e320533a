"""A long run holds on to nothing: memory and open files stay where they were."""

from pathlib import Path

import pytest

from benchmarks.soak import MIB, figures, soak
from tests.support.flows.networks import write_mlp

ROUNDS, BATCH = 500, 4


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_five_hundred_rounds(tmp_path: Path) -> None:
    network = write_mlp(tmp_path / "small.onnx", widths=(256, 512, 128), batch=16)
    found = soak(str(network), ROUNDS, BATCH, 1700.0, tmp_path / "home")
    said = "\n".join(f"{each.case} {each.metric}: {each.value:.3f} {each.unit}" for each in figures(found))
    assert found.looks[-1].rounds >= ROUNDS - 2
    assert found.growth("files") <= 2, said
    # 2000 programs that the cost model learns from, and what the search knows of them, are about 20 MiB
    assert found.growth("memory") < 60 * MIB, said
    assert found.growth("server_memory") < 100 * MIB, said
