"""Inputs of a model: arrays from files, and values for inputs that nobody gives."""
