"""Schedules: compute graphs, states, transform steps and default schedules."""
