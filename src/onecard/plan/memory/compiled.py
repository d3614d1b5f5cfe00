"""Live bytes at the moments of a compiled step that can be its peak: what AOTAutograd saves and Inductor schedules.

Pointwise chains are fused and leave nothing behind; the backward graph hands over all its gradients at the end, so a
second set of them grows while activations are given back.

>>> w = Workload(12, 12, 768, 50304, 1024, batch_size=8, accumulation=4)
>>> round(max(map(total, moments(w))) / 2**30, 2)
6.96
"""

from dataclasses import dataclass

from onecard.plan.memory.chunked import chunked_loss
from onecard.plan.memory.size import Moment, Sizes, total
from onecard.plan.workload import Workload

__all__ = ["moments", "total"]


@dataclass(frozen=True)
class Block:
    """One layer: what is kept for the backward pass, and how much more the last layer's backward pass needs."""

    kept: int
    widest: int
    first: int  # the same for the first layer's
    cast: int  # half-precision weights that are there then, besides those kept from the forward pass


def block(s: Sizes) -> Block:
    n, r, x, w = s.tokens, s.matmul, s.stream, s.work
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
    else:
        held = (2 * r if s.mixed or w.dropout else r) + (1 if w.dropout else 0)
        attention = qkv + turned + out + 8 * w.n_head * n + held * scores
    recast = out if s.mixed or w.dropout else 0
    recast += 0 if s.mixed else 2 * out  # nothing to cast: gradients stay as they came
    one = s.cast_layers // w.n_layer
    if w.recompute == "none":
        kept = 2 * (stream + out + 4 * n) + attention + up * (3 if w.gated else 2) + masks + values_bytes(s)
        kept -= out + up // 2 if w.kept_half_bytes else 0  # both norms' outputs and the MLP's activation
        if w.modern:
            return Block(kept, stream + 2 * out, stream + out, 0)
        return Block(kept, 2 * stream + out + recast, stream + recast, 0)  # the last norm's backward pass
    if w.recompute == "cheap":
        kept = stream + qkv + 2 * out + up * (2 if w.gated else 1)
        mlp = stream + recast + up + (stream + masks if w.dropout else 0)
        if w.flash:
            mlp += 3 * out if w.modern else 0
            return Block(kept + 4 * w.n_head * n, mlp, mlp, one // 3)
        attention = stream + 5 * out + r * scores - up
        widest = out + max(mlp, attention)
        return Block(kept + r * scores, widest, widest, one // 3)
    # the last layer is computed again up to its output, and the activation's tanh kept in fp32
    again = (out if w.modern else stream + 4 * ff * n) + 4 * out + attention + 2 * up
    again += stream + out + masks if w.dropout else 0
    if not w.flash:  # Inductor starts on the next layer's scores before it is done with the last one's
        again += (r * scores + 2 * out) if w.n_layer > 1 else 0
        one = s.cast_layers
    last = 0 if w.modern else stream + 4 * ff * n
    return Block(stream, again + stream + recast, again + stream + recast - last, one)


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
    # a mask over documents is made once for all layers, and again where layers are computed again
    lookup = s.embedding_bytes + (s.bias_bytes if w.recompute == "none" else 0)
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

    answer = 4 if w.modern else r  # bytes of a logit that is handed back: a soft cap makes it fp32
    zeros = 0 if w.chunked_loss or not w.spare_logits else answer * vocab * n
    head_in = {"none": stream + out, "cheap": 2 * out, "block": out}[w.recompute]
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
        head_grad = r * table
    # the last layer's backward pass, with the first of its gradients
    at(y * width * w.ff_width, casts + b.cast, kept + b.widest, zeros + head_grad)
    if (
        not w.flash and w.recompute == "none" and not s.mixed
    ):  # and its attention's, when the MLP is done: the scores' gradient
        up = (3 if w.gated else 2) * r * w.ff_width * n
        at(0, casts, kept + r * w.n_head * w.block_size * n + stream - up, zeros + head_grad)
    # the first layer's, when the gradients of all others are there
    new = s.weight_bytes
    others = new - y * (s.layer_parameters + (0 if w.modern else w.block_size * width)) - s.stream * table
    one_cast = s.cast_layers // layers
    at(others, one_cast, b.kept + lookup + b.first, zeros + (head_grad if w.tied else 0))
    qkv = r * (width + 2 * w.kv_width) * n
    at(new - s.stream * table, 0, lookup + 2 * stream + qkv, zeros + (head_grad if w.tied else 0))
    # the end: all new gradients, the embedding's in three copies
    at(new, 0, stream, zeros + ((r if s.mixed else 0) + y) * table * w.tied)
    found.append(s.optimizer_moment())
    return found
