"""The second half of `retune tune`, with settings made for Prefect: starts what the run needs beside it, the process
that cleans up and Prefect's server, then goes on as `retune.flows.foreground`.

Nothing here imports Prefect, so the server starts while the next module does. The arguments are for that one.
"""

import sys

from retune.compiler import config
from retune.flows import embedded_server, launch
from retune.flows.reaper import start_reaper

if __name__ == "__main__":
    REAPER = start_reaper(config.session())
    ADDRESS = config.load().prefect_api or embedded_server.start()
    launch.become("retune.flows.foreground", sys.argv[1:], {"PREFECT_API_URL": ADDRESS})
