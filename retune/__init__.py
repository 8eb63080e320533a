"""Retune tunes the tensor programs of neural networks for the machine they run on.

The parts are packages of their own: `retune.compiler`, `retune.storage`, `retune.tasks` and `retune.flows`, whose
folders are at the top of the repository. Importing this module loads none of them.
"""

from importlib import metadata

__version__ = metadata.version("retune")

FLEETS = {"server": "retune.tasks.rpc:prefect_courier", "local": "retune.tasks.local_fleet:LocalFleet"}
"""Where the compiler, which imports nothing above it, finds the ways to workers that `retune.tasks` has: those of a
fleet with a server, and one of this machine. They are named here because this module is above all parts.
"""
