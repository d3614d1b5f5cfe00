"""How each choice is made, for `--explain`. Keys are the paths of the JSON answers; docs/advice.md says more."""

RECOMMEND: dict[str, str] = {
    "config": "the lowest expected loss of every shape, micro-batch and saver that fits (fits = yes) and ends in the time",
    "config.n_layer, .n_embd": "64-wide heads; width ÷ depth of 64, 53 or 43, as in GPT-2's family (64 to 33)",
    "config.gradient_accumulation_steps": "480 sequences of 1024 in all from 100M to 900M parameters in matmuls, 960 "
    "from 1.2B, 240 below 60M (GPT-3, table 2.1; Cerebras-GPT); halved while there would be fewer than 1,000 steps, and with AdamW "
    "while the expected loss falls by it (a public sweep of 1,900 runs)",
    "config.learning_rate": "6e-4 · √(124M ÷ parameters) (GPT-3, table 2.1); 0.02 with Muon (Jordan et al. 2024)",
    "config.max_iters": "(time − compiling − evaluations) ÷ (seconds a step × (1 + charges)); at most 4 epochs (Muennighoff et al. 2023) "
    "and the tokens per parameter of public runs",
    "savers": "taken when they bring more than 0.5% (chunked loss), 1% (recompute), 2% (8-bit moments) of the step",
    "limited_by": "memory: four times of it would lower the loss by more than 0.01, and by half of what twice the time or endless "
    "data would; data: it would lower the loss by more than twice the time; else compute",
    "sensitivity.flat_params": "the sizes whose best run in this budget is within 0.01 nats of the choice",
    "sensitivity.chinchilla": "the size whose tokens in this budget are nearest to compute-optimal (Besiroglu et al. 2024)",
}
CAN: dict[str, str] = {
    "compute.needed_flops": "6·N·D: N all parameters, D the tokens asked for, else compute-optimal (Besiroglu et al. 2024)",
    "compute.delivered_flops": "peak × utilization × time × cards; without utilization, 6·N × the tokens a second that `plan` predicts × time",
    "memory.plain_bytes": "allocated by torch at micro-batch 1, no saver",
    "memory.host_bytes": "moments, and fp32 weights where the card's are bf16; copied once each way a step over PCIe, one way after the other, at "
    "12, 25 or 50 GB/s for generations 3, 4 and 5 with 16 lanes",
    "verdict": "yes: fits plain, in the time; with_savers: fits with savers, in the time; else no",
}
