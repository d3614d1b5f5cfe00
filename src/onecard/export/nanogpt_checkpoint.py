"""A ckpt.pt that nanoGPT's sample.py and train.py --init_from=resume load.

    write_checkpoint(path, trained)

nanoGPT's GELU is the exact one and ours the tanh form, so logits differ by up to about 5e-4. AdamW's moments come
along when the run has them; nanoGPT groups parameters by their dimensions, the matrices first. Rows of the vocabulary that
stand for no token are cut with their moments: sample.py would draw them, and its tokeniser ends with an error there.
"""

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from onecard.errors import UserError
from onecard.export.trained import Trained
from onecard.model.checkpoint import (
    OPTIMIZER,
    CorruptError,
    checkpoints,
    read_state,
    read_tensors,
    step_of,
)
from onecard.model.weights import VOCABULARY_ROWS
from onecard.train.optim.low_bit import LowBit

_MODEL_KEYS = ("n_layer", "n_head", "n_embd", "block_size", "bias", "dropout")


def check(trained: Trained) -> None:
    config = trained.config
    if config.shape.modern:
        raise UserError(
            f"nanoGPT has no model for recipe = {config.recipe!r}",
            hint="export it with the option `to=hf`",
        )
    if not config.tied:
        raise UserError(
            "nanoGPT's head always shares the embedding's weights, and this model's does not",
            hint="export it with the option `to=hf`",
        )


def write_checkpoint(path: Path, trained: Trained) -> bool:
    """Write the file; whether the optimizer's moments came along."""
    check(trained)
    config = trained.config
    weights = {
        name: _cut(name, tensor.detach(), trained)
        for name, tensor in trained.model.named_parameters()
    }
    weights["lm_head.weight"] = weights["transformer.wte.weight"]
    model_args = {key: getattr(config, key) for key in _MODEL_KEYS}
    state, moments = _optimizer(trained)
    content = {
        "model": weights,
        "optimizer": moments,
        "model_args": {**model_args, "vocab_size": trained.vocab_size},
        "iter_num": trained.step,
        "best_val_loss": torch.tensor(state.get("best_val_loss") or 1e9),
        "config": dataclasses.asdict(config),
    }
    torch.save(content, path)
    return bool(moments["state"])


def _optimizer(trained: Trained) -> tuple[dict[str, Any], dict[str, Any]]:
    """The checkpoint's state, and torch's AdamW state dict as nanoGPT's configure_optimizers would order it."""
    folder = trained.checkpoint or _newest(trained)
    state: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    if folder is not None:
        try:
            state = read_state(folder)
            tensors = read_tensors(folder, OPTIMIZER, state)
        except CorruptError:
            pass  # fresh moments, which the caller reports
    named = list(trained.model.named_parameters())
    matrices = [name for name, p in named if p.dim() >= 2]
    vectors = [name for name, p in named if p.dim() < 2]
    order = [*matrices, *vectors]
    wanted = ("exp_avg", "exp_avg_sq", "step")
    moments = {}
    if trained.config.optimizer == "adamw" and all(
        f"{name}/{part}" in tensors for name in order for part in wanted
    ):
        moments = {
            index: {
                part: _cut(name, _moment(name, part, tensors, trained), trained) for part in wanted
            }
            for index, name in enumerate(order)
        }
    defaults = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=1e-3).state_dict()
    shared = {k: v for k, v in defaults["param_groups"][0].items() if k != "params"}
    config = trained.config
    shared |= {"lr": config.learning_rate, "betas": (config.beta1, config.beta2)}
    first, count = len(matrices), len(order)
    groups = [
        {**shared, "weight_decay": config.weight_decay, "params": list(range(first))},
        {**shared, "weight_decay": 0.0, "params": list(range(first, count))},
    ]
    return state, {"state": moments, "param_groups": groups}


def _moment(name: str, part: str, tensors: dict[str, Tensor], trained: Trained) -> Tensor:
    """As torch's AdamW keeps it, in fp32: also where the run keeps it in fewer bits, or counts steps in whole numbers."""
    kept = tensors[f"{name}/{part}"]
    if f"{name}/{part}_scale" not in tensors:
        return kept.float()
    parameter = trained.model.get_parameter(name)
    scales, count = tensors[f"{name}/{part}_scale"], parameter.numel()
    low = LowBit(kept, scales, count, trained.config.state_bits, signed=part == "exp_avg")
    return low.read(0, count).view(parameter.shape)


def _cut(name: str, tensor: Tensor, trained: Trained) -> Tensor:
    """Without the rows that stand for no token; a copy then, for torch.save writes all that a view looks at."""
    if name not in VOCABULARY_ROWS or tensor.dim() < 2 or len(tensor) == trained.vocab_size:
        return tensor
    return tensor[: trained.vocab_size].clone()


def _newest(trained: Trained) -> Path | None:
    folders = [f for f in checkpoints(trained.run_folder) if step_of(f) == trained.step]
    return folders[-1] if folders else None
