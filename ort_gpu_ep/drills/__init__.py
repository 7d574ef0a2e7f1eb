"""Faults and load on purpose, for tests, drills and measurements."""
