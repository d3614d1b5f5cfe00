"""The tensors of a whole step: weights, gradients, the optimizer's, the embedding's; head.py has the head's and the loss's.

>>> step = simulate(Workload(12, 12, 768, 50304, 1024, batch_size=8, accumulation=4))
>>> peak = step.peak()
>>> round(peak.bytes / 2**30, 2), peak.place
(6.96, 'loss_back')
"""

from onecard.config.model_rules import (
    HELD_BYTES,
    STATE_BLOCK,
    UPDATED_NUMBERS,
    stacked_matrices,
)
from onecard.planner.memory.block import block_tensors
from onecard.planner.memory.head import chunked_loss, compiled_head, eager_head
from onecard.planner.memory.order import all_at_once, breadth_first
from onecard.planner.memory.sharding import moved_matrices, sharded_weights
from onecard.planner.memory.sizes import FULL, HALF, INT64, Sizes
from onecard.planner.memory.timeline import BACKWARD, OutsideLayers, Step, Tensor, sweep
from onecard.planner.workload import Workload

# Bytes of a number while train/optim/sliced.py updates it, by tracing: moments of few bits; the same with bf16 weights; fp32 moments
UPDATE_BYTES, UPDATE_BYTES_HALF, UPDATE_BYTES_WHOLE = 32, 29, 16
SUM_BYTES = 16  # of a gradient while it is added to a bf16 sum (train/run/gradient_sums.py)
# Moments like the weights that other people's optimizers keep; Adafactor's rows and columns are nothing beside them
MOMENTS = {"sgd": 0, "momentum": 1, "lion": 1, "adafactor": 0}


def simulate(work: Workload) -> Step:
    sizes, outside = Sizes(work), OutsideLayers()
    weights_and_gradients(sizes, outside)
    optimizer(sizes, outside)
    again_at_once = work.recompute == "block" and breadth_first(sizes)
    embedding(sizes, outside, again_at_once)
    if again_at_once:
        all_at_once(sizes, outside)
    if work.chunked_loss:
        chunked_loss(sizes, outside)
    else:
        (compiled_head if work.one_graph else eager_head)(sizes, outside)
    return sweep([*block_tensors(sizes), *updates_within(sizes)], outside.tensors, work.n_layer)


def weights_and_gradients(sizes: Sizes, outside: OutsideLayers) -> None:
    """With one micro-batch a step, the gradients are those that its backward pass leaves; else they are added up."""
    work = sizes.work
    if sizes.gathers:
        sharded_weights(sizes, outside)
        return
    weights = sizes.weight_bytes // (work.gpus if work.sharded else 1)
    outside.lives("weights", "weights", weights, "embedding", "optimizer")
    born = "embedding" if work.accumulation > 1 else "optimizer"
    added_up = sizes.gradient_bytes // (work.gpus if work.sharded else 1)
    if work.accumulation > 1 or not work.in_backward:
        outside.lives("gradients", "gradients", added_up, born, "optimizer")
    buckets = weights if work.buckets else 0
    outside.lives("DistributedDataParallel buckets", "gradients", buckets, "embedding", "optimizer")


def optimizer(sizes: Sizes, outside: OutsideLayers) -> None:
    """What the optimizer keeps between steps, and what it needs for its own arithmetic."""
    work = sizes.work
    cards = work.optimizer_cards
    state = 0 if work.host_optimizer else optimizer_state(sizes)
    outside.lives("optimizer state", "optimizer", state // cards, "embedding", "optimizer")
    share = work.gpus if work.split_optimizer and not work.sharded else 1
    if work.sliced_update:
        slices_of_moments(sizes, outside)
    elif work.optimizer == "muon" and sizes.gathers:
        moved_matrices(sizes, outside)
    elif work.optimizer == "muon":
        stacked = stacked_bytes(work) // share
        outside.lives("Muon orthogonal matrices", "optimizer", stacked, "optimizer", "optimizer")
    elif work.optimizer == "adamw" and not (
        work.fused_optimizer or work.optimizer_loop or work.in_backward
    ):  # torch's foreach loops; others go tensor by tensor
        roots = sizes.exact_bytes // cards
        outside.lives("root of the second moment", "optimizer", roots, "optimizer", "optimizer")


def stacked_bytes(work: Workload) -> int:
    """train/optim/muon.py: the matrices of one shape that are made orthogonal together, c_attn as three squares."""
    width, layers = work.n_embd, work.n_layer
    stacks = []
    for columns, count in ((width, 4 * layers), (4 * width, 2 * layers)):
        together = min(count, stacked_matrices(width, columns))
        numbers, gram = together * width * columns, together * width * width
        stacked = FULL * numbers if together > 1 else 0  # one needs no copy
        if not work.full_precision_updates:
            # three of x in half precision, the first, the last and the next, beside two matrices of the Gram matrix's size
            iterated = HALF * (3 * numbers + 2 * gram)
        elif columns == width:
            iterated = FULL * (2 * numbers + 2 * gram)
        else:  # the steps are taken on Gram matrices; at the end their product is multiplied by x
            iterated = FULL * (2 * numbers + gram)
        stacks.append(stacked + iterated)
    return max(stacks)


def optimizer_state(sizes: Sizes) -> int:
    """AdamW: two moments like the weights. In 8 or 4 bits: that many each, and a scale for every block of them in fp32.
    Muon: one momentum for the layers' matrices, AdamW for the rest. Others: as many moments as they keep."""
    work = sizes.work
    matrices = work.n_layer * sizes.matrix_parameters
    state = 2 * sizes.exact_bytes
    single = matrices if work.optimizer == "muon" else 0  # numbers with one moment
    if work.moment_bits < 32:
        bits = work.moment_bits
        moments = 2 * sizes.large_parameters - single
        return (
            state
            - 2 * sizes.exact * sizes.large_parameters
            + moments * bits // 8
            + FULL * moments // STATE_BLOCK[bits]
        )
    if work.optimizer in MOMENTS:
        return MOMENTS[work.optimizer] * sizes.weight_bytes
    return state - sizes.exact * single


def host_bytes(work: Workload) -> int:
    """What the process of one card keeps in the computer's memory: the optimizer's state, the layers' inputs."""
    state = checkpoint_bytes(work)[1] // work.optimizer_cards if work.host_optimizer else 0
    inputs = work.n_layer * Sizes(work).residual if work.host_inputs else 0
    return state + inputs


def checkpoint_bytes(work: Workload) -> tuple[int, int]:
    """The two large files of a checkpoint: the weights; the moments, with fp32 copies of bf16 weights that are kept on
    the host."""
    sizes = Sizes(work)
    copies = FULL * sizes.large_parameters if work.half_weights and work.host_optimizer else 0
    return sizes.weight_bytes, optimizer_state(sizes) + copies


def slices_of_moments(sizes: Sizes, outside: OutsideLayers) -> None:
    """train/optim/sliced.py: the fp32 numbers of one slice; Muon's of one matrix, made orthogonal."""
    work = sizes.work
    largest = max(sizes.table_parameters, sizes.position_parameters)
    update = max(update_bytes(sizes, largest), matrix_update_bytes(sizes))
    born = "optimizer"
    if work.in_backward:  # the tables are updated in the backward pass too, a tied one when its gradients are added up
        born = "graph_end" if work.tied else "embedding_back"
        head = 0 if work.tied or work.one_graph else update
        outside.lives("slices of the head", "optimizer", head, "head_cast_back", "head_cast_back")
    outside.lives("slices of moments", "optimizer", update, born, "optimizer")
    if work.in_backward and work.host_optimizer:  # gradients whose updates are under way
        held = min(HELD_BYTES, sizes.gradient_bytes)
        outside.lives("gradients being applied", "gradients", held, "layers_back", "optimizer")


def update_bytes(sizes: Sizes, numbers: int) -> int:
    """What the update of a tensor of so many numbers takes: that of one slice of it."""
    work = sizes.work
    each = UPDATE_BYTES_HALF if work.half_weights else UPDATE_BYTES
    return (UPDATE_BYTES_WHOLE if work.state_bits == 32 else each) * min(numbers, UPDATED_NUMBERS)


def matrix_update_bytes(sizes: Sizes) -> int:
    """What the update of a layer's largest matrix, the MLP's, takes."""
    numbers = 4 * sizes.work.n_embd**2
    update = update_bytes(sizes, numbers)
    if sizes.work.optimizer == "muon":
        # its momentum and look-ahead in fp32, beside the slice that is being written back
        update += (FULL + FULL) * numbers
    return update


def updates_within(sizes: Sizes) -> list[Tensor]:
    """update_in_backward: a compiled layer's gradients are applied when all of them are there, else each as it comes."""
    work = sizes.work
    if not (work.in_backward and work.sliced_update) or work.one_graph:
        return []
    born = BACKWARD["norm_1" if work.by_block else "add_2"]
    size = matrix_update_bytes(sizes)
    return [Tensor("slices of moments", "optimizer", size, born, BACKWARD["norm_1"])]


def embedding(sizes: Sizes, outside: OutsideLayers, again_at_once: bool) -> None:
    work = sizes.work
    part, first, last = "activations", "embedding", "embedding_back"
    # all rows of the step as int64; the accumulation of other people's runs may be a fraction
    step_tokens = int(INT64 * sizes.tokens * max(1, work.accumulation))
    outside.lives("tokens of the step", part, step_tokens, first, "optimizer")
    outside.lives("inputs and targets", part, 2 * INT64 * sizes.tokens, first, last)
    mask = work.n_embd * sizes.tokens if work.dropout else 0
    outside.lives("embedding dropout mask", part, mask, first, last)
    if work.mask_documents:
        document_mask(sizes, outside)
    if work.modern and not work.one_graph and (work.recompute == "none" or work.dropout):
        outside.lives("embedding normed", part, sizes.residual, first, last)
    if sizes.casts and work.recompute != "none" and not work.compiled:
        casts = sizes.matmul * work.n_layer * sizes.matrix_parameters
        outside.lives("autocast copies of the layers", "cast_weights", casts, "layers", "loss")
    outside.lives("gradient of the stream", part, sizes.residual, "norm_back", last)
    # eager, a gradient is freed as soon as it is added to the sum
    dies = "graph_end" if work.one_graph or not work.gradients_freed_at_once else last
    looked_up = min(sizes.stream, sizes.weight)
    empty = "head_back" if again_at_once else last  # zeros, to be added to
    outside.lives("wte gradient", "gradients", looked_up * sizes.table_parameters, empty, dies)
    outside.lives("wpe gradient", "gradients", sizes.weight * sizes.position_parameters, last, dies)
    if work.half_gradients and work.accumulation > 1:
        numbers = min(UPDATED_NUMBERS, sizes.table_parameters)
        cast = 0 if work.half_weights else HALF * sizes.table_parameters
        outside.lives("slices of sums", "gradients", SUM_BYTES * numbers + cast, last, last)
    elif (
        work.half_weights and work.one_graph and work.accumulation > 1
    ):  # to be added to the others
        outside.lives(
            "gradient in fp32", "gradients", sizes.exact * sizes.table_parameters, last, "graph_end"
        )
    values = sizes.stream * sizes.value_embedding_parameters if work.one_graph else 0
    outside.lives("value embeddings gradient", "gradients", values, last, dies)


def document_mask(sizes: Sizes, outside: OutsideLayers) -> None:
    """Who sees whom, a byte each; compiled and fused, the numbers to add to the scores, made once for all layers."""
    work = sizes.work
    part, first = "activations", "embedding"
    outside.lives("document numbers", part, INT64 * sizes.tokens, first, "embedding_back")
    table = work.block_size * sizes.tokens
    if work.one_graph and work.flash:
        # computed again, all but the causal half
        numbers = sizes.mask_bytes if work.recompute != "cheap" else work.block_size**2
        outside.lives("document mask", part, numbers, first, "embedding_back")
    elif work.recompute != "none":
        outside.lives("documents seen", part, table, first, "embedding_back")
    elif not work.one_graph:
        outside.lives("documents seen", part, table, first, "norm")
