"""What a card holds of a model that several cards share (`shard`, train/run/sharding.py), and what FSDP2 gathers and sums in a pass.

Found by tracing one process of several (tests/torch/shard_oracle.py): a layer's weights are gathered into a flat buffer
and copied out of it, the next layer's on the way meanwhile; its gradients wait for its end, are copied into an fp32 buffer
and added up, and that buffer is kept until the next layer's is made.
"""

from onecard.planner.memory.sizes import FULL, Sizes
from onecard.planner.memory.timeline import OutsideLayers


def sharded_weights(sizes: Sizes, outside: OutsideLayers) -> None:
    work, cards = sizes.work, sizes.work.shard_cards
    vectors = FULL * (sizes.parameters - sizes.large_parameters)
    own = FULL * sizes.large_parameters // cards + vectors
    outside.lives("weights", "weights", own, "embedding", "optimizer")
    born = "embedding" if work.accumulation > 1 else "layers_back"
    outside.lives("gradients", "gradients", own, born, "optimizer")
    layer, layers = sizes.matrix_parameters, sizes.matrix_parameters * work.n_layer
    tables = sizes.large_parameters - layers
    gathered, first, last = sizes.matmul * tables, "embedding", "embedding_back"
    if work.shard == "grads":
        gathered += sizes.matmul * layers
    else:  # a layer's weights, and a buffer that the next are gathered in
        pair = 2 * sizes.matmul * layer
        outside.lives("gathered layer", "cast_weights", pair, "layers", "layers")
        outside.lives("gathered layer", "cast_weights", pair, "layers_back", "layers_back")
        # the last one's buffer is freed when the backward pass gathers that layer again
        buffer = sizes.matmul * layer
        outside.lives("buffer of the last layer", "cast_weights", buffer, "norm", "norm_back")
    outside.lives("gathered weights", "cast_weights", gathered, first, last)
    outside.lives("gradients to add up", "gradients", FULL * layer, "layers_back", "layers_back")
    summed = FULL * tables + FULL * tables // cards
    outside.lives("table gradients to add up", "gradients", summed, last, last)


def moved_matrices(sizes: Sizes, outside: OutsideLayers) -> None:
    """train/optim/sharded_rows.py: one matrix at a time is whole here, beside what is handed over and comes back, and its
    Newton-Schulz products: the largest, the MLP's."""
    matrix = FULL * 4 * sizes.work.n_embd * sizes.work.n_embd
    products = 3 if sizes.work.full_precision_updates else 2
    outside.lives("whole matrices", "optimizer", (4 + products) * matrix, "optimizer", "optimizer")
