"""Measures which kernel is the fastest for each choice, inside the model that needs it: see docs/tuning.md."""
