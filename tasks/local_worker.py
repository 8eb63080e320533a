"""In: a folder of errands and the key of a device. Out: programs timed, for the script that started this process.

Always: ends within seconds of that script. Run by `retune.tasks.local_fleet`.
"""

import sys
import threading
from functools import partial

from retune.compiler.measure.fleet import queues_of
from retune.storage.errands import ErrandStore
from retune.tasks.agent import Agent
from retune.tasks.lanes import device_lane, lane_of
from retune.tasks.local_fleet import READY

LOOK_SECONDS = 0.02
"""How often the worker looks for errands: a script waits for each of them."""


def main(place: str, key: str) -> None:
    """Do errands until standard input ends."""
    over = threading.Event()
    with Agent(ErrandStore(place), queues_of(key), lane=partial(device_lane, lane_of(key))) as agent:

        def watch() -> None:
            sys.stdin.read()
            over.set()
            agent.leave()

        threading.Thread(target=watch, name="watch", daemon=True).start()
        sys.stdout.write(f"{READY}\n")
        sys.stdout.flush()
        while not over.wait(LOOK_SECONDS):
            agent.drain()


if __name__ == "__main__":
    main(*sys.argv[1:])
