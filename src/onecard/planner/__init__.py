"""What a run will need: parameters, FLOPs, memory, time, energy, loss. Pure arithmetic, no torch, no numpy."""

from onecard.planner.build import plan, resolve_device
from onecard.planner.result import Range, RunPlan

__all__ = ["Range", "RunPlan", "plan", "resolve_device"]
