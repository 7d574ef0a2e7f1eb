"""Turns a graph with concrete input types into a Plan: plain data that a device, or a person, can execute or read."""

from ort_gpu_ep.scheduler.plan import Plan
from ort_gpu_ep.scheduler.planner import make_plan

__all__ = ["Plan", "make_plan"]
