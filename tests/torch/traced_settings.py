"""Settings for traces of memory_oracle.py: a small one to change, and any number drawn by a seed."""

import random

from onecard.config import RunConfig

SMALL = RunConfig(
    n_layer=2,
    n_head=4,
    n_embd=256,
    block_size=256,
    batch_size=8,
    vocab_size=8192,
    compile=False,
    gradient_accumulation_steps=2,
)
DTYPES = ("bfloat16", "float16", "float32")


def setting(dice: random.Random, compile: bool) -> tuple[RunConfig, str]:
    """A run someone could want, at sizes where a layer is not noise."""
    heads = dice.choice([2, 3, 4, 6, 8, 12])
    attention = dice.choice(["flash", "flash", "math"])
    config = RunConfig(
        n_layer=dice.choice([2, 3] if compile else [1, 2, 3, 5, 8]),
        n_head=heads,
        n_embd=heads * dice.choice([32, 64, 64, 128]),
        block_size=dice.choice([256, 512, 1024, 2048]),
        batch_size=dice.choice([4, 6, 8, 16]),
        vocab_size=dice.choice([65, 256, 1000, 8192, 32768, 50304, 50304]),
        compile=compile,
        attention=attention,
        mask_documents=attention == "flash" and dice.random() < 0.15,
        chunked_loss=dice.random() < 0.3,
        recompute=dice.choice(["none", "none", "cheap", "block"]),
        tied=dice.random() < 0.7,
        bias=dice.random() < 0.4,
        dropout=dice.choice([0.0, 0.0, 0.1]),
        gradient_accumulation_steps=dice.choice([1, 2, 2]),
    )
    return config, dice.choice(DTYPES)


def seeded(seed: int, compile: bool) -> tuple[RunConfig, str]:
    """The setting of a seed; every other one may be of the modern recipe or trained with Muon."""
    config, dtype = setting(random.Random(seed + (1000 if compile else 0)), compile)
    dice = random.Random(7000 + seed)
    if seed % 2 and dice.random() < 0.4:
        config = config.replace(recipe="modern", bias=False)
    if seed % 2 and dice.random() < 0.3:
        config = config.replace(optimizer="muon")
    return config, dtype
