"""How tokens are drawn: the options that `sample` and `chat` share."""

import argparse
from typing import TYPE_CHECKING

from onecard.errors import UserError

if TYPE_CHECKING:
    from onecard.model.generate import Sampling


def add_sampling(parser: argparse.ArgumentParser, temperature: float = 0.8) -> None:
    """--temperature, --top-k, --top-p, --min-p, --repetition-penalty, --seed and --device."""
    parser.add_argument(
        "--temperature",
        type=float,
        default=temperature,
        help=f"0 takes the likeliest (default {temperature})",
    )
    parser.add_argument("--top-k", type=int, metavar="K", help="draw among the K likeliest only")
    parser.add_argument(
        "--top-p", type=float, metavar="P", help="draw among the likeliest that make up P only"
    )
    parser.add_argument(
        "--min-p",
        type=float,
        metavar="P",
        help="draw among those at least P times as likely as the likeliest",
    )
    parser.add_argument(
        "--repetition-penalty",
        type=float,
        default=1.0,
        metavar="X",
        help="above 1: tokens that were there already become less likely (default 1)",
    )
    parser.add_argument(
        "--seed", type=int, default=1337, help="same seed, same text (default 1337)"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps")


def sampling_of(args: argparse.Namespace) -> "Sampling":
    """What was typed, checked; a value that cannot be meant is named as it was typed."""
    from onecard.model.generate import Sampling

    sampling = Sampling(
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
        repetition_penalty=args.repetition_penalty,
        seed=args.seed,
    )
    try:
        return sampling.checked()
    except UserError as error:
        name = error.message.split(" ", 1)[0]
        option = f"--{name.replace('_', '-')}"
        raise UserError(
            error.message.replace(name, option, 1),
            hint=(error.hint or "").replace("for example", f"for example {option}"),
        ) from None
