"""Processes: which ones are ours, how helper processes start and end, and interrupts."""
