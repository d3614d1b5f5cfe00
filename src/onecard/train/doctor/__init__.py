"""`onecard doctor`: each path of a run tried on the real device, fall-backs chosen, and kept for the next `train`.

answers.py is what the system, the driver and torch report (tests put others in its place); system.py and compute.py hold
the checks, each a small function that returns a frozen Check; diagnose.py runs them; short_run.py trains a few steps for the
report file; shared.py makes that file and the text to paste; kept.py keeps the fall-backs.
"""
