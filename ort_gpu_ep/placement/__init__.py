"""Which candidate runs a model with placement=auto: measured, stored, and revised while it runs.

Order of reading: candidates.py, cpu_costs.py, trial.py, proof.py, estimate.py, rhythm.py, learner.py, decisions.py, chooser.py, policy.py,
runner.py.
"""
