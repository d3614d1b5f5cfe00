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
    attending: int = 0  # above `kept` in the last layer's written-out attention, when the MLP's two gradients are there


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
        attention = qkv + turned + out + 8 * w.n_head * n + held * scores + w.block_size**2  # a table of who sees whom
        inside = 2 * (stream + out) + attention
    recast = out if s.mixed or w.dropout else 0  # the stream's gradient as matmuls want it: cast, or masked
    one = s.cast_layers // w.n_layer
    if w.recompute == "none":
        kept = 2 * (stream + out + 4 * n) + attention + up * (3 if w.gated else 2) + masks + values_bytes(s)
        kept -= out + up // 2 if w.kept_half_bytes else 0  # both norms' outputs and the MLP's activation
        if w.modern:
            norm = stream + (2 * out if s.mixed else recast)
            return Block(kept, norm, stream + (2 * out if s.mixed else 0), norm, inside)
        norm = 2 * stream + out + recast  # the last norm's backward pass: its input, two gradients
        return Block(kept, norm, _after(s, norm - stream - out - masks // 2), norm, inside)
    if w.recompute == "cheap":
        kept = stream + qkv + 2 * out + up * (2 if w.gated else 1)
        # the activation function, done again; dropout's random numbers and the stream between attention and MLP
        mlp = stream + recast + up + (2 * stream - out if w.dropout else 0)
        matrix = r * width * ff
        attending = 0
        if w.flash:
            kept += 4 * w.n_head * n
        else:
            kept += r * scores
            mlp -= out if w.dropout and not s.mixed and not w.bias else 0
            attending = stream + r * scores - up  # two tables of scores, one of them in place of the kept one
            if w.modern or not w.dropout:
                attending += (5 if w.modern and s.mixed else 4) * out + recast
        if (
            w.modern and w.flash
        ):  # queries and keys are turned again; their gradients come when those of the MLP are there
            turning = 2 * stream + 7 * out + recast - up + 8 * w.n_head * n + work + s.bias_bytes + y * width * ff
            if w.mask_documents:  # taps wait for a mask, and the gradient of the MLP's first matrix for the taps
                turning = 4 * stream + (8 if s.mixed else 7) * out + 8 * w.n_head * n + s.bias_bytes
                if s.mixed and w.dropout:
                    turning = 9 * stream + 4 * out + s.bias_bytes
            turning += y * width * ff - matrix
            return Block(kept, 0, turning, turning, inside)
        # a gradient in half precision takes the place of its matrix's cast
        after, first = (mlp - matrix, mlp) if s.mixed else (mlp, mlp + matrix)
        return Block(kept, mlp, after, first + s.bias_bytes, inside, one // 3, attending)
    again = attention + 2 * up  # the layer computed again
    attending = 0
    if not w.flash:  # scores in full precision and random numbers beside the attention; a copy of the values
        again += (r + (4 if s.mixed or w.dropout else 0) + (4 if w.dropout else 0) - held) * scores
        again += out if w.modern else 0
        if not w.dropout:
            attending = stream + 8 * out + (out if s.mixed or w.modern else 0) + (qkv if w.modern else 0)
            attending += ((4 if s.mixed else 0) + 2 * r) * scores
    early = 0 if s.mixed else r * width * ff  # the first layer's first gradient, where no cast has to come before it
    if w.modern:
        # both norms' outputs, what attention gave, the gradient that came in; random numbers of a dropout stay
        random = stream if w.dropout else 0
        last = again + stream + random + (4 if s.mixed else 3) * out + recast
        first = again + stream + random + (2 if s.mixed and w.dropout else 3) * out + recast
        first += stream if s.mixed and w.mask_documents and w.dropout else 0
        after = last - (out if s.mixed and not w.dropout else 0)
        return Block(stream, last, after, first + early, inside, one, attending)
    # both norms' outputs, what attention gave, the gradient that came in; the stream after the layer and its gradient
    last = again + 2 * stream + 4 * out + recast
    first = again + 2 * stream + 2 * out + recast
    if w.dropout:  # random numbers, and the stream between attention and MLP
        last += 2 * stream - (0 if s.mixed else out)
        first += stream
    after = _after(s, last - stream - out - (out if s.mixed and w.dropout else 0))
    if not w.flash and s.mixed and not w.dropout:  # the last norm's backward pass comes before the layer
        last -= stream + out
        after = last - r * width * ff
    elif not w.flash and w.dropout and not s.mixed:
        last -= 2 * out
    return Block(stream, last, after, first + early, inside, one, attending)


def _after(s: Sizes, normed: int) -> int:
    """From when the last norm is through to when there is a gradient of the MLP's second matrix: without biases it
    comes first, with them the gradient of what it was multiplied with does, and the matrix's cast is let go."""
    w = s.work
    if not w.bias or (not w.flash and w.dropout and w.recompute == "none"):
        return normed
    cast = s.matmul * w.n_embd * w.ff_width if s.mixed else 0
    return normed + s.matmul * w.ff_width * s.tokens - cast


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
        zeros = stream  # the gradient it hands back, which autograd has hold of to the end
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
    if w.recompute == "none" and not w.modern and not w.dropout:
        at(0, casts, kept + 2 * stream + out)  # the last norm of the forward pass, where the stream's last sum is done
    # the last layer's backward pass, before and with the first of its gradients
    matrix = width * w.ff_width
    if w.bias and (w.flash or not w.dropout) and w.recompute == "none" and not w.chunked_loss:
        # Inductor orders the graph anew where that saves memory by its own count, which has nothing written in place:
        # a matrix's gradient then comes before that of its input, and the embedding's is there from the beginning
        loss, needs = s.cast_head + head_in + logits, head_grad + b.after + r * matrix
        saves = (out if s.mixed or w.dropout else 0) - (y - r) * matrix
        anew = max(loss, needs) > max(loss, needs - saves) + y * table
    if anew:
        at(y * table, casts + s.cast_head, kept + head_in, logits + zeros)
        at(y * (table + matrix), casts, kept + stream + out - (width * n if w.dropout else 0), zeros + head_grad)
    else:
        counted = out if w.chunked_loss and w.recompute != "cheap" and (s.mixed or not w.modern) else 0
        at(0, casts + b.cast, kept + b.widest - counted, zeros + head_grad)
        at(r * matrix, casts + b.cast, kept + b.after, zeros + head_grad)
    if not w.flash and w.recompute == "none" and not s.mixed and not w.dropout:
        # and its attention's, when the MLP is done: the scores' gradient, with no other table let go just before
        up = (3 if w.gated else 2) * r * w.ff_width * n
        at(0, casts, kept + r * w.n_head * w.block_size * n + stream - up, zeros + head_grad)
    if b.attending:
        attn_cast = r * (width + 2 * w.kv_width) * width if s.mixed and w.recompute == "block" else 0
        at(2 * y * matrix, attn_cast, kept + b.attending, zeros + head_grad)
    # the first layer's, when the gradients of all others are there
    new = s.weight_bytes
    positions = 0 if w.modern else w.block_size * width
    others = new - y * (s.layer_parameters + positions) - s.stream * table
    tied = head_grad if w.tied else 0
    one_cast = s.cast_layers // layers
    waiting = inside_waiting = 0
    if w.modern and s.mixed and w.recompute == "block" and not w.mask_documents and layers > 1:
        # in half precision gradients along the stream wait to be summed, three at most, in every third layer
        behind = (layers - 2) % 3
        waiting = [2, 1, 3 if w.dropout else 1][behind] * stream
        inside_waiting = 2 * (stream + out) if behind == 1 else 0
        grads = others - behind * y * s.layer_parameters
        # one of three may be the chunked loss's, which is counted already
        three = b.first + (stream if w.chunked_loss and layers == behind + 2 else 2 * stream)
        at(grads, one_cast, (behind + 1) * b.kept + lookup + three, zeros + tied)
    at(others, one_cast, b.kept + lookup + b.first + waiting, zeros + tied)
    # its attention's, when its MLP is done
    qkv = (width + 2 * w.kv_width) * width
    inside = lookup + b.inside + inside_waiting
    at(others + y * (s.layer_parameters - qkv), r * qkv if s.mixed else 0, inside, zeros + tied)
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
