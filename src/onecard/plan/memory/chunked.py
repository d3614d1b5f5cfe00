"""The chunked loss: slices of logits, and both gradients made in the forward pass (train/chunked.py).

>>> from onecard.plan.workload import Workload
>>> s = Sizes(Workload(1, 1, 64, 50304, 1024, batch_size=16, accumulation=1, chunked_loss=True))
>>> max(loss for _, _, loss in chunked_loss(s, 0, 0, 0)) < 16 * 1024 * 50304  # far below one byte a logit
True
"""

from collections.abc import Iterator

from onecard.plan.memory.size import Sizes

SLICE_BYTES = 64 * 2**20  # of fp32 logits at a time: train/chunked.py


def chunked_loss(s: Sizes, kept: int, forward_casts: int, casts: int) -> Iterator[tuple[int, int, int]]:
    """(casts, activations, bytes of the loss) in its forward and its backward pass, above what the layers keep."""
    w, n, r = s.work, s.tokens, s.matmul
    vocab, width = w.vocab_size, w.n_embd
    table, hidden = vocab * width, r * width * n
    rows = min(n, max(16, SLICE_BYTES // (4 * vocab)))
    piece, second = rows * vocab, min(rows, n - rows) * vocab
    if s.mixed:
        # hidden states and head cast; a slice in half, then full precision, while the last one's names still hold it
        slices = max(8 * piece, 6 * piece + 6 * second, 6 * piece + r * table)
        yield forward_casts, kept, 2 * hidden + (4 + r) * table + slices
        yield casts, kept, hidden + (8 + r) * table
    else:
        slices = max(8 * piece, 4 * piece + 8 * second)  # logsumexp works on a copy
        yield forward_casts, kept, hidden + 4 * table + slices
        yield casts, kept, hidden + 8 * table
