"""Tuning logs in the form of TVM's auto-scheduler."""
