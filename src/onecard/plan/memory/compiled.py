"""Live bytes at the moments of a compiled step that can be its peak: what AOTAutograd saves and Inductor schedules.

Pointwise chains are fused and leave nothing behind; the backward graph hands over all its gradients at the end, so a
second set of them grows while activations are given back.

>>> w = Workload(12, 12, 768, 50304, 1024, batch_size=8, accumulation=4)
>>> round(max(map(total, moments(w))) / 2**30, 2)
6.96
"""

from dataclasses import dataclass

from onecard.plan.memory.chunked import chunked_loss
from onecard.plan.memory.size import HALF, Moment, Sizes, total
from onecard.plan.workload import Workload

__all__ = ["moments", "total"]


@dataclass(frozen=True)
class Block:
    """One layer: what is kept for the backward pass, and how much more the last layer's backward pass needs."""

    kept: int
    widest: int
    after: int  # when there is a gradient of the MLP's second matrix
    first: int  # as `widest`, of the first layer
    inside: int  # all that the first layer's attention has in its backward pass
    cast: int = 0  # half-precision weights that are there then, besides those kept from the forward pass


def block(s: Sizes) -> Block:
    n, r, x, y, w = s.tokens, s.matmul, s.stream, s.residual, s.work
    width, ff = w.n_embd, w.ff_width
    stream, out = x * width * n, r * width * n
    qkv = r * (width + 2 * w.kv_width) * n
    up = r * ff * n
    scores = w.n_head * w.block_size * n
    masks = 2 * width * n if w.dropout else 0
    turned = 2 * out + 8 * w.n_head * n if w.modern else 0  # queries and keys, normalised and turned
    turned += 2 * out if w.turned_copies else 0
    if w.flash:
        attention = qkv + turned + out + 4 * w.n_head * n
        work = s.flash_work if r == HALF and not w.mask_documents else 0
        inside = 2 * (stream + out) + attention + qkv + work
    else:
        held = (2 * r if s.mixed or w.dropout else r) + (1 if w.dropout else 0)
        attention = qkv + turned + out + 8 * w.n_head * n + held * scores
        inside = 2 * (stream + out) + attention
    recast = out if s.mixed or w.dropout else 0  # the stream's gradient as matmuls want it: cast, or masked
    one = s.cast_layers // w.n_layer
    if w.recompute == "none":
        kept = 2 * (stream + out + 4 * n) + attention + up * (3 if w.gated else 2) + masks + values_bytes(s)
        kept -= out + up // 2 if w.kept_half_bytes else 0  # both norms' outputs and the MLP's activation
        if w.modern:
            kept += 6 * out if w.mask_documents else 0  # taps that stop at a document's end keep what they multiply
            norm = stream + (2 * out if s.mixed else recast)
            return Block(kept, norm, stream + (2 * out if s.mixed else 0), norm, inside)
        norm = 2 * stream + out + recast  # the last norm's backward pass: its input, two gradients
        return Block(kept, norm, _after(s, norm - stream - out - masks // 2), norm, inside)
    if w.recompute == "cheap":
        kept = stream + qkv + 2 * out + up * (2 if w.gated else 1)
        # the activation function, done again; dropout's random numbers and the stream between attention and MLP
        mlp = stream + recast + up + (2 * stream - out if w.dropout else 0)
        matrix = r * width * ff
        if not w.flash:
            widest = out + max(mlp, stream + 5 * out + r * scores - up)
            return Block(kept + r * scores, widest, widest - matrix, widest, inside, one // 3)
        kept += 4 * w.n_head * n
        if w.modern:  # queries and keys are turned again; their gradients come when those of the MLP are there
            turning = 2 * stream + 7 * out + recast - up + 8 * w.n_head * n + work + s.bias_bytes
            turning += 2 * y * width * ff - matrix
            return Block(kept, 0, turning, turning, inside)
        # a gradient in half precision takes the place of its matrix's cast
        after, first = (mlp - matrix, mlp) if s.mixed else (mlp, mlp + matrix)
        return Block(kept, mlp, after, first + s.bias_bytes, inside, one // 3)
    again = attention + 2 * up  # the layer computed again
    early = 0 if s.mixed else r * width * ff  # the first layer's first gradient, where no cast has to come before it
    if w.modern:
        # both norms' outputs, what attention gave, the gradient that came in; random numbers of a dropout stay
        random = stream if w.dropout else 0
        last = again + stream + random + (4 if s.mixed else 3) * out + recast
        # in half precision the gradients along the stream are summed only at the end
        first = again + stream + random + (2 if s.mixed and w.dropout else 3) * out + recast
        first += 2 * stream if s.mixed and not w.mask_documents else 0
        if w.mask_documents:  # taps that stop at a document's end: what they multiply, in this layer and the next
            last, first, early = last + 6 * stream, first + 6 * stream, 0
        after = last - (out if s.mixed and not w.dropout else 0)
        return Block(stream, last, after, first + early, inside, one)
    # both norms' outputs, what attention gave, the gradient that came in; the stream after the layer and its gradient
    last = again + 2 * stream + 4 * out + recast
    first = again + 2 * stream + 2 * out + recast
    if w.dropout:  # random numbers, and the stream between attention and MLP
        last += 2 * stream - (0 if s.mixed else out)
        first += stream
    after = _after(s, last - stream - out - (out if s.mixed and w.dropout else 0))
    if not w.flash:  # Inductor starts on the next layer's scores before it is done with the last one's
        more = (r * scores + 2 * out) if w.n_layer > 1 else 0
        last, after, first, one = last + more, after + more, first + more, s.cast_layers
    return Block(stream, last, after, first + early, inside, one)


def _after(s: Sizes, normed: int) -> int:
    """From when the last norm is through to when there is a gradient of the MLP's second matrix: without biases it
    comes first, with them the gradient of what it was multiplied with does, and the matrix's cast is let go."""
    w = s.work
    cast = s.matmul * w.n_embd * w.ff_width if s.mixed else 0
    return normed + (s.matmul * w.ff_width * s.tokens - cast if w.bias else 0)


def values_bytes(s: Sizes) -> int:
    """A layer's share of what value embeddings keep: the values they were added to, their gates, and the stream before
    it was mixed with the embedding (nanochat's module, traced)."""
    w = s.work
    if not w.value_tables:
        return 0
    mixed = s.stream * w.n_embd * s.tokens
    heads = w.n_kv_head or w.n_head
    return mixed + s.matmul * (w.kv_width + heads) * s.tokens * w.value_tables // w.n_layer


def moments(w: Workload) -> list[Moment]:
    s = Sizes(w)
    b = block(s)
    n, r, x, y = s.tokens, s.matmul, s.stream, s.residual
    width, vocab, layers = w.n_embd, w.vocab_size, w.n_layer
    table = vocab * width
    stream, out = x * width * n, r * width * n
    # a mask over documents is made once for all layers; as numbers to add, not as a table of who sees whom,
    # and kept unless the step to these numbers is done again
    lookup = s.embedding_bytes + (s.bias_bytes if w.recompute != "cheap" else 0)
    if w.mask_documents and w.recompute != "none":
        lookup -= w.block_size * n
    kept = layers * b.kept + lookup
    casts = s.cast_layers if w.recompute == "none" else 0
    found: list[Moment] = []

    def at(gradients: int = 0, cast: int = 0, activations: int = 0, loss: int = 0) -> None:
        moment = s.base()
        moment["gradients"] += gradients
        moment["cast_weights"] += cast
        moment["activations"] += activations
        moment["logits_and_loss"] += loss
        found.append(moment)

    anew = False
    answer = 4 if w.modern else r  # bytes of a logit that is handed back: a soft cap makes it fp32
    zeros = 0 if w.chunked_loss or not w.spare_logits else answer * vocab * n
    head_in = {"none": stream + (0 if w.modern and not s.mixed else out), "cheap": 2 * out, "block": out}[w.recompute]
    if w.chunked_loss:
        # the stream and, where nothing is computed again, LayerNorm's input beside it
        body = stream + {"none": 0 if w.modern else stream, "cheap": stream - out, "block": 0}[w.recompute]
        for cast, activations, loss in chunked_loss(s, kept + body, casts, casts):
            at(0, cast, activations, loss)
        head_grad = y * table
    else:
        # logits, their gradient, and a table of zeros: autograd's gradient for the logits that nobody used
        logits = (r + answer if w.modern else 2 * r) * vocab * n
        if not w.returns_logits:
            logits, zeros = r * vocab * n, 0
        if w.loss_outside:
            logits, zeros = 3 * (r if w.pure else 4) * vocab * n, r * vocab * n
            at(0, casts + s.cast_head, kept + head_in, logits)
        else:
            at(0, casts + s.cast_head, kept + head_in, logits + zeros)
        # uncast, the gradient of a tied table is summed at the very end: what it is made of stays until then
        head_grad = r * vocab * n + out if w.tied and not s.mixed else r * table
    # the last layer's backward pass, before and with the first of its gradients
    matrix = r * width * w.ff_width
    if w.bias and w.flash and w.recompute == "none" and not w.chunked_loss and (s.mixed or w.dropout):
        # Inductor orders the graph anew where that saves memory by its own count, in which logits live a little longer:
        # the last layer then needs no more than the loss did, but the embedding's gradient is there from the beginning
        needs = head_grad + (b.after + matrix if s.mixed else b.widest)
        anew = needs > s.cast_head + head_in + logits + r * vocab * n + y * table
    if anew:
        at(y * table, casts + s.cast_head, kept + head_in, logits + zeros)
    else:
        at(0, casts + b.cast, kept + b.widest, zeros + head_grad)
        at(matrix, casts + b.cast, kept + b.after, zeros + head_grad)
    if (
        not w.flash and w.recompute == "none" and not s.mixed
    ):  # and its attention's, when the MLP is done: the scores' gradient
        up = (3 if w.gated else 2) * r * w.ff_width * n
        at(0, casts, kept + r * w.n_head * w.block_size * n + stream - up, zeros + head_grad)
    # the first layer's, when the gradients of all others are there
    new = s.weight_bytes
    positions = 0 if w.modern else w.block_size * width
    others = new - y * (s.layer_parameters + positions) - s.stream * table
    tied = head_grad if w.tied else 0
    one_cast = s.cast_layers // layers
    at(others, one_cast, b.kept + lookup + b.first, zeros + tied)
    # its attention's, when its MLP is done
    qkv = (width + 2 * w.kv_width) * width
    at(others + y * (s.layer_parameters - qkv), r * qkv if s.mixed else 0, lookup + b.inside, zeros + tied)
    # the embedding's, beside what it is made of; then the positions', then the sum of both uses of a tied table
    at(new - y * positions, 0, lookup + 2 * stream + out, zeros + tied)
    at(new, 0, stream, zeros + tied)
    at(new + (0 if s.mixed or w.chunked_loss else y * table * w.tied), 0, 0, zeros + tied)
    # by Inductor's count the table's gradient is there twice at the end; where that is the most, it orders the graph
    # anew, and one is there from the beginning: beside the head's gradient, its cast and the gradient of its output
    twice = total(s.base()) + new + zeros + tied + y * table
    if w.tied and s.mixed and w.recompute == "none" and not w.chunked_loss and max(map(total, found)) < twice:
        at(y * table, casts + s.cast_head, kept + head_in, zeros + r * vocab * n + head_grad)
    found.append(s.optimizer_moment())
    return found
