"""The recipes for other servers run as the page has them, each in a process of its own; without the package it is
skipped. Triton's utilities come with its server, so a fake of theirs is used.
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import retune
from tests.test_docs import ROOT
from tests.test_docs_snippets import blocks

PAGE = ROOT / "docs" / "how-to" / "serving.md"

UTILITIES = """
import numpy as np
class Tensor:
    def __init__(self, name, values): self.given, self.values = name, values
    def name(self): return self.given
    def as_numpy(self): return self.values
class InferenceResponse:
    def __init__(self, output_tensors): self.output_tensors = lambda: output_tensors
def get_input_tensor_by_name(request, name): return next(one for one in request if one.name() == name)
"""

AFTER = {
    "mlflow": "",
    "ray": """
import json, urllib.request
request = urllib.request.Request("http://127.0.0.1:8000/", json.dumps(np.ones((1, 784)).tolist()).encode())
scores = json.load(urllib.request.urlopen(request, timeout=60))
serve.shutdown()
""",
    "triton": """
import numpy as np
model = TritonPythonModel()
model.initialize({"model_repository": ".", "model_version": "1"})
request = [pb_utils.Tensor("input", np.ones((1, 784), "float32"))]
responses = model.execute([request, request])
assert [one.output_tensors()[0].name() for one in responses] == ["logits"] * 2
scores = responses[1].output_tensors()[0].as_numpy()
""",
}
"""What is done with the server that a recipe makes, until `scores` are those of an image of ones."""


@pytest.mark.long
@pytest.mark.parametrize("server", AFTER)
def test_a_recipe_for_another_server_computes_what_the_network_does(server: str, tmp_path: Path) -> None:
    if server != "triton" and find_spec(server) is None:
        pytest.skip(f"{server} is not installed")
    network = retune.compile("mlp", threads=1, store=tmp_path / "state")
    (tmp_path / "1").mkdir()
    for folder in (tmp_path, tmp_path / "1"):
        network.save(folder / "mlp.retune")
    (tmp_path / "triton_python_backend_utils.py").write_text(UTILITIES)
    (block,) = [block for block in blocks(PAGE, "python") if block.needs == server]
    recipe = block.text.replace("/models/", f"{tmp_path}/")
    script = f"{recipe}\n{AFTER[server]}\nimport numpy\nnumpy.save('scores.npy', numpy.asarray(scores))\n"
    (tmp_path / "recipe.py").write_text(script)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run(
        [sys.executable, "recipe.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}{done.stderr[-3000:]}"
    wanted = network(np.ones((1, 784), "float32"))
    np.testing.assert_allclose(np.load(tmp_path / "scores.npy"), wanted, rtol=1e-5, atol=1e-6)
