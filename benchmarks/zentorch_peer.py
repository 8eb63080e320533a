"""Runs a model of `torch_models` with zentorch, in an interpreter of its own that has it; see `benchmarks.torch_suite`.

    PYTHON benchmarks/zentorch_peer.py '{"model": "timm/deit_tiny_patch16_224", "threads": 2}'

The first line of output has the version and the largest difference from eager PyTorch, relative to the largest value.
Each line of input is a number of seconds, answered by the times of single calls for about so long.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any


def main() -> None:
    asked = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no answer
    import torch
    import zentorch
    from torch.utils import _pytree as pytree

    sys.path.insert(0, str(Path(__file__).parent.parent))
    from benchmarks.torch_models import make

    torch.set_num_threads(asked["threads"])
    model = make(asked["model"])
    fast = torch.compile(model.module, backend="zentorch")

    def tensors(result: Any) -> list[Any]:
        values = result.to_tuple() if hasattr(result, "to_tuple") else result
        return [value.double() for value in pytree.tree_leaves(values) if isinstance(value, torch.Tensor)]

    with torch.inference_mode():
        pairs = zip(tensors(model(fast)), tensors(model(model.module)), strict=True)
        errors = [float((made - wanted).abs().max() / wanted.abs().max()) for made, wanted in pairs if wanted.numel()]
        answer: dict[str, object] = {"version": zentorch.__version__, "error": max(errors, default=0.0)}
        print(json.dumps(answer), file=answers, flush=True)
        for line in sys.stdin:
            model(fast)  # warm, as a pass of `benchmarks.harness.interleaved` is
            times: list[float] = []
            end = time.perf_counter() + float(line)
            while not times or time.perf_counter() < end:
                began = time.perf_counter()
                model(fast)
                times.append(time.perf_counter() - began)
            print(json.dumps({"times": times}), file=answers, flush=True)


if __name__ == "__main__":
    main()
