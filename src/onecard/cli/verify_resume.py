"""`onecard verify-resume`: proof, on this machine and this config, that a stop loses nothing."""

import argparse
import dataclasses
import json

from onecard.cli.options import add_config
from onecard.errors import UserError

HELP = "Train a few steps twice, once with a stop in the middle, and compare every loss and weight."
EXAMPLE = """onecard data stdlib --tokenizer bytes --out data/stdlib-bytes      # no download
  onecard verify-resume train_shakespeare_char --dataset=stdlib-bytes --vocab_size=257 --device=cpu --compile=False --n_layer=4 --n_head=4 --n_embd=128 --block_size=64 --batch_size=12"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument(
        "--steps", type=int, default=6, metavar="N", help="steps of each run (default 6)"
    )
    parser.add_argument("--json", action="store_true", help="the comparison as JSON")


def run(args: argparse.Namespace) -> int:
    from onecard.config import load

    if args.steps < 2:
        raise UserError(
            f"--steps must be at least 2, not {args.steps}",
            hint="one before the stop and one after",
        )
    config = load(args.config, args.overrides)
    from onecard.train.io.view import View
    from onecard.train.verify import verify_resume

    with View(config, None, args.steps, quiet=args.json) as view:
        proof = verify_resume(config, args.steps, view)
    if args.json:
        print(json.dumps(dataclasses.asdict(proof)))
    elif proof.exact:
        print(
            f"exact: {proof.steps} losses and all weights are the same to the last bit after a stop at step "
            f"{proof.stopped_at}"
        )
    else:
        print(
            f"not bit for bit: losses differ by up to {proof.largest_loss_difference:.2g}, weights by up to "
            f"{proof.largest_weight_difference:.2g}"
        )
        print(
            "  torch has no deterministic form of one of this config's kernels; an ordinary resume has the same data and "
            "state, and losses that agree to rounding"
        )
    return 0 if proof.exact else 1
