"""Retune tunes the tensor programs of neural networks for the machine they run on.

The parts are packages of their own: `retune.compiler`, `retune.storage`, `retune.tasks` and `retune.flows`, whose
folders are at the top of the repository. Importing this module loads none of them.
"""

from importlib import metadata

__version__ = metadata.version("retune")
