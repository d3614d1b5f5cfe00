"""The tensors of one layer: GPT-2's block (model/gpt2.py) and the modern one (model/modern.py), operation by operation.

Each is declared with the operation that makes it, the last one that uses it in the forward pass (or whose frame still
has a name for it), and the operation whose backward pass reads it. When it is born and dies with and without
recomputation follows from these three (layer.py). Compiled, a chain of pointwise operations is one kernel: what only
lives inside the chain is marked `eager_only`. Where Inductor's own order decides, the most frequent one is declared.

The short convolution (model/short_convolution.py) has TAPS weights a channel, called taps: one for each token it reads.

>>> from onecard.planner.workload import Workload
>>> sizes = Sizes(Workload(12, 12, 768, 50304, 1024, batch_size=8, accumulation=4))
>>> sum(tensor.bytes for tensor in block_tensors(sizes) if tensor.name in ("c_fc output", "activation output")) // sizes.tokens // 768
16
"""

from onecard.config.model_rules import TAPS
from onecard.planner.memory.layer import Layer
from onecard.planner.memory.sizes import FULL, HALF, Sizes
from onecard.planner.memory.timeline import Tensor


def block_tensors(sizes: Sizes) -> list[Tensor]:
    layer = Layer(sizes)
    (modern_norms if layer.work.modern else gpt2_norms)(layer)
    (fused_attention if layer.work.flash else written_out_attention)(layer)
    mlp(layer)
    residual_stream(layer)
    return layer.tensors


def gpt2_norms(layer: Layer) -> None:
    """LayerNorm keeps its input and two numbers a token; its output goes to the matmul, cast under autocast."""
    sizes = layer.sizes
    layer.makes("stream after attention", sizes.residual, "add_1", "add_2", "norm_2")
    for norm, matmul, end in (("norm_1", "qkv", "dropout_1"), ("norm_2", "up", "dropout_2")):
        layer.makes(f"{norm} statistics", sizes.norm_statistics, norm, norm, norm)
        if sizes.mixed:
            layer.makes(f"{norm} output", sizes.residual, norm, end, eager_only=True)
        layer.operand(f"{norm} output for {matmul}", sizes.normed, matmul, matmul)
        layer.back(f"gradient of {norm} output", sizes.activation, matmul, norm)
        layer.back(f"gradient of {norm} input", sizes.residual, norm, norm)


def modern_norms(layer: Layer) -> None:
    """rms_norm and the short convolution keep the norm's output; the convolution's goes to the matmul."""
    sizes = layer.sizes
    layer.makes(
        "stream after attention",
        sizes.residual,
        "add_1",
        "add_2",
        "norm_2" if layer.compiled else None,
    )
    for norm, matmul, end in (("norm_1", "qkv", "dropout_1"), ("norm_2", "up", "dropout_2")):
        layer.makes(f"{norm} statistics", sizes.norm_statistics, norm, norm, norm)
        layer.makes(f"{norm} output", sizes.residual, norm, norm, norm, eager_only=True)
        if sizes.mixed:
            layer.makes(f"{norm} convolution", sizes.residual, norm, end, eager_only=True)
        # in 8 bits it is kept: the convolution before it is not computed again
        layer.operand(f"{norm} convolution for {matmul}", sizes.normed, matmul, matmul, kept=True)
        # Inductor leaves the taps' gradients for later
        until = "norm_1" if layer.compiled else norm
        layer.back(f"gradient of {norm} convolution", sizes.activation, matmul, until)
        layer.back(f"gradient of {norm} output", sizes.residual, norm, until)
    if layer.lazy and layer.work.mask_documents:
        layer.back("inputs of the taps, masked", (TAPS - 1) * sizes.residual, "norm_2", "norm_1")


def residual_stream(layer: Layer) -> None:
    """x = x + dropout(attention); x = x + dropout(mlp)."""
    sizes, dropout = layer.sizes, layer.work.dropout
    # the modern norm does not keep the layer's input; a checkpoint and a compiled graph do
    eager_modern = layer.work.modern and not layer.compiled and layer.recompute == "none"
    layer.keeps_input(not eager_modern)
    layer.makes("layer output", sizes.residual, "add_2", "add_2")
    layer.makes(
        "attention c_proj output",
        sizes.activation,
        "projection",
        "dropout_1" if dropout else "add_1",
        costly=True,
    )
    # compiled, "cheap" keeps the next layer's input in its place; eager, it keeps it, but recomputation stops before this operation: it lives until the layer's backward pass ends
    never_recomputed = layer.recompute == "cheap" and not dropout and not layer.compiled
    end = "dropout_2" if dropout else "add_2"
    layer.makes(
        "mlp c_proj output",
        sizes.activation,
        "down",
        end,
        "norm_1" if never_recomputed else None,
        costly=not layer.compiled,
    )
    if dropout:
        residual_dropout(layer)
    # the stream's gradient as matmuls want it: cast, or masked
    recast = sizes.activation if sizes.mixed or dropout else 0
    layer.back("gradient of mlp c_proj output", recast, "add_2", "down")
    until = "attention" if layer.compiled else "projection"  # Inductor leaves c_proj's for later
    layer.back("gradient of attention c_proj output", recast, "add_1", until)


def residual_dropout(layer: Layer) -> None:
    """Masks of bytes; recomputed in a compiled pass, random numbers in fp32."""
    sizes = layer.sizes
    numbers = layer.work.n_embd * sizes.tokens
    if layer.lazy:
        layer.back("random numbers", FULL * numbers, "add_2", "dropout_1")
        layer.back("stream after attention, again", sizes.residual, "add_2", "norm_2")
        return
    mask = numbers if layer.recompute == "none" or not layer.compiled else FULL * numbers
    for dropout, end in (("dropout_1", "add_1"), ("dropout_2", "add_2")):
        layer.makes(f"{dropout} output", sizes.activation, dropout, end, eager_only=True)
        layer.makes(f"{dropout} mask", mask, dropout, end, dropout)


def attention_matrices(layer: Layer, saved: str | None) -> None:
    """c_attn and c_proj; in the modern block queries and keys are normed, then rotated. `saved`: who reads qkv again."""
    sizes, work = layer.sizes, layer.work
    layer.matrix("c_attn", work.n_embd, work.n_embd + 2 * work.kv_width, "qkv")
    fused_norm = "rotation" if work.modern and layer.compiled else None
    layer.makes("c_attn output", sizes.qkv, "qkv", "attention", saved or fused_norm, costly=True)
    both = 2 * sizes.activation
    if work.modern:
        layer.makes(
            "queries and keys normed", both, "rotation", "rotation", "rotation", eager_only=True
        )
        scales = 2 * FULL * work.n_head * sizes.tokens
        layer.makes("scales of queries and keys", scales, "rotation", "rotation", "rotation")
        layer.makes("queries and keys rotated", both, "rotation", "attention", saved)
    if work.turned_copies:
        layer.makes("queries and keys reordered", both, "rotation", "attention", "attention")
    if work.scaled_branches:
        layer.makes("branches before their scales", both, "projection", "add_2", "norm_1")
    if work.value_tables or work.scaled_branches:
        layer.makes("mixed with the embedding", sizes.residual, "norm_1", "norm_1", "norm_1")
    if work.value_tables:
        layer.makes(
            "values of the tables",
            sizes.value_embedding_bytes,
            "rotation",
            "attention",
            "attention",
        )
    layer.matrix("attention c_proj", work.n_embd, work.n_embd, "projection")
    layer.back("gradient of attention output", sizes.activation, "projection", "attention")
    layer.back("gradient of c_attn output", sizes.qkv, saved or "scores", "qkv")


def fused_attention(layer: Layer) -> None:
    """F.scaled_dot_product_attention: the output and a number a row are kept, no scores."""
    sizes, work = layer.sizes, layer.work
    attention_matrices(layer, "attention")
    layer.makes(
        "attention output", sizes.activation, "attention", "projection", "attention", costly=True
    )
    sums = FULL * work.n_head * sizes.tokens
    layer.makes("log-sum-exp", sums, "attention", "attention", "attention", costly=True)
    if work.mask_documents:
        mask = sizes.mask_bytes
        layer.makes("document mask", mask, "attention", "attention", "attention", eager_only=True)
        layer.back("document mask, again", mask if layer.lazy else 0, "attention", "attention")
    elif sizes.matmul == HALF:
        layer.back("FlashAttention workspace", sizes.flash_work, "attention", "attention")


def written_out_attention(layer: Layer) -> None:
    """_attention_by_hand: batched matmuls copy their operands, and every score is held."""
    sizes, work = layer.sizes, layer.work
    attention_matrices(layer, None)
    layer.makes("queries and keys copied", 2 * sizes.activation, "scores", "scores", "scores")
    values = None if work.modern and layer.compiled else "attention"  # qkv is kept there
    layer.makes("values copied", sizes.activation, "attention", "attention", values)
    mask = work.block_size * (sizes.tokens if work.mask_documents else work.block_size)
    layer.makes("causal mask", mask, "scores", "attention", "softmax")
    (fused_softmax if layer.compiled else eager_softmax)(layer)
    layer.makes("attention by heads", sizes.activation, "attention", "attention", eager_only=True)
    saved = "attention" if layer.compiled else "projection"
    layer.makes("attention output", sizes.activation, "attention", "projection", saved, costly=True)


def eager_softmax(layer: Layer) -> None:
    """Scores, scaled, masked, softmax (in fp32 under autocast), dropout, and the cast for the matmul with the values."""
    sizes = layer.sizes
    low = sizes.matmul * sizes.score_count
    full = (FULL if sizes.mixed else sizes.matmul) * sizes.score_count
    layer.makes("attention scores", low, "scores", "scores", costly=True)
    layer.makes("scores scaled", low, "scores", "attention")
    layer.makes("scores masked", low, "softmax", "softmax")
    layer.makes("attention weights", full, "softmax", "attention", "softmax")
    if layer.work.dropout:
        operand = None if sizes.mixed else "attention"
        layer.makes(
            "weights dropout mask", sizes.score_count, "dropout_0", "dropout_0", "dropout_0"
        )
        layer.makes("weights dropped", full, "dropout_0", "attention", operand)
    if sizes.mixed:
        layer.makes("scores in fp32", full, "softmax", "softmax")
        layer.makes("weights cast", low, "attention", "attention", "attention")
        layer.back("gradient of scores cast", low, "scores", "scores")
    layer.back("gradient of weights cast", low, "attention", "attention")
    layer.back("gradient of weights", full, "softmax", "softmax")
    layer.back("gradient of scores", full, "softmax", "softmax" if sizes.mixed else "scores")


def fused_softmax(layer: Layer) -> None:
    """The scores, which the backward pass makes the softmax of again, and the operand of the matmul with the values."""
    sizes, dropout = layer.sizes, layer.work.dropout
    low, full = sizes.matmul * sizes.score_count, FULL * sizes.score_count
    statistics = 2 * FULL * layer.work.n_head * sizes.tokens  # a row's maximum and its sum
    layer.makes("softmax statistics", statistics, "softmax", "softmax", "softmax")
    # written over the weights' gradient
    layer.back("gradient of scores", low, "attention", "scores")
    # the gradient of the values is computed first, which frees the weights; recomputed, they may stay
    read = "attention" if layer.recompute == "block" and not dropout else "projection"
    if layer.recompute == "block":
        softmax = full if sizes.mixed or dropout else 0
        layer.makes("softmax in fp32", softmax, "softmax", "attention", "softmax")
        layer.makes("weights random numbers", full if dropout else 0, "softmax", "attention", read)
        layer.makes("attention weights", low, "scores", "attention", read)
    elif layer.lazy:  # the weights are written over the scores
        layer.makes("attention scores", low, "scores", "softmax", "softmax", costly=True)
        layer.makes("attention weights", low, "softmax", "attention")
    elif sizes.mixed or dropout:
        layer.makes("attention scores", low, "scores", "softmax", "softmax", costly=True)
        layer.makes("attention weights", low, "softmax", "attention", read)
        mask = sizes.score_count if dropout else 0
        layer.makes("weights dropout mask", mask, "softmax", "attention", "softmax")
    else:
        layer.makes("attention weights", low, "scores", "attention", "softmax")


def mlp(layer: Layer) -> None:
    """c_fc, the activation function (gated: two matrices and a product), c_proj."""
    sizes, work = layer.sizes, layer.work
    gates = 2 if work.gated else 1
    layer.matrix("c_fc", work.n_embd, gates * work.ff_width, "up")
    layer.matrix("mlp c_proj", work.ff_width, work.n_embd, "down")
    squared = work.modern and not work.gated  # squared_relu keeps max(x, 0) in place of x
    made = "activation" if squared and not layer.compiled else "up"
    layer.makes("c_fc output", sizes.up, made, "activation", "activation", costly=True)
    layer.makes(
        "c_fc output before ReLU", sizes.up if squared else 0, "up", "activation", eager_only=True
    )
    if work.gated:
        layer.makes("gate output", sizes.up, "up", "activation", "activation", costly=True)
        layer.makes(
            "gate activated", sizes.up, "activation", "activation", "activation", eager_only=True
        )
    layer.operand("activation output", sizes.activated, "activation", "down")
    layer.makes(
        "other modules' steps", sizes.foreign_bytes, "norm_1", "down", "norm_1", eager_only=True
    )
    if layer.compiled:
        fused_mlp_gradients(layer, gates * sizes.up)
        # its largest number has to be known before it is rounded, to a byte for either product. GELU's is written out in
        # fp32 until then: 4 + 1 + 1 bytes where `up` has 2. squared_relu's is computed again, beside the input in a byte:
        # 1 + 1 + 1 (traced)
        rounded = (3 * sizes.up // 2 if squared else 3 * gates * sizes.up) if work.fp8 else 0
        layer.back("gradient of c_fc output, rounded", rounded, "activation", "up")
    else:
        layer.back("gradient of activation output", sizes.up, "down", "activation")
        layer.back("gradient of c_fc output", gates * sizes.up, "activation", "up")


def fused_mlp_gradients(layer: Layer, size: int) -> None:
    """The gradient before the activation function is written over the one after it.

    Inductor usually computes a matrix's weight gradient before that of its input, so that the saved input is freed. With
    biases it computes the input's gradient first, unless a dropout mask or a cast lies in between. Seen in traces, not
    documented.
    """
    work, sizes = layer.work, layer.sizes
    mask_or_cast = work.dropout if layer.recompute == "none" else sizes.mixed or layer.lazy
    input_first = work.bias and not mask_or_cast
    made = "down" if input_first else "down_cast"
    held_for_taps = layer.lazy and work.modern and work.mask_documents
    layer.back("gradient of activation output", size, made, "norm_1" if held_for_taps else "up")
