"""The chunked loss: slices of logits, and both gradients made in the forward pass (model/chunked_loss.py).

>>> from onecard.planner.workload import Workload
>>> s = Sizes(Workload(1, 1, 64, 50304, 1024, batch_size=16, accumulation=1, chunked_loss=True))
>>> max(loss for _, _, loss in chunked_loss(s, 0, 0, 0)) < 16 * 1024 * 50304  # far below one byte a logit
True
"""

from collections.abc import Iterator

from onecard.config.model_rules import slice_rows
from onecard.planner.memory.size import Sizes


def chunked_loss(
    s: Sizes, kept: int, forward_casts: int, casts: int
) -> Iterator[tuple[int, int, int]]:
    """(casts, activations, bytes of the loss) in its forward and its backward pass, above what the layers keep."""
    w, n, r = s.work, s.tokens, s.matmul
    vocab, width = w.vocab_size, w.n_embd
    table, hidden = vocab * width, width * n
    rows = min(n, slice_rows(vocab))
    piece, second = rows * vocab, min(rows, n - rows) * vocab
    grads = 4 * hidden + 4 * table
    bent = 4 if w.modern else 0  # a soft cap's slope
    if s.mixed:
        # room for a slice; it in full precision while the last one's names still hold theirs; the head's gradient, cast
        slices = max(
            (6 + bent) * piece + 4 * second,
            (6 + bent) * piece + max((r + 4) * table, (8 + r) * rows * width),
            (4 + 2 * bent) * piece,
            (4 + 2 * bent) * second + r * piece,
        )
        yield forward_casts, kept, r * hidden + r * table + grads + r * piece + slices
    else:
        yield (
            forward_casts,
            kept,
            grads + 4 * piece + max(2 * bent * piece, bent * piece + 8 * rows * width),
        )
    # scaled in place by the loss's own gradient, then cast to what autograd expects
    yield casts, kept, grads + ((hidden + table) * r if s.mixed else 0)
