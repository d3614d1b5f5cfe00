"""What is known of the world, as data files with source and date: cards, data sets, models, prices."""

from onecard.facts.gpus import Device, all_gpus, find_gpu, search_gpus

__all__ = ["Device", "all_gpus", "find_gpu", "search_gpus"]
