"""Advice by searching over the plan's own arithmetic: what to run, how to make it fit, whether it can be done at all."""
