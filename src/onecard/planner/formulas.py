"""Each figure's formula and source, for `--explain`. Keys are the paths of the JSON answer."""

from onecard.planner.result import Loss

FORMULAS: dict[str, str] = {
    "tokens.per_step": "batch_size × block_size × gradient_accumulation_steps (the total over all cards, as in nanoGPT)",
    "tokens.total": "tokens per step × max_iters",
    "tokens.epochs": "total tokens ÷ tokens of the data set",
    "tokens.per_param": "total tokens ÷ all parameters",
    "tokens.compute_optimal": "α·A/N^α = β·B/D^β with A = 482.01, α = 0.3478, B = 2085.43, β = 0.3658 "
    "(Besiroglu et al. 2024, refit of Hoffmann et al. 2022)",
    "params.total": "V·C + T·C + L·(12·C² + norms and biases) + final norm; the tied head counts once",
    "params.nanogpt": "total − position embeddings: what nanoGPT's get_num_params prints",
    "params.non_embedding": "total − token embeddings − position embeddings (a tied head is the token embedding)",
    "flops.per_token_nanogpt": "6·N + 12·n_layer·n_embd·block_size, N as nanoGPT prints it (PaLM, appendix B)",
    "flops.per_token_6n": "6·N, N as nanoGPT prints it (Kaplan et al. 2020)",
    "flops.per_token_exact": "6 × parameters in matmuls + 3 × causal attention (2·L·C·T forward), as computed",
    "flops.total_nanogpt": "FLOPs per token (nanoGPT) × total tokens",
    "flops.total_6nd": "6·N·D",
    "flops.total_exact": "FLOPs per token (exact) × total tokens",
    "time.step_seconds": "matmul FLOPs ÷ (reached share × peak) + bytes ÷ (reached share × bandwidth) + optimizer + launches; "
    "shares fitted to public runs by fit/speed.py (docs/accuracy.md)",
    "time.tokens_per_second": "tokens per step ÷ seconds per step",
    "time.total_seconds": "compile + steps × seconds per step + evaluations (a third of a step's work per micro-batch)",
    "time.compile_seconds": "2.75 s a layer and half as much again for the evaluation, half to double; a first step of about 32 s was logged for 12 layers on an RTX 4070",
    "mfu.card": "FLOPs per token (nanoGPT) × tokens/s ÷ the card's dense peak in this dtype with fp32 accumulation",
    "mfu.nanogpt": "the same ÷ 312 TFLOPS, an A100's peak, which nanoGPT uses for every card",
    "memory.allocated_bytes": "16·N + bf16 copies + saved activations + logits and loss at the step's peak; "
    "agrees with a trace of the trainer (docs/maths.md)",
    "memory.process_bytes": "allocated + CUDA context and workspaces + what the allocator holds on top (fitted to public runs)",
    "memory.parts": "each at the moment of the step's peak, counted tensor by tensor; they sum to what the process takes",
    "memory.card_bytes": "what the driver reports where it was asked; else what torch reports of such a card, 1–3% less than sold",
    "memory.fits": "fits: even the high estimate leaves the others' memory free; does not fit: not even the low one does",
    "energy.kwh": "power limit or TDP of the card × time; the rest of the machine is not included",
    "energy.cost": "kWh × price",
    "loss.expected": "E + A·N^-α + B·(m·D)^-β + U·ln²(20·N/D) where D < 20·N, fitted to public FineWeb runs by fit/loss.py (docs/accuracy.md)",
    "loss.repetition": "loss at U + U·R·(1 − exp(−repeats/R)) tokens, less the loss had all been fresh; U the data set, R ≈ 15 "
    "(Muennighoff et al. 2023)",
    "loss.perplexity": "exp(loss)",
    "loss.hellaswag": "a line in the loss through 13 public FineWeb-Edu runs of 6 projects (fit/hellaswag.py); the range adds the largest error of a project left out, 1.1 points",
}


def formulas_of(loss: Loss | None) -> dict[str, str]:
    """The formulas of the figures that a plan has: one without a loss, or without HellaSwag, has none for them."""
    return {
        path: formula
        for path, formula in FORMULAS.items()
        if not path.startswith("loss.")
        or getattr(loss, path.removeprefix("loss."), None) is not None
    }
