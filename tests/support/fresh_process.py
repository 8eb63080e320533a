"""Networks run in a process that has imported nothing yet."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

_RUN = """
import json, sys
import numpy as np
from retune.compiler import vm
from retune.compiler.runtime.device import cpu
machine = vm.VirtualMachine(vm.Executable.load(sys.argv[1]), cpu())
np.save(sys.argv[3], machine.run(np.load(sys.argv[2])))
print(json.dumps(sorted(sys.modules)))
"""


def run_afresh(path: Path, x: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], list[str]]:
    """What a saved network makes of its one input, and the modules that were loaded for it."""
    given, made = path.with_name("given.npy"), path.with_name("made.npy")
    np.save(given, x)
    command = [sys.executable, "-c", _RUN, *map(str, (path, given, made))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    modules: list[str] = json.loads(done.stdout)
    return np.load(made), modules
