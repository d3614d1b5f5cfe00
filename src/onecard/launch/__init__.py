"""Job files for existing engines: a Slurm batch script, a SkyPilot task, a script for a rented machine over ssh."""

from onecard.launch.job import ENGINES, Job, make_job

__all__ = ["ENGINES", "Job", "make_job"]
