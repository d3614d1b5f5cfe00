"""What a run will need: parameters, FLOPs, memory, time, energy, loss. Pure arithmetic, no torch, no numpy."""

from onecard.plan.build import plan, resolve_device
from onecard.plan.result import Range, RunPlan

__all__ = ["Range", "RunPlan", "plan", "resolve_device"]
