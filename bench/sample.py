"""Sampling beside nanoGPT: same weights in GPT-2 small's shape, greedy, block 1024, CPU, alternating; are the tokens the same?

python bench/sample.py --nanogpt DIR [--tokens 1000] [--rounds 1]

nanoGPT's generate draws at random; greedy decoding is its own loop with the likeliest token (top_k = 1).  goal: 10 ×
"""

import argparse
import json
import statistics
import sys
import time
from typing import Any

import torch

from side_by_side import machine, store

SHAPE: dict[str, Any] = {
    "n_layer": 12,
    "n_head": 12,
    "n_embd": 768,
    "block_size": 1024,
    "vocab_size": 50257,
    "bias": True,
}


def same_models() -> tuple[Any, Any]:
    """Ours and nanoGPT's with the same weights."""
    import model as nanogpt

    from onecard.config import RunConfig
    from onecard.model.gpt2 import GPT

    torch.manual_seed(1337)
    ours = GPT(RunConfig(**SHAPE)).eval()
    # far from the initial state, or every token would be as likely as the next
    with torch.no_grad():
        for parameter in ours.parameters():
            if parameter.dim() == 2:
                parameter.mul_(3)
    theirs = nanogpt.GPT(nanogpt.GPTConfig(**SHAPE, dropout=0.0)).eval()
    theirs.load_state_dict(ours.state_dict(), strict=False)
    # GPT-2's own GELU in both; the erf form differs by up to 5e-4
    for block in theirs.transformer.h:
        block.mlp.gelu = torch.nn.GELU(approximate="tanh")
    return ours, theirs


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nanogpt", required=True, help="a checkout of nanoGPT")
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument(
        "--rounds", type=int, default=1, help="of each, alternating; the medians count"
    )
    args = parser.parse_args()

    sys.path.insert(0, args.nanogpt)
    from onecard.model.generate import Sampling, generate

    ours, theirs = same_models()
    prompt = torch.tensor([[464]])
    seconds: dict[str, list[float]] = {"nanogpt": [], "onecard": []}
    same = True
    for _ in range(args.rounds):
        began = time.perf_counter()
        mine = [
            464,
            *(
                row[0]
                for row in generate(ours, prompt.tolist(), args.tokens, Sampling(temperature=0))
            ),
        ]
        seconds["onecard"].append(time.perf_counter() - began)
        began = time.perf_counter()
        with torch.no_grad():
            other = theirs.generate(prompt, args.tokens, temperature=1.0, top_k=1)[0].tolist()
        seconds["nanogpt"].append(time.perf_counter() - began)
        same = same and mine == other
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    result = {
        "shape": SHAPE,
        "new_tokens": args.tokens,
        "tokens_per_second": {name: args.tokens / value for name, value in medians.items()},
        "speed": medians["nanogpt"] / medians["onecard"],
        "same_tokens": same,
        "goal": {"speed": 10},
    }
    print(json.dumps(result, indent=1))
    print(json.dumps(machine()))
    if args.tokens == 1000:
        print(f"stored in {store('sample', result)}")


if __name__ == "__main__":
    main()
