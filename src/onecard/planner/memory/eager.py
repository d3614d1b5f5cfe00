"""Live bytes at the moments of an eager step that can be its peak, read off the autograd graph tensor by tensor.

n tokens in a micro-batch, C width, F width of the MLP, H heads, T context, V vocabulary, L layers. `r` is the size of
a number in matmuls (2 under autocast), `x` in the residual stream and the weights (4; 2 where all is bf16).

>>> w = Workload(2, 12, 768, 50304, 1024, batch_size=8, accumulation=4, compiled=False)
>>> max(moments(w), key=total)["logits_and_loss"] == 12 * w.tokens * w.vocab_size
True
"""

from dataclasses import dataclass

from onecard.planner.memory.chunked import chunked_loss
from onecard.planner.memory.size import Moment, Sizes, total
from onecard.planner.workload import Workload

__all__ = ["moments", "total"]


@dataclass(frozen=True)
class Block:
    """One layer: what its forward pass keeps for the backward pass, and what comes on top at its widest places."""

    kept: int  # from the forward to the backward pass
    whole: int  # kept without recomputation: what is there once the layer has been computed again
    attention: int  # of `whole`, what is still needed when the MLP's backward pass is done
    forward: int  # the whole of it inside the attention's forward pass
    again_extra: int  # above `kept`, where the attention is computed again
    backward_extra: int  # and inside its backward pass
    entry: int  # the layer's input, where its norm keeps its output alone


def block(s: Sizes) -> Block:
    n, r, x, w = s.tokens, s.matmul, s.stream, s.work
    width, heads, length = w.n_embd, w.n_head, w.block_size
    stream = x * width * n
    norm = (s.norm_stats + r * width) * n
    qkv = r * (width + 2 * w.kv_width) * n
    out = r * width * n
    dropped = width * n if w.dropout else 0  # a mask of bytes
    fresh = (
        stream if s.mixed else 0
    )  # the norm's fp32 output, which a function's argument keeps alive
    # an only layer's is the embedding, normed, which that norm keeps
    entry = stream if w.modern and (w.n_layer > 1 or w.dropout or w.recompute != "none") else 0
    if w.flash:
        inner = qkv + out + 4 * heads * n + s.bias_bytes
        forward_extra = fresh + entry
        again_extra = first = 0
        # the gradients of the output and of q, k, v; FlashAttention-2 adds up dq in fp32
        backward_extra = out + qkv + (0 if s.bias_bytes or r == 4 else s.flash_work)
    else:
        scores = heads * length * n
        saved, widest = _scores(s)
        mask = length * n if w.mask_documents else length * length
        inner = 3 * out + saved * scores + mask + out
        # with dropout the widest place is the product with values, before the output is dropped; else it is the softmax
        forward_extra = (
            fresh + qkv + mask + (widest - saved) * scores - (dropped if w.dropout else 2 * out)
        )
        copies = (
            2 * out
        )  # of queries and keys; with dropout the widest place is after those of values, at the product
        if w.dropout:
            copies += out if w.recompute == "cheap" else 2 * out
        again_extra = norm + fresh + copies + widest * scores + 2 * mask
        # the first time round, where it will be computed again: copies go at once; "cheap" keeps the matmul's own scores
        first = stream + (fresh if s.mixed else norm) + qkv + mask
        if w.dropout:
            first += max(
                0 if s.mixed else widest * scores, (12 if s.mixed else 3 * r) * scores + 2 * out
            )
        else:
            first += widest * scores
        first += r * scores if w.recompute == "cheap" else 0
        again_extra += -r * scores if w.recompute == "cheap" else qkv
        backward_extra = (widest - saved) * scores - out
        if w.modern:  # what is normed and turned is there before its copies are
            forward_extra += entry + 2 * out
            first += 2 * out
            again_extra += stream + 4 * out
    # queries and keys, normalised, and once more turned; written-out attention keeps its own copies of the latter
    turned = (4 if w.flash else 2) * out + 8 * heads * n if w.modern else 0
    attention = stream + norm + turned + inner + dropped
    whole = attention + stream + norm + s.mlp_bytes + dropped + s.foreign_bytes
    kept = {"none": whole, "block": stream, "cheap": stream + _costly(s)}[w.recompute]
    forward = attention + forward_extra if w.flash or w.recompute == "none" else first
    return Block(kept, whole, attention, forward, again_extra, backward_extra, entry)


def _scores(s: Sizes) -> tuple[int, int]:
    """Bytes a score of the attention written out: kept for the backward pass, and at most."""
    r = s.matmul
    if s.work.dropout:
        return (7, 13) if s.mixed else (2 * r + 1, 3 * r + 1)
    return (4 + r, 12) if s.mixed else (r, 3 * r)


def _costly(s: Sizes) -> int:
    """The outputs of matmuls and attention, which `recompute = "cheap"` keeps."""
    n, r, w = s.tokens, s.matmul, s.work
    outputs = (
        r * (w.n_embd + 2 * w.kv_width + 3 * w.n_embd + w.ff_width * (2 if w.gated else 1)) * n
    )
    if w.flash:
        return outputs + 4 * w.n_head * n
    return outputs + r * w.n_head * w.block_size * n


def moments(w: Workload) -> list[Moment]:
    s = Sizes(w)
    b = block(s)
    n, r, x, y = s.tokens, s.matmul, s.stream, s.residual
    width, vocab, layers = w.n_embd, w.vocab_size, w.n_layer
    table = vocab * width
    stream = x * width * n
    # the modern recipe norms the embedding first; undropped that is the first layer's input, kept by a recomputed layer
    lookup = s.embedding_bytes + (
        stream if w.modern and (w.recompute == "none" or w.dropout) else 0
    )
    kept = layers * b.kept + lookup
    casts = s.cast_layers if w.recompute == "none" else 0
    head_in = stream + (s.norm_stats + r * width) * n  # the last norm's input, and the head's
    if w.modern and not s.mixed:
        head_in -= r * width * n  # its norm keeps its output alone
    fresh = stream if s.mixed else 0
    pending = (
        y * table if w.tied else 0
    )  # the head's gradient waits for the embedding's, its other half
    first = s.base(gradients=0)
    found: list[Moment] = []

    def at(gradients: int = 0, cast: int = 0, activations: int = 0, loss: int = 0) -> None:
        moment = dict(first)
        moment["gradients"] += gradients
        moment["cast_weights"] += cast
        moment["activations"] += activations
        moment["logits_and_loss"] += loss
        found.append(moment)

    if w.chunked_loss:
        # LayerNorm's input and output (in fp32); the modern norm keeps its output alone
        body = kept + stream + s.norm_stats * n + (0 if w.modern else stream)
        for cast, activations, loss in chunked_loss(s, body, s.cast_layers, casts):
            at(0, cast, activations, loss)
    else:
        held = r * vocab * n if w.keeps_logits else 0
        exact = r if w.pure else 4  # bytes of a number in the loss: fp32 but where nothing is
        copies = 3 + (
            1 if w.modern or w.modules == "transformers" else 0
        )  # a soft cap's tanh, a shifted copy
        at(
            cast=casts + s.cast_head,
            activations=kept + head_in,
            loss=copies * exact * vocab * n + held,
        )
        forward = (r + 8 if s.mixed else 2 * exact) * vocab * n + (copies - 3) * exact * vocab * n
        if w.modern:
            forward = 3 * exact * vocab * n
        at(
            cast=s.cast_layers + s.cast_head,
            activations=kept + head_in + (0 if w.modern else fresh),
            loss=forward + held,
        )
        # the head's backward pass: its weight's gradient, then that cast to fp32
        at(
            cast=casts + s.cast_head,
            activations=kept + head_in + r * width * n,
            loss=r * vocab * n + r * table,
        )
        if s.mixed:
            at(cast=casts, activations=kept + 2 * stream + s.norm_stats * n, loss=(r + 4) * table)
    # the last block's backward pass, then the first's, when all other gradients are there
    again = b.whole + b.entry - b.kept if w.recompute != "none" else 0
    if w.recompute == "cheap" and not w.dropout:
        again += r * width * n  # the last matmul's output, kept but not asked for
    one_cast = s.cast_layers // layers if layers else 0
    copy = r * width * n if s.mixed or w.dropout else 0
    mlp = stream + copy + r * w.ff_width * n - (width * n if w.dropout else 0)
    mlp_cast = (
        (3 if w.gated else 2) * r * width * w.ff_width if s.mixed else 0
    )  # not there in the attention's passes
    entry = b.entry if w.recompute != "none" else 0  # which a checkpoint holds to the end
    for done in (0, layers - 1):
        left = layers - done
        cast = casts * left // layers if casts else one_cast
        grads = s.new_gradients * done // layers + (
            0 if w.accumulation > 1 or w.tied else x * table
        )
        saved = left * b.kept + lookup
        weight = r * width * w.ff_width
        at(grads, cast, saved + again + mlp + weight, pending)
        if s.mixed:  # the MLP's gradient, cast, when half of its activations are gone
            at(grads, cast, saved + again + stream + y * width * w.ff_width, pending)
        at(
            grads,
            cast - mlp_cast,
            saved - b.kept + b.attention + entry + stream + b.backward_extra,
            pending,
        )
        if w.recompute != "none":
            came = stream + (
                copy if s.mixed else 0
            )  # the gradient that the layer is computed again for
            at(grads, cast - mlp_cast, saved + came + b.again_extra, pending)
            if w.dropout:  # the end of its MLP: what was dropped, before and after
                at(grads, cast, saved + came + again + fresh + 2 * r * width * n, pending)
    # the forward pass of the last block
    table_of_documents = w.block_size * n if w.mask_documents and w.recompute == "none" else 0
    at(
        cast=s.cast_layers - mlp_cast,
        activations=(layers - 1) * b.kept + b.forward + lookup + table_of_documents,
    )
    if table_of_documents:  # which goes after the last norm
        at(cast=s.cast_layers, activations=kept + 2 * stream + table_of_documents)
    if w.modern:  # and of its MLP: before, between and after the squared ReLU, when its second matrix is not yet cast
        passing = r * w.ff_width * n + stream + b.entry + fresh - (width * n if w.dropout else 0)
        later = r * width * w.ff_width if s.mixed else 0
        if w.recompute == "none":
            at(cast=s.cast_layers - later, activations=kept + passing + table_of_documents)
        else:
            again = b.whole - b.kept
            if w.recompute == "cheap":  # what was kept is there already
                again = b.whole - _costly(s) + r * ((3 if s.mixed else 4) * width - w.ff_width) * n
            at(
                0,
                one_cast - later,
                kept + stream + (copy if s.mixed else 0) + passing + again,
                pending,
            )
    if w.recompute != "none":  # and of its MLP, while autocast still holds every layer's weights
        up = r * w.ff_width * n
        passing = stream + fresh + (s.norm_stats + r * width) * n + up
        passing += up + r * width * n if w.recompute == "block" else 0
        at(cast=s.cast_layers, activations=kept + passing)
    # the end: the embedding's gradient, made dense, beside the head's
    rest = s.new_gradients
    at(rest, 0, stream + 4 * width * w.block_size, x * table + pending)
    found.append(s.optimizer_moment())
    return found
