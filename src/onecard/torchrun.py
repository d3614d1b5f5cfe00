"""Which of the processes that torchrun started this one is, by the environment that it gives them. Started without it,
this is the only one.

>>> process_rank(), process_count(), local_rank(), local_process_count()
(0, 1, 0, 1)
"""

import os


def process_rank() -> int:
    """This process's number among all of the run; 0 writes files and prints."""
    return int(os.environ.get("RANK", 0))


def process_count() -> int:
    """All of the run, on every machine."""
    return int(os.environ.get("WORLD_SIZE", 1))


def local_rank() -> int:
    """This process's number on its machine, which is its card's."""
    return int(os.environ.get("LOCAL_RANK", 0))


def local_process_count(otherwise: int = 1) -> int:
    """Those of this machine; `otherwise` where nothing says it."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", otherwise))
