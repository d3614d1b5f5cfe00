"""Live bytes at the moments of a compiled step that can be its peak: what AOTAutograd saves and Inductor schedules.

Pointwise chains are fused and leave nothing behind; the backward graph hands over all its gradients at the end, so a
second set of them grows while activations are given back.

>>> w = Workload(12, 12, 768, 50304, 1024, batch_size=8, accumulation=4)
>>> round(max(map(total, moments(w))) / 2**30, 2)
6.96
"""

from onecard.planner.memory.chunked import chunked_loss
from onecard.planner.memory.compiled_layer import layer
from onecard.planner.memory.size import Moment, Sizes, total
from onecard.planner.workload import Workload

__all__ = ["moments", "total"]


def moments(w: Workload) -> list[Moment]:
    s = Sizes(w)
    b = layer(s)
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
    # the head's input and, but where it is done again with a layer of fused attention, LayerNorm's
    head_in = {
        "none": stream + (0 if w.modern and not s.mixed else out),
        "cheap": 2 * out,
        "block": out,
    }[w.recompute]
    body = (
        stream + {"none": 0 if w.modern else stream, "cheap": stream - out, "block": 0}[w.recompute]
    )
    if w.recompute != "none" and not w.flash and not w.modern:
        head_in, body = stream + out, 2 * stream
    if w.chunked_loss:
        for cast, activations, loss in chunked_loss(s, kept + body, casts, casts):
            at(0, cast, activations, loss)
        zeros = stream  # the gradient it hands back, which autograd has hold of to the end
        head_grad = (
            y * table if w.tied or w.accumulation == 1 else 0
        )  # a head of its own has it added at once
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
        at(
            0, casts, kept + 2 * stream + out
        )  # the last norm of the forward pass, where the stream's last sum is done
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
        at(
            y * (table + matrix),
            casts,
            kept + stream + out - (width * n if w.dropout else 0),
            zeros + head_grad,
        )
    else:
        counted = (
            out if w.chunked_loss and w.recompute != "cheap" and (s.mixed or not w.modern) else 0
        )
        at(0, casts + b.cast, kept + b.widest - counted, zeros + head_grad)
        at(r * matrix, casts + b.cast, kept + b.after, zeros + head_grad)
    if not w.flash and w.recompute == "none" and not s.mixed and not w.dropout:
        # and its attention's, when the MLP is done: the scores' gradient, with no other table let go just before
        up = (3 if w.gated else 2) * r * w.ff_width * n
        at(0, casts, kept + r * w.n_head * w.block_size * n + stream - up, zeros + head_grad)
    if b.attending:
        attn_cast = (
            r * (width + 2 * w.kv_width) * width if s.mixed and w.recompute == "block" else 0
        )
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
    if (
        w.tied
        and s.mixed
        and w.recompute == "none"
        and not w.chunked_loss
        and max(map(total, found)) < twice
    ):
        at(y * table, casts + s.cast_head, kept + head_in, zeros + r * vocab * n + head_grad)
        if total(found[-1]) >= twice:
            found.pop()  # which would save nothing
    found.append(s.optimizer_moment())
    return found
