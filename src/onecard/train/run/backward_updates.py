"""Each parameter updated when its gradient is complete, within the last backward pass of a step (`update_in_backward`).

With one micro-batch a step the gradients are then never there together. Where the optimizer's state is on the host, its
copies go on beside the backward pass. There is no norm of all gradients to clip by, and a bad step is in the weights
before it is known: the run goes back to its last checkpoint.
"""

import math

import torch
from torch import Tensor, nn

from onecard.errors import UserError
from onecard.train.optim.sliced import SlicedOptimizer


class BackwardUpdates:
    def __init__(self, model: nn.Module, optimizer: SlicedOptimizer):
        self._optimizer = optimizer
        self._norms: list[Tensor] = []
        self._device = next(model.parameters()).device
        self.active = False  # in the last micro-batch of a step
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(self._take)

    def begin(self) -> None:
        self.active = True
        self._norms.clear()

    def end(self) -> Tensor:
        """The norm of all gradients of the step, whose updates are done."""
        self.active = False
        self._optimizer.step()  # nothing is left to update; what is under way is waited for
        if not self._norms:  # memory ran out before the first
            return torch.tensor(math.nan, device=self._device)
        return torch.linalg.vector_norm(torch.stack(self._norms))

    @torch.no_grad()
    def _take(self, parameter: Tensor) -> None:
        if not self.active or parameter.grad is None:
            return
        self._norms.append(torch.linalg.vector_norm(parameter.grad, dtype=torch.float32))
        self._optimizer.update(parameter)
        parameter.grad = None


def backward_updates(
    model: nn.Module, optimizer: torch.optim.Optimizer, processes: int = 1, scaled: bool = False
) -> BackwardUpdates:
    """After gradient_sums, whose sums it takes."""
    if processes > 1:
        raise UserError(
            "update_in_backward leaves no gradients to be added up over several processes",
            hint="update_in_backward = False",
        )
    if scaled:
        raise UserError(
            "update_in_backward cannot be undone where a gradient exceeds float16's range, and this "
            "card has no bfloat16",
            hint="update_in_backward = False",
        )
    assert isinstance(optimizer, SlicedOptimizer)
    return BackwardUpdates(model, optimizer)
