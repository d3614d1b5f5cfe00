"""What one step does outside its matmuls: bytes moved, kernels launched, the optimizer's share; counted kernel by kernel.

>>> from onecard.config import RunConfig
>>> compiled = Workload.of(RunConfig(n_layer=2), "bfloat16")
>>> micro_kernels(compiled)
96.0
"""

from typing import Any

from onecard.config.model_rules import LONG_MATRIX
from onecard.planner.stacks import OWN
from onecard.planner.workload import Workload
from onecard.units import MIB

Fit = dict[str, Any]  # the constants of facts/speed_fit.json
# glibc's largest mmap threshold: a tensor above it is mapped by itself, and its pages are faulted in every time
_LARGE = 32 * MIB
UNFUSED = 18  # reads and writes of a number by an update made operation by operation; a fused one has seven
# Bytes that a number of the stream costs in other people's RMSNorm, written operation by operation in fp32 and not compiled: cast,
# square, mean, product, weight, cast back and the residual's sum; and the same going backward. Of a query or key in rotary
# positions written so: four products, two sums, stacked and cast back. Not everybody takes as many steps: `written_out` (fitted) is the
# share of it that people's code has on average.
NORM_BY_OPERATIONS = (44, 82)
ROTARY_BY_OPERATIONS = (38, 45)
# How often a score is read or written where attention is written out, forward and backward
SCORES_COMPILED, SCORES, SCORES_CAST = (4, 6), (8, 11), (14, 22)
DTYPE_BYTES = {"float32": 4, "tf32": 4, "bfloat16": 2, "float16": 2}


def micro_bytes(w: Workload, fit: Fit) -> float:
    """Bytes that one micro-batch moves outside the matmuls."""
    e = DTYPE_BYTES[w.dtype]
    slack = 1.0 if w.compiled else fit["eager_bytes"]
    # weights read in fp32 and cast; gradients added up
    cast = 0 if w.pure or w.half_weights or e == 4 else 4 + e
    added = 2 * e if w.pure else e + 8
    if w.half_gradients:  # in one kernel, or in thirty (train/run/gradient_sums.py)
        added = 6 if w.compiled else 175
    moved = layer_bytes(w, fit) + slack * logits_bytes(w) + (cast + added) * w.params
    return float(moved + fp8_bytes(w))


def fp8_bytes(w: Workload) -> float:
    """model/fp8.py: each operand is read for its largest number, read again and written in a byte; inputs, weights and
    gradients once more, turned, for the backward pass."""
    if not w.fp8:
        return 0.0
    tokens = w.tokens * sum(inputs + outputs for inputs, outputs in w.layer_matrices)
    return float(w.n_layer * (7 * tokens + 11 * w.layer_params))


def layer_bytes(w: Workload, fit: Fit) -> float:
    """Of these, what the layers' kernels hand to one another."""
    forward, backward = _norms(w, fit)
    cheap = forward
    for part in (_activation(w), _rotary(w, fit), _attention(w)):
        forward, backward = forward + part[0], backward + part[1]
    again = {"none": 0.0, "block": forward, "cheap": cheap + _activation(w)[0]}[w.recompute]
    slack = 1.0 if w.compiled else fit["eager_bytes"]
    return float(slack * w.tokens * w.n_layer * (forward + backward + again))


def unaligned_head(w: Workload, fit: Fit) -> float:
    """How much longer the head takes where tensor cores cannot load its rows aligned; the compiler pads some of them."""
    if not w.vocab_size % 8 or w.dtype not in ("bfloat16", "float16"):
        return 1.0
    return float(fit["odd_vocab_compiled"] if w.compiled else fit["odd_vocab"])


def attention_passes(w: Workload) -> float:
    """Forward and backward, in forward passes. A flash kernel computes the scores again going backward: 2 + 5 matmuls
    instead of 2 + 4. Math attention does both halves of the square."""
    again = w.recompute == "block"
    return 3.5 + again if w.flash else 2.0 * (3 + again)


def _by_operations(w: Workload) -> bool:
    """Whether RMSNorm and rotary positions are other people's, written out and not compiled."""
    return w.modern and not w.compiled and w.stack != OWN


def _norms_by_operations(w: Workload) -> bool:
    """Whether their RMSNorm is too. torch's own is one kernel since 2.9 (its pull request 153666), where weights and stream are
    of one dtype (issue 167308), as in pure code and not under autocast; Hugging Face's is written out; a row may say that
    it is a kernel."""
    return _by_operations(w) and not w.norm_kernel and (not w.pure or w.stack == "hf")


def _norms(w: Workload, fit: Fit) -> tuple[float, float]:
    """Bytes a token of a layer's norms and residual sums, forward and backward."""
    e = DTYPE_BYTES[w.dtype]  # bytes of an activation
    r = 2 if w.pure or w.half_stream else 4  # bytes of the residual stream
    if w.compiled:
        # two fused residual-add + norm forward, each reading stream and branch, writing stream and norm; and backward
        each = (2 * r + 2 * e, 3 * r + 2 * e)
    elif _norms_by_operations(w):
        each = (
            fit["written_out"] * NORM_BY_OPERATIONS[0],
            fit["written_out"] * NORM_BY_OPERATIONS[1],
        )
    else:
        # each op by itself: norm, cast, add; and backward the same with the gradient's own add
        cast = 0 if w.pure or e == 4 else r + e
        each = (4 * r + cast + e, 6 * r + cast)
    normed = w.norms * w.n_embd
    if w.head_norms and not w.compiled:  # compiled, they are part of the rotation
        normed += w.n_embd + w.kv_width
    return float(normed * each[0]), float(normed * each[1])


def _activation(w: Workload) -> tuple[float, float]:
    """Of the MLP's activation, and of biases where they are added by themselves."""
    e, ff, gate = DTYPE_BYTES[w.dtype], w.ff_width, 2 if w.gated else 1
    if w.compiled:
        return float(ff * (gate + 1) * e), float(ff * (2 * gate + 1) * e)
    forward = ff * (2 * gate + (gate > 1)) * e
    if w.bias:
        forward += (ff + w.n_embd + 2 * w.kv_width + 2 * w.n_embd) * e
    return float(forward), float(ff * (3 * gate + 2 * (gate > 1)) * e)


def _rotary(w: Workload, fit: Fit) -> tuple[float, float]:
    if not w.rotates:
        return 0.0, 0.0
    turned = w.n_embd + w.kv_width
    if _by_operations(w):
        turned *= fit["written_out"]
        return float(turned * ROTARY_BY_OPERATIONS[0]), float(turned * ROTARY_BY_OPERATIONS[1])
    each = (2 if w.compiled else 8) * turned * DTYPE_BYTES[w.dtype]
    return float(each), float(each)


def _attention(w: Workload) -> tuple[float, float]:
    """Queries, keys and values laid out for the kernel, and its output; without Flash, the scores as well."""
    e = DTYPE_BYTES[w.dtype]
    qkv = w.n_embd + 2 * w.kv_width
    forward, backward = (
        2 * (qkv + w.n_embd) * e,
        2 * (qkv + w.n_embd) * e + 2 * qkv * e + 8 * w.n_embd,
    )
    if not w.flash:
        # scores written and read: products, scale, mask, softmax, and all that backward; autocast adds casts to fp32
        passes = SCORES_COMPILED if w.compiled else SCORES if w.pure or e == 4 else SCORES_CAST
        forward += passes[0] * w.n_head * w.block_size * e
        backward += passes[1] * w.n_head * w.block_size * e
    return float(forward), float(backward)


def logits_bytes(w: Workload) -> float:
    """Of these, the loss's: compiled it reads the logits twice, again going backward, and writes their gradient; op by op
    each of softmax, loss and cast reads and writes an fp32 copy. In slices they stay in a CPU's cache, and each slice adds its
    share to the head's gradient, a pass over the table in fp32; that is zeros first, and scaled by the loss's gradient last."""
    own_slices = w.chunked_loss and w.stack == OWN
    few = w.compiled or (w.chunked_loss and not (own_slices and w.on_card))
    passes = 8 if few else 24 if w.pure else 36
    moved = passes * w.vocab_size * w.tokens
    if own_slices:
        e = DTYPE_BYTES[w.dtype]
        moved += (w.loss_slices * (8 if e == 4 else 8 + e) + 12) * w.vocab_size * w.n_embd
    return float(moved)


def operand_bytes(w: Workload) -> float:
    """Bytes that the matmuls of one micro-batch read and write: inputs, outputs and weights, forward and twice backward."""
    e = DTYPE_BYTES[w.dtype]
    per_token = (
        w.n_layer * sum(inputs + outputs for inputs, outputs in w.layer_matrices)
        + w.vocab_size
        + w.n_embd
    )
    return 3.0 * e * (w.tokens * per_token + w.matmul_params)


def optimizer_bytes(w: Workload) -> float:
    """Bytes of the update: gradient norm and clip, weights, gradients and moments read and written."""
    e = DTYPE_BYTES[w.dtype] if w.pure else 4
    clip = 3 * e
    update = 7 * e if w.fused_optimizer else UNFUSED * e
    if w.optimizer == "adamw8bit":
        update = 3 * e + 4
    elif w.state_bits < 32:
        # train/optim/sliced.py, what its operations read and write, counted one by one
        update = 440 if w.optimizer == "muon" else 870
        update += 120 * w.half_weights  # rounded by chance
    elif w.sliced_update:
        update = 160 if w.optimizer == "muon" else 110
        update += 120 * w.half_weights
    elif w.optimizer == "muon":
        update = 5 * e + 16
    return (clip + update) * w.params * update_share(w)


def optimizer_flops(w: Workload) -> float:
    """Muon's five Newton-Schulz rounds on every layer matrix: 4·short²·long + 2·short³ each. In full precision long ones
    go by their Gram matrix (train/optim/muon.py)."""
    if w.optimizer != "muon":
        return 0.0
    total = 0.0
    for shape in ((w.n_embd, w.n_embd),) * 4 + w.layer_matrices[2:]:
        short, long = min(shape), max(shape)
        if w.full_precision_updates and long > LONG_MATRIX * short:
            total += 4 * short**2 * long + 34 * short**3
        else:
            total += 5 * (4 * short**2 * long + 2 * short**3)
    return w.n_layer * total * update_share(w)


def update_share(w: Workload) -> float:
    """Of the weights, those that one card updates."""
    return 1 / w.optimizer_cards


def micro_kernels(w: Workload) -> float:
    """Kernels launched in one micro-batch, forward and backward.

    Counted in a trace of the trainer's step on a fake card (tests/torch/test_planner_and_trainer.py): Inductor's schedule where
    it is compiled, the operations that write memory where it is not. FlashAttention's backward pass is three kernels.
    """
    if w.compiled:
        return 20 + (38 + 2 * w.modern) * w.n_layer + _slice_kernels(w)
    layer = 44 + 15 * w.bias + 12 * (not w.flash) + 20 * (w.recompute == "block")
    return 29 + (layer + _modern_kernels(w)) * w.n_layer + _slice_kernels(w)


def _slice_kernels(w: Workload) -> float:
    """Of the chunked loss, counted in the same trace; nothing is known of other people's."""
    if not w.chunked_loss or w.stack != OWN:
        return 0.0
    each = 27 if w.loss_slices_compiled else 35 + 6 * w.modern
    return float(each * w.loss_slices)


def _modern_kernels(w: Workload) -> float:
    """What RMSNorm, rotary positions and a gate add to an eager layer. In our own code they were counted in the trace. In other
    people's: a norm's 8 operations forward and 14 backward where LayerNorm has 4; for queries and keys each 9 forward and 16
    backward; a gate's product and one more matmul."""
    if w.stack == OWN:
        return 99 * w.modern
    norms = (w.norms + 2 * w.head_norms) * _norms_by_operations(w)
    return 18 * norms + 50 * w.rotates + 7 * w.gated


def optimizer_kernels(w: Workload) -> float:
    """Kernels of one update: a few for all tensors together, or a dozen for each."""
    matrices = len(w.layer_matrices) * w.n_layer
    # five rounds of three products, and what is around them, on stacks of matrices
    if w.optimizer == "muon":
        return 30.0 + 4.0 * matrices
    # a loop's tensors: queries, keys and values apart, and two norms a layer
    return 14.0 * (matrices + 4 * w.n_layer + 3) if w.optimizer_loop else 30.0


def fresh_bytes(w: Workload) -> float:
    """Bytes of one micro-batch in tensors above _LARGE: so many page faults were counted on a CPU."""
    # scores, their logarithms, and gradients of both
    logits = 0 if w.chunked_loss else 3 if w.compiled else 4
    tensors = [
        (4.0 * w.vocab_size * w.tokens, logits),
        # the head's gradient, the embedding's, their sum
        (4.0 * w.vocab_size * w.n_embd, 3 if w.tied else 2),
        # the MLP's input and output, its slope, two gradients
        (4.0 * w.ff_width * w.tokens, 5 * w.n_layer),
        # queries, keys and values, and their gradients
        (4.0 * (w.n_embd + 2 * w.kv_width) * w.tokens, 2 * w.n_layer),
    ]
    return sum(size * count for size, count in tensors if size > _LARGE)


# Work that goes on side by side takes as long as the longer of the two, and near equal lengths up to a fifth more. The larger
# this is, the less. Chosen, not fitted: smooth, so that a fit finds its way.
_SHARPNESS = 4


def together(one: float, other: float) -> float:
    """
    >>> together(3.0, 0.0), round(together(3.0, 3.0), 2)
    (3.0, 3.57)
    """
    return float((one**_SHARPNESS + other**_SHARPNESS) ** (1 / _SHARPNESS))


def waiting(busy: float, other: float) -> float:
    """What of the other work does not hide behind `busy`: the host's launching, an exchange between cards."""
    return together(busy, other) - busy


def alone(whole: float, other: float) -> float:
    """The work that takes the whole together with the other."""
    return float((whole**_SHARPNESS - other**_SHARPNESS) ** (1 / _SHARPNESS))
