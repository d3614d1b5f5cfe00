"""One layer of a compiled step: what it keeps for its backward pass, and what comes on top at its widest places.

Read off the schedules that Inductor makes of the trainer's own graphs (tests/torch/memory_oracle.py), in units of whole
tensors; where a term hangs on a mode only (a bias, dropout, half precision), Inductor chooses another order there.

>>> from onecard.planner.workload import Workload
>>> s = Sizes(Workload(12, 12, 768, 50304, 1024, batch_size=8, accumulation=4))
>>> layer(s).kept // s.tokens - 36 * 768 - 4 * 12  # 36 bytes a channel and token, 4 a head; two norms' statistics
8
"""

from dataclasses import dataclass

from onecard.planner.memory.size import HALF, Sizes


@dataclass(frozen=True)
class Layer:
    """What is kept for the backward pass, and how much more the last layer's backward pass needs."""

    kept: int
    widest: int
    after: int  # when there is a gradient of the MLP's second matrix
    first: int  # as `widest`, of the first layer
    inside: int  # all that the first layer's attention has in its backward pass
    cast: int = (
        0  # half-precision weights that are there then, besides those kept from the forward pass
    )
    attending: int = 0  # above `kept` in the last layer's written-out attention, when the MLP's two gradients are there


def layer(s: Sizes) -> Layer:
    return {"none": _kept_whole, "cheap": _kept_in_part, "block": _computed_again}[
        s.work.recompute
    ](_Tensors(s))


class _Tensors:
    """The bytes of a layer's tensors over all tokens of a micro-batch."""

    def __init__(self, s: Sizes):
        n, r, w = s.tokens, s.matmul, s.work
        self.sizes, self.work = s, w
        self.stream = s.stream * w.n_embd * n
        self.out = r * w.n_embd * n  # a matmul's output of the stream's width
        self.qkv = r * (w.n_embd + 2 * w.kv_width) * n
        self.up = r * w.ff_width * n
        self.scores = w.n_head * w.block_size * n  # numbers, not bytes
        self.matrix = r * w.n_embd * w.ff_width
        self.matrix_grad = s.residual * w.n_embd * w.ff_width
        self.stats = 8 * w.n_head * n  # of norms and softmaxes by heads
        # the stream's gradient as matmuls want it: cast, or masked
        self.recast = self.out if s.mixed or w.dropout else 0
        turned = (
            2 * self.out + self.stats if w.modern else 0
        )  # queries and keys, normalised and turned
        turned += 2 * self.out if w.turned_copies else 0
        self.work_bytes = s.flash_work if w.flash and r == HALF and not w.mask_documents else 0
        self.inside = 2 * (self.stream + self.out)
        if w.flash:
            self.attention = self.qkv + turned + self.out + self.stats // 2
            self.inside += self.attention + self.qkv + self.work_bytes
        else:
            self.held = (2 * r if s.mixed or w.dropout else r) + (
                1 if w.dropout else 0
            )  # bytes of a score
            table = w.block_size**2  # who sees whom
            self.attention = (
                self.qkv + turned + self.out + self.stats + self.held * self.scores + table
            )
            self.inside += self.attention


def _kept_whole(t: _Tensors) -> Layer:
    s, w, stream, out = t.sizes, t.work, t.stream, t.out
    masks = 2 * w.n_embd * s.tokens if w.dropout else 0
    kept = (
        2 * (stream + out + 4 * s.tokens)
        + t.attention
        + t.up * (3 if w.gated else 2)
        + masks
        + _values(s)
    )
    kept -= (
        out + t.up // 2 if w.kept_half_bytes else 0
    )  # both norms' outputs and the MLP's activation
    if w.modern:
        norm = stream + (2 * out if s.mixed else t.recast)
        return Layer(kept, norm, stream + (2 * out if s.mixed else 0), norm, t.inside)
    norm = 2 * stream + out + t.recast  # the last norm's backward pass: its input, two gradients
    return Layer(kept, norm, _after(t, norm - stream - out - masks // 2), norm, t.inside)


def _kept_in_part(t: _Tensors) -> Layer:
    s, w, stream, out = t.sizes, t.work, t.stream, t.out
    kept = stream + t.qkv + 2 * out + t.up * (2 if w.gated else 1)
    # the activation function, done again; dropout's random numbers and the stream between attention and MLP
    mlp = stream + t.recast + t.up + (2 * stream - out if w.dropout else 0)
    attending = 0
    if w.flash:
        kept += t.stats // 2
        if w.modern:
            turning = _turning(t) + t.matrix_grad - t.matrix
            return Layer(kept, 0, turning, turning, t.inside)
    else:
        kept += s.matmul * t.scores
        mlp -= out if w.dropout and not s.mixed and not w.bias else 0
        attending = (
            stream + s.matmul * t.scores - t.up
        )  # two tables of scores, one of them in place of the kept one
        if w.modern or not w.dropout:
            attending += (5 if w.modern and s.mixed else 4) * out + t.recast
    # a gradient in half precision takes the place of its matrix's cast
    after, first = (mlp - t.matrix, mlp) if s.mixed else (mlp, mlp + t.matrix)
    return Layer(
        kept, mlp, after, first + s.bias_bytes, t.inside, s.cast_layers // w.n_layer // 3, attending
    )


def _turning(t: _Tensors) -> int:
    """The modern layer's queries and keys are turned again, and their gradients made when the MLP's are there."""
    s, w, stream, out = t.sizes, t.work, t.stream, t.out
    if not w.mask_documents:
        return (
            2 * stream
            + 7 * out
            + t.recast
            - t.up
            + t.stats
            + t.work_bytes
            + s.bias_bytes
            + t.matrix_grad
        )
    # taps wait for the mask over documents, and the gradient of the MLP's first matrix for the taps
    if s.mixed and w.dropout:
        return 9 * stream + 4 * out + s.bias_bytes
    return 4 * stream + (8 if s.mixed else 7) * out + t.stats + s.bias_bytes


def _computed_again(t: _Tensors) -> Layer:
    s, w, stream, out = t.sizes, t.work, t.stream, t.out
    again = t.attention + 2 * t.up
    attending = 0
    if (
        not w.flash
    ):  # scores in full precision and random numbers beside the attention; a copy of the values
        full = 4 if s.mixed else 0
        again += (
            s.matmul + (4 if s.mixed or w.dropout else 0) + (4 if w.dropout else 0) - t.held
        ) * t.scores
        again += out if w.modern else 0
        if not w.dropout:
            attending = (
                stream + 8 * out + (out if s.mixed or w.modern else 0) + (t.qkv if w.modern else 0)
            )
            attending += (full + 2 * s.matmul) * t.scores
    cast = s.cast_layers // w.n_layer
    early = (
        0 if s.mixed else t.matrix
    )  # the first layer's first gradient, where no cast has to come before it
    if w.modern:
        # both norms' outputs, what attention gave, the gradient that came in; random numbers of a dropout stay
        both = again + stream + (stream if w.dropout else 0) + t.recast
        last = both + (4 if s.mixed else 3) * out
        after = last - (out if s.mixed and not w.dropout else 0)
        first = both + (2 if s.mixed and w.dropout else 3) * out
        first += stream if s.mixed and w.mask_documents and w.dropout else 0
        return Layer(stream, last, after, first + early, t.inside, cast, attending)
    # both norms' outputs, what attention gave, the gradient that came in; the stream after the layer and its gradient
    last = again + 2 * stream + 4 * out + t.recast
    first = again + 2 * stream + 2 * out + t.recast
    if w.dropout:  # random numbers, and the stream between attention and MLP
        last += 2 * stream - (0 if s.mixed else out)
        first += stream
    after = _after(t, last - stream - out - (out if s.mixed and w.dropout else 0))
    if (
        not w.flash and s.mixed and not w.dropout
    ):  # the last norm's backward pass comes before the layer
        last -= stream + out
        after = last - t.matrix
    elif not w.flash and w.dropout and not s.mixed:
        last -= 2 * out
    return Layer(stream, last, after, first + early, t.inside, cast, attending)


def _after(t: _Tensors, normed: int) -> int:
    """From when the last norm is through to when there is a gradient of the MLP's second matrix: without biases it
    comes first, with them the gradient of what it was multiplied with does, and the matrix's cast is let go."""
    w = t.work
    if not w.bias or (not w.flash and w.dropout and w.recompute == "none"):
        return normed
    return normed + t.up - (t.matrix if t.sizes.mixed else 0)


def _values(s: Sizes) -> int:
    """A layer's share of what value embeddings keep: the values they were added to, their gates, and the stream before
    it was mixed with the embedding (nanochat's module, traced)."""
    w = s.work
    if not w.value_tables:
        return 0
    mixed = s.stream * w.n_embd * s.tokens
    heads = w.n_kv_head or w.n_head
    return mixed + s.matmul * (w.kv_width + heads) * s.tokens * w.value_tables // w.n_layer
