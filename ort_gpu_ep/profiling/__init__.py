"""Profiles a run: each dispatch by the GPU's clock, compared with the adapter's limits, and the host's phases."""
