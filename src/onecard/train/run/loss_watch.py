"""The watch over the loss: what is a bad step, by the losses seen so far.

A loss that is not a number is always bad. A spike is a loss far above the running mean, measured in the losses' own
scatter; the mean and scatter forget with a half-life of about 35 steps, and judge only after the first 100.

>>> watch = LossWatch()
>>> watch.verdict(3.2, 1.0), watch.verdict(float("nan"), 1.0)
(None, 'the loss is nan')
"""

import math
from dataclasses import dataclass

_MEMORY = 0.98  # weight of the past at each step
_QUIET_STEPS = 100  # the loss falls too fast in the beginning to measure its scatter
_SIGMAS, _NATS = 8.0, 0.5  # both must be exceeded: small models scatter, large ones hardly at all


@dataclass(frozen=True)
class LossWatch:
    steps: int = 0
    mean: float = 0.0
    variance: float = 0.0

    def verdict(self, loss: float, grad_norm: float) -> str | None:
        """Why the step is bad, or None."""
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        if not math.isfinite(grad_norm):
            return f"the gradient's norm is {grad_norm}"
        above = loss - self.mean
        if (
            self.steps >= _QUIET_STEPS
            and above > _NATS
            and above > _SIGMAS * math.sqrt(self.variance)
        ):
            return f"the loss jumped to {loss:.3f} from a mean of {self.mean:.3f}"
        return None

    def learn(self, loss: float) -> "LossWatch":
        """The watch after the loss of a good step."""
        weight = max(1 - _MEMORY, 1 / (self.steps + 1))
        above = loss - self.mean
        return LossWatch(
            steps=self.steps + 1,
            mean=self.mean + weight * above,
            variance=(1 - weight) * (self.variance + weight * above * above),
        )
