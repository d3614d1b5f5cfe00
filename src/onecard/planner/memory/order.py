"""The order that Inductor gives the backward pass of a model that is compiled whole, where layers are computed again.

It estimates the peak of a few orders and takes the lowest (reorder_for_peak_memory in torch/_inductor/memory.py). With small
micro-batches the peak is at the end, where all gradients are alive, whatever the order; breadth first is then estimated
slightly below the others. In that order everything without dependencies comes first (casts of all layers' weights, their first
norms, the embedding's empty gradient), and all layers are computed again at once. The estimates here are that function's: it
counts the sum of a tied table's two gradients in addition to both.

>>> from dataclasses import replace
>>> from onecard.planner.workload import Workload
>>> small = Workload(4, 16, 1024, 50304, 1024, batch_size=1, accumulation=4, recompute="block")
>>> breadth_first(Sizes(small)), breadth_first(Sizes(replace(small, batch_size=2)))
(True, False)
"""

from onecard.planner.memory.sizes import Sizes
from onecard.planner.memory.timeline import OutsideLayers


def breadth_first(sizes: Sizes) -> bool:
    """Whether Inductor takes that order, for a step whose layers are computed again."""
    work = sizes.work
    if not (work.one_graph and work.flash and sizes.casts):
        return False
    if work.chunked_loss or work.loss_outside:  # the head's backward pass is not in this graph
        return False
    low, half = sizes.matmul * sizes.logit_count, sizes.matmul * sizes.table_parameters
    whole = sizes.weight * sizes.table_parameters
    inputs = work.n_layer * sizes.residual + sizes.activation
    # a soft cap's are handed out in fp32
    loss = (6 if work.modern and work.returns_logits else 2) * low + half + inputs
    head = low + 2 * half + whole + inputs + work.n_layer * ready(sizes)
    head_gradient = half if work.tied else whole
    layers = head_gradient + whole + inputs + work.n_layer * (ready(sizes) + computed_again(sizes))
    gradients = sizes.exact * (work.n_layer * sizes.layer_parameters + sizes.position_parameters)
    at_the_end = gradients + 2 * whole + (half if work.tied else 0)
    return max(loss, head, layers) < at_the_end


def ready(sizes: Sizes) -> int:
    """Of a layer, what depends on nothing computed before: its matrices cast, and the output of its first norm."""
    return sizes.matmul * sizes.matrix_parameters + sizes.normed


def computed_again(sizes: Sizes) -> int:
    """Of a layer, what the rest of its second forward pass makes for its backward pass."""
    work = sizes.work
    rotated = 2 * sizes.activation if work.modern else 0
    return sizes.qkv + rotated + sizes.activation + sizes.residual + sizes.normed + sizes.up


def all_at_once(sizes: Sizes, outside: OutsideLayers) -> None:
    """Breadth first: what is alive during the head's backward pass, and then before that of the last layer."""
    layers, part = sizes.work.n_layer, "cast_weights"
    outside.lives("casts of all layers", part, layers * ready(sizes), "head_back", "norm_back")
    again = layers * computed_again(sizes)
    outside.lives("all layers computed again", "activations", again, "norm_back", "norm_back")
