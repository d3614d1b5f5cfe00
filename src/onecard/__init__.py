"""onecard: plan a GPT training run before you start it, run it on the card you have, and learn from it.

>>> from onecard import RunConfig, find_gpu, plan
>>> plan(RunConfig(), find_gpu("RTX 4070")).params.nanogpt
123587328
"""

from onecard.config import RunConfig, load
from onecard.errors import UserError
from onecard.facts import Device, find_gpu

# The function takes the name of its room: `from onecard import plan` is the call, `onecard.planner.memory` still imports.
from onecard.planner import RunPlan, plan
from onecard.version import __version__

__all__ = ["Device", "RunConfig", "RunPlan", "UserError", "__version__", "find_gpu", "load", "plan"]
