"""`onecard recommend`: what should I run on my card?"""

import argparse
from pathlib import Path

from onecard.advise.budget import Budget
from onecard.advise.config_file import check_target, config_text, write_config
from onecard.cli.options import Once, add_out, add_price, add_report, add_set, number, show_report
from onecard.config import choices, load, parse_overrides
from onecard.errors import UserError
from onecard.units import DAY, HOUR, parse_count

HELP = (
    "What should I run? The model, micro-batch, learning rate and memory savers that give the best model in the time; "
    "without --gpu, a table for cards from 8 to 80 GB."
)
EXAMPLE = """onecard recommend --gpu "RTX 4070" --hours 20 --out run.toml
  onecard recommend --fit gpt2 --gpu "RTX 3060 12GB"
  onecard recommend --review fineweb-81M-24gb --gpu 4090"""
CHOSEN_KEYS = (
    "n_layer",
    "n_head",
    "n_embd",
    "batch_size",
    "gradient_accumulation_steps",
    "max_iters",
    "learning_rate",
    "min_lr",
    "warmup_iters",
    "lr_decay_iters",
    "chunked_loss",
    "recompute",
    "eval_interval",
    "eval_iters",
    "dataset",
    "recipe",
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--gpu",
        action=Once,
        metavar="NAME",
        help='a card ("RTX 4070", 4090, a .toml file), cpu, or here',
    )
    add_budget(parser)
    _add_modes(parser)
    parser.add_argument(
        "--data",
        metavar="NAME|TOKENS",
        help="a data set, a prepared folder, or tokens such as 3.7B",
    )
    add_choices(parser)
    add_out(parser)
    add_report(parser)


def add_budget(parser: argparse.ArgumentParser) -> None:
    """What a run may take: time, tokens, or as much as a loss needs."""
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument(
        "--hours", type=number, metavar="H", help="the hours available (default 24)"
    )
    budget.add_argument("--days", type=number, metavar="D", help="the same in days")
    budget.add_argument(
        "--tokens",
        metavar="N",
        help="the best model for this many tokens, such as 10B, however long it takes",
    )
    budget.add_argument(
        "--until-loss",
        type=number,
        metavar="L",
        help="the quickest run that should reach this loss",
    )


def add_choices(parser: argparse.ArgumentParser) -> None:
    """What is given, not chosen."""
    parser.add_argument(
        "--recipe",
        choices=choices("recipe"),
        help="the kind of model (default: the one expected to be better here)",
    )
    add_price(parser)
    add_set(parser, "set a config key that is not chosen here, such as block_size=512")


def _add_modes(parser: argparse.ArgumentParser) -> None:
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        "--fit",
        metavar="CONFIG",
        help="keep this model and total batch; find the fastest way that fits",
    )
    mode.add_argument(
        "--review",
        metavar="CONFIG",
        help="what a config really is, and what is better for its hours",
    )
    mode.add_argument(
        "--rent",
        action="store_true",
        help="also the same run on rented cards, with hours and money",
    )


def run(args: argparse.Namespace) -> int:
    if args.out:
        check_target(Path(args.out), args.force)  # before the work is done
    if args.fit:
        return _fit(args)
    if args.review:
        return _review(args)
    if args.gpu is None and not args.out and not args.rent:
        return _table(args)
    return _recommend(args)


def budget_of(args: argparse.Namespace) -> Budget:
    if args.tokens is not None:
        return Budget(tokens=float(parse_count(args.tokens)))
    if args.until_loss is not None:
        return Budget(loss=args.until_loss)
    if args.days is not None:
        return Budget(seconds=args.days * DAY)
    return Budget(seconds=(24 if args.hours is None else args.hours) * HOUR)


def changes_of(args: argparse.Namespace) -> dict[str, object]:
    changes = parse_overrides(args.overrides)
    for key in changes:
        if key in CHOSEN_KEYS:
            raise UserError(
                f"{key} is for recommend to choose", hint="--fit CONFIG keeps a model of your own"
            )
    return changes


def _recommend(args: argparse.Namespace) -> int:
    from onecard.advise.no_run import NotCovered
    from onecard.advise.recommend import recommend
    from onecard.report.recommend_view import recommend_document

    budget = budget_of(args)
    try:
        answer = recommend(
            args.gpu,
            budget,
            data=args.data,
            recipe=args.recipe,
            changes=changes_of(args),
            price=args.price,
            rent=args.rent,
        )
    except NotCovered:
        if budget.seconds is None:
            raise
        return _small_run(args, budget.seconds)
    _save(args, answer)
    show_report(
        args,
        answer.to_json,
        lambda: recommend_document(answer, written=args.out, explain=args.explain),
    )
    return 0


def _small_run(args: argparse.Namespace, seconds: float) -> int:
    """Little time, a CPU, or text of one's own: a size that suits, without a loss to expect."""
    from onecard.advise.small_run import small_run
    from onecard.report.recommend_view import small_run_document

    answer = small_run(
        args.gpu,
        seconds,
        data=args.data,
        recipe=args.recipe,
        changes=changes_of(args),
        price=args.price,
    )
    _save(args, answer)
    show_report(args, answer.to_json, lambda: small_run_document(answer, written=args.out))
    return 0


def _fit(args: argparse.Namespace) -> int:
    from onecard.advise.fit import fit
    from onecard.report.fit_view import fit_document

    answer = fit(load(args.fit, args.overrides), args.gpu, data=args.data, price=args.price)
    _save(args, answer)
    show_report(args, answer.to_json, lambda: fit_document(answer, written=args.out))
    return 0


def _review(args: argparse.Namespace) -> int:
    from onecard.advise.review import review
    from onecard.report.review_view import review_document

    answer = review(
        args.review, args.gpu, data=args.data, overrides=args.overrides, price=args.price
    )
    if answer.better is not None:
        _save(args, answer.better)
    show_report(
        args,
        answer.to_json,
        lambda: review_document(answer, written=args.out if answer.better else None),
    )
    return 0


def _table(args: argparse.Namespace) -> int:
    from onecard.advise.memory_table import memory_table
    from onecard.report.memory_table_view import memory_table_document

    answer = memory_table(
        budget_of(args), data=args.data, recipe=args.recipe, changes=changes_of(args)
    )
    show_report(args, answer.to_json, lambda: memory_table_document(answer))
    return 0


def _save(args: argparse.Namespace, answer) -> None:  # type: ignore[no-untyped-def]
    if args.out:
        write_config(Path(args.out), config_text(answer, args.out), args.force)
