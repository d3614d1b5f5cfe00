"""The tensors of the last norm, the head and the loss: whole logits, eager and compiled, and the chunked loss.

>>> from onecard.planner.workload import Workload
>>> sizes, outside = Sizes(Workload(1, 1, 64, 50304, 1024, batch_size=16, accumulation=1, compiled=False)), OutsideLayers()
>>> eager_head(sizes, outside)
>>> table = 4 * sizes.logit_count
>>> [tensor.name for tensor in outside.tensors if tensor.part == LOSS and tensor.bytes == table]
['logits in fp32', 'log-probabilities', 'gradient of log-probabilities', 'gradient of logits in fp32']
"""

from onecard.planner.memory.sizes import FULL, Sizes
from onecard.planner.memory.timeline import OutsideLayers

LOSS = "logits_and_loss"


def eager_head(sizes: Sizes, outside: OutsideLayers) -> None:
    eager_last_norm(sizes, outside)
    head_matrix(sizes, outside)
    eager_loss(sizes, outside)


def eager_loss(sizes: Sizes, outside: OutsideLayers) -> None:
    """cross_entropy(logits.float()): log-probabilities are kept, and the backward pass makes two more such tables."""
    work = sizes.work
    full = (sizes.matmul if work.pure else FULL) * sizes.logit_count
    low = sizes.matmul * sizes.logit_count
    logits_end = "layers_back" if work.keeps_logits else "loss"  # while a variable names them
    if work.modern:  # soft_cap · tanh(logits / soft_cap), in fp32
        outside.lives("logits", LOSS, full, "head", logits_end)
        outside.lives("tanh of logits", LOSS, full, "head", "head_back")
    else:
        outside.lives("logits", LOSS, low, "head", logits_end)
        outside.lives("logits in fp32", LOSS, full if sizes.mixed else 0, "loss", "loss")
    shifted = full if work.modules == "transformers" else 0
    outside.lives("logits shifted", LOSS, shifted, "loss", "loss_back")
    outside.lives("log-probabilities", LOSS, full, "loss", "loss_back")
    outside.lives("gradient of log-probabilities", LOSS, full, "loss_back", "loss_back")
    outside.lives("gradient of logits in fp32", LOSS, full, "loss_back", "loss_back")
    # autograd keeps the inputs of a compiled backward graph until the graph is done
    end = "layers_back" if work.one_graph else "head_back"
    outside.lives("gradient of logits", LOSS, low, "head_back", end)


def eager_last_norm(sizes: Sizes, outside: OutsideLayers) -> None:
    """LayerNorm keeps its input, rms_norm its output; a local variable keeps the output alive through the forward pass."""
    modern = sizes.work.modern
    part = "activations"
    outside.lives("last norm statistics", part, sizes.norm_statistics, "norm", "norm_back")
    outside.lives(
        "last norm input", part, sizes.residual, "norm", "norm" if modern else "norm_back"
    )
    held = "loss" if sizes.mixed and not modern else "norm_back"
    outside.lives("last norm output", part, sizes.residual, "norm", held)
    cast = sizes.activation if sizes.mixed else 0
    outside.lives("last norm output for lm_head", part, cast, "head", "head_back")


def compiled_head(sizes: Sizes, outside: OutsideLayers) -> None:
    """The loss is fused: logits, their gradient, and the zeros that autograd makes for logits nobody used."""
    work = sizes.work
    compiled_last_norm(sizes, outside)
    head_matrix(sizes, outside)
    low = sizes.matmul * sizes.logit_count
    if work.loss_outside:
        eager_loss(sizes, outside)
        return
    end = "graph_end" if summed_at_the_end(sizes) else "head_back"
    handed_back = FULL * sizes.logit_count if work.modern else low  # a soft cap makes them fp32
    if work.modern or not work.returns_logits:  # their gradient is written over them
        outside.lives("logits", LOSS, low, "head", end)
    else:
        outside.lives("logits", LOSS, low, "head", "loss_back")
        outside.lives("gradient of logits", LOSS, low, "loss_back", end)
    if work.returns_logits:
        capped = handed_back if work.modern else 0
        outside.lives("logits capped", LOSS, capped, "head", "loss_back")
        zeros = handed_back if work.spare_logits else 0
        outside.lives("zeros for unused logits", LOSS, zeros, "loss_back", "graph_end")


def compiled_last_norm(sizes: Sizes, outside: OutsideLayers) -> None:
    """Its input is kept; where layers are recomputed the input is recomputed too, from the last matmul's output with "cheap"."""
    work = sizes.work
    part = "activations"
    outside.lives("last norm statistics", part, sizes.norm_statistics, "norm", "norm_back")
    kept = work.recompute == "none" and not keeps_output(sizes)
    outside.lives("last norm input", part, sizes.residual, "norm", "norm_back" if kept else "norm")
    last_down = sizes.activation if work.recompute == "cheap" else 0
    outside.lives("last layer's mlp c_proj output", part, last_down, "norm", "norm_back")
    if work.chunked_loss:
        outside.lives("last norm output", part, sizes.residual, "norm", "loss")
    end = "graph_end" if summed_at_the_end(sizes) else "head_back"
    cast = sizes.activation if sizes.mixed or not work.chunked_loss else 0
    outside.lives("last norm output for lm_head", part, cast, "head", end)
    # written by the kernel that writes the gradient of the stream
    cast = sizes.activation if sizes.mixed else 0
    outside.lives("gradient of the stream in half precision", part, cast, "norm_back", "norm_back")


def keeps_output(sizes: Sizes) -> bool:
    """Whether a compiled last norm keeps its output: an RMSNorm does where no cast needs it."""
    return sizes.work.modern and not sizes.mixed


def summed_at_the_end(sizes: Sizes) -> bool:
    """Whether a tied table's two gradients are computed as one sum at the end, as Inductor does without casts: what they are
    computed from lives until then."""
    work = sizes.work
    return work.one_graph and work.tied and not sizes.mixed and not work.chunked_loss


def head_matrix(sizes: Sizes, outside: OutsideLayers) -> None:
    """lm_head: where it is tied its gradient waits for the embedding's; else it stays if it is the step's only one."""
    work = sizes.work
    half = sizes.matmul * sizes.table_parameters if sizes.mixed else 0
    cast = half if sizes.casts else 0
    outside.lives("lm_head cast", "cast_weights", cast, "head", "head_back")
    # the sum with the embedding's casts it
    fused_cast = work.one_graph and work.tied and sizes.mixed
    end = "graph_end" if fused_cast else "head_cast_back"
    outside.lives("lm_head gradient in half precision", "gradients", half, "head_back", end)
    whole = 0 if fused_cast else sizes.weight * sizes.table_parameters
    born = "head_cast_back" if sizes.mixed else "head_back"
    born = "graph_end" if summed_at_the_end(sizes) else born
    stays = work.tied or work.one_graph or not work.gradients_freed_at_once
    end = "graph_end" if stays else "head_cast_back"
    outside.lives("lm_head gradient", "gradients", whole, born, end)
    # a compiled graph makes it last, where the input was, unless the norm keeps that
    born = "head_cast_back" if work.one_graph and not keeps_output(sizes) else "head_back"
    outside.lives(
        "gradient of the head's input", "activations", sizes.activation, born, "norm_back"
    )


def chunked_loss(sizes: Sizes, outside: OutsideLayers) -> None:
    """model/chunked_loss.py: the head slice by slice, and both gradients, made in the forward pass."""
    work = sizes.work
    (compiled_last_norm if work.one_graph else eager_last_norm)(sizes, outside)
    gradient = FULL * work.n_embd * sizes.tokens
    outside.lives("gradient of the head's input in fp32", LOSS, gradient, "loss", "loss_back")
    outside.lives(
        "lm_head gradient in fp32", LOSS, FULL * sizes.table_parameters, "loss", "loss_back"
    )
    outside.lives("slices of logits", LOSS, widest_slice(sizes), "loss", "loss")
    if sizes.mixed:  # scaled by the loss's own gradient, then cast to what autograd expects
        half = sizes.matmul * sizes.table_parameters
        outside.lives("lm_head cast", LOSS, half if sizes.casts else 0, "head", "loss")
        outside.lives("lm_head gradient in half precision", LOSS, half, "loss_back", "loss_back")
        end = "layers_back" if work.one_graph else "norm_back"
        outside.lives("gradient of the head's input", LOSS, sizes.activation, "loss_back", end)
    if work.tied or not work.gradients_freed_at_once:
        whole = sizes.weight * sizes.table_parameters
        outside.lives("lm_head gradient", "gradients", whole, "head_cast_back", "graph_end")


def widest_slice(sizes: Sizes) -> int:
    """Bytes of the tensors of one slice of rows, at the widest place of the loop."""
    work = sizes.work
    rows = work.loss_rows
    logits = rows * work.vocab_size
    low, full = sizes.matmul * logits, FULL * logits
    capped = full if work.modern else 0  # exponentials of capped logits, beside these
    hidden = rows * work.n_embd
    # the gradient of the last slice's input still has a name
    last = FULL * hidden if work.loss_slices > 1 else 0
    small_sides = 3 * FULL * hidden
    head = 0  # the slice's share of its gradient, which a CPU copies in fp32 to add it, beside what it is a product of
    if sizes.mixed:
        share = sizes.matmul + (0 if work.on_card else FULL)
        head = share * sizes.table_parameters + (FULL + sizes.matmul) * hidden
    if work.loss_slices_compiled:  # the exponentials are written over the logits
        return low + max(head, small_sides)
    if not sizes.mixed:  # the buffer, and the exponentials or the gradients' small sides
        return full + max(capped + last, small_sides)
    # the buffer in half precision and the slice in full, with its exponentials or cast; then the cast one alone, beside
    # the next slice (which takes its name), or the head's gradient, or the gradient of the slice's input
    next_slice = FULL * min(rows, sizes.tokens - rows) * work.vocab_size
    first = full + max(capped, low) + last
    return low + max(first, low + max(next_slice + last, head, small_sides))
