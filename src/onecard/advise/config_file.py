"""A recommended config as a file: TOML or nanoGPT's .py by its ending, with a comment at each choice.

write_config(Path("run.toml"), config_text(answer, "run.toml"), force=False)
"""

from pathlib import Path

from onecard.advise.can import Answer
from onecard.advise.fit import Fitted
from onecard.advise.recommend import Recommendation
from onecard.advise.search import MOST_EPOCHS
from onecard.advise.small_run import SmallRun
from onecard.config import RunConfig, to_nanogpt, to_toml
from onecard.config.length import for_tokens
from onecard.errors import UserError
from onecard.files import write_text
from onecard.planner import RunPlan, plan
from onecard.planner.memory.savers import savers_in
from onecard.units import show_bytes, show_count, show_duration

KEEPS_TIME = "the time given: the run ends by then, with its decay fitted in"


def config_text(answer: Recommendation | Fitted | SmallRun, name: str) -> str:
    """The file's content. The comments are English, as the keys are."""
    spell = to_nanogpt if name.lower().endswith(".py") else to_toml
    config, planned = answer.config, answer.plan
    if isinstance(answer, Fitted):
        return spell(config, _memory_comments(config, planned), _head(planned, "made to fit"))
    if isinstance(answer, SmallRun):
        comments = {"n_layer": str(answer.reasons[0]), "max_hours": KEEPS_TIME}
        return spell(config, comments, _head(planned, "chosen"))
    return spell(config, _comments(answer), _head(planned, "recommended"))


def can_text(answer: Answer, name: str) -> str:
    """The config with which the card can train the model, as long as the tokens asked for (else compute-optimal) take."""
    if answer.because == "memory":
        raise UserError(
            f"{answer.model} does not fit on the {answer.device.name}: there is no config to write",
            hint="`onecard can` without the option `out` shows what to do instead",
        )
    tokens = answer.compute.readings[0].reading.tokens
    config = for_tokens(answer.config, tokens)
    planned = plan(config, answer.device, gpus=answer.gpus)
    spell = to_nanogpt if name.lower().endswith(".py") else to_toml
    comments = {**_memory_comments(config, planned), "max_iters": f"{show_count(tokens)} tokens"}
    return spell(config, comments, _head(planned, "tuned"))


def _head(plan: RunPlan, how: str) -> str:
    lines = [
        f"onecard: {show_count(plan.params.total)} parameters, {how} for {plan.device.name}",
        f"about {show_duration(plan.time.total_seconds.mid)} for {show_count(plan.tokens.total)} tokens, "
        f"{show_bytes(plan.memory.process_bytes.mid)} of {show_bytes(plan.memory.card_bytes)}",
    ]
    if plan.loss:
        lines.append(
            f"expected loss {plan.loss.expected.mid:.2f} ({plan.loss.expected.low:.2f} to {plan.loss.expected.high:.2f}) on {plan.loss.dataset}"
        )
    return "\n".join(lines)


def _comments(answer: Recommendation) -> dict[str, str]:
    config, plan, sensitivity = answer.config, answer.plan, answer.sensitivity
    around = ", ".join(
        f"{name} the size: {size.loss - answer.expected_loss.mid:+.3f} nats"
        for name, size in (("half", sensitivity.half), ("double", sensitivity.double))
        if size is not None
    )
    flat = f"from {show_count(sensitivity.flat_params[0])} to {show_count(sensitivity.flat_params[1])} parameters the loss is the same to 0.01"
    comments = {
        "dataset": f"at least {show_count(plan.tokens.total / MOST_EPOCHS)} tokens of it, better {show_count(plan.tokens.total)}",
        "n_layer": f"{show_count(plan.params.total)} parameters; {around or 'the largest that fits'}",
        "n_head": f"heads of {config.n_embd // config.n_head}, which suit the attention kernels",
        "n_embd": flat,
        "block_size": "as the public runs that the expected loss comes from",
        "max_iters": f"{show_count(plan.tokens.total)} tokens, {plan.tokens.per_param:.0f} a parameter; limited by {answer.limited_by}",
        "learning_rate": "Muon's own, whatever the size (Jordan et al. 2024)"
        if config.optimizer == "muon"
        else "6e-4 at 124M, falling with the square root of the size (GPT-3, table 2.1)",
        "min_lr": "a tenth of the peak" if config.min_lr else "decays to nothing",
        "warmup_iters": f"{config.warmup_iters / config.max_iters:.0%} of the steps",
        "lr_decay_iters": "the schedule ends with the run",
        "eval_interval": f"every {show_duration(config.eval_interval * plan.time.step_seconds.mid)}, with a checkpoint",
        "eval_iters": f"{show_count(config.eval_iters * config.tokens_per_micro_batch)} held-out tokens",
        "max_hours": KEEPS_TIME,
        "vocab_size": "GPT-2's 50257 padded to a multiple of 64, for the tensor cores",
    }
    return {**comments, **_memory_comments(config, plan)}


_OPTIMIZERS = {
    "adamw": "GPT-2's recipe",
    "adamw8bit": "AdamW with moments in a byte each",
    "muon": "for the matrices, AdamW for the rest",
}
# of savers whose key is written even where they are not used
_NO_NEED = {
    "chunked_loss": "the logits fit: no need",
    "recompute": "the activations fit: no need",
    "optimizer_state": "full precision fits: no need for fewer bits",
}


def _memory_comments(config: RunConfig, plan: RunPlan) -> dict[str, str]:
    host = show_bytes(plan.memory.host_bytes)
    return {
        "batch_size": f"the fastest that fits: {show_bytes(plan.memory.process_bytes.mid)} of {show_bytes(plan.memory.card_bytes)}",
        "gradient_accumulation_steps": f"{config.sequences_per_step} sequences, {plan.tokens.per_step:,} tokens a step",
        "compile": "faster and smaller"
        if config.compile
        else "torch.compile does not support this card",
        "optimizer": _OPTIMIZERS[config.optimizer],
        **_NO_NEED,
        **{saver.key: saver.comment.format(host=host) for saver in savers_in(vars(config))},
    }


def check_target(path: Path, force: bool) -> None:
    """A name that can be written to: .toml or .py, not there yet unless `force`."""
    if path.suffix.lower() not in (".py", ".toml"):
        raise UserError(
            f"{path.name} is neither .toml nor .py", hint="for example the option `out=run.toml`"
        )
    check_free(path, force)


def check_free(path: Path, force: bool) -> None:
    """A file that may be written: not there yet unless `force`, in a folder that is."""
    if path.is_dir() or (path.exists() and not force):
        raise UserError(
            f"{path} exists already",
            hint="choose another name, or add the option `force` to replace it",
        )
    if not path.parent.is_dir():
        raise UserError(
            f"there is no folder {path.parent}", hint="make it first, or choose another name"
        )


def write_config(path: Path, text: str, force: bool) -> None:
    """Written aside and moved into place; an existing file only with `force`."""
    check_target(path, force)
    write_file(path, text)


def write_file(path: Path, text: str) -> None:
    """Written aside and moved into place; a sentence where the system refuses."""
    try:
        write_text(path, text)
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror or error}",
            hint="check the folder and its permissions",
        ) from None
