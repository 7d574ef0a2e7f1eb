"""Measures which form of each kernel is the fastest on an adapter, in the model that needs it: see docs/tuning.md."""
