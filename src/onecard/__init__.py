"""onecard: plan a GPT training run before you start it, run it on the card you have, and learn from it.

>>> from onecard import RunConfig, find_gpu, plan
>>> plan(RunConfig(), find_gpu("RTX 4070")).params.nanogpt
123587328
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onecard.config import RunConfig, load
    from onecard.errors import UserError
    from onecard.facts import Device, find_gpu
    from onecard.plan import RunPlan, plan

__version__ = "0.1.0"
__all__ = ["Device", "RunConfig", "RunPlan", "UserError", "find_gpu", "load", "plan"]

_HOME = {
    "Device": "facts",
    "RunConfig": "config",
    "RunPlan": "plan",
    "UserError": "errors",
    "find_gpu": "facts",
    "load": "config",
    "plan": "plan",
}


def __getattr__(name: str) -> Any:
    """The public names, each imported when it is first asked for, so that `import onecard` costs nothing."""
    if name in _HOME:
        return getattr(importlib.import_module(f"onecard.{_HOME[name]}"), name)
    raise AttributeError(f"module 'onecard' has no attribute {name!r}")
