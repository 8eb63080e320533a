"""The second half of `retune tune`: starts what the run needs beside it, the process that cleans up and Prefect's
server, then goes on as `retune.flows.foreground`.

Nothing here imports Prefect, so the server starts while the next module does. The arguments are for that one.
"""

import sys

from retune.compiler import config
from retune.flows import embedded_server, launch
from retune.flows.reaper import start_reaper
from retune.flows.state_folder import make_private_folder

if __name__ == "__main__":
    ADDRESS = config.load().prefect_api
    FOLDER = None if ADDRESS else make_private_folder()
    config.set_environment(config.prefect_environment(FOLDER))
    REAPER = start_reaper(config.session(), FOLDER)
    launch.become("retune.flows.foreground", sys.argv[1:], {"PREFECT_API_URL": ADDRESS or embedded_server.start()})
