"""Weights to start from: a released GPT-2 (local folder or the hub), a onecard run, or a nanoGPT ckpt.pt.

>>> load_weights(model, "gpt2-medium")          # doctest: +SKIP
>>> load_weights(model, "out/checkpoints/step_00000500")   # doctest: +SKIP

Nothing is unpickled: safetensors, and torch's weights-only reader for nanoGPT's file. A run's weights are those of its
newest good checkpoint, checked as a resume checks them. A longer context than the
config's block_size is cropped; any other difference in shape is a mistake that is named.
"""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from onecard.config.presets import RELEASED
from onecard.errors import OnecardError, UserError, first_line
from onecard.model import checkpoint
from onecard.model.mapped import report_if_cut_short
from onecard.model.tensor_file import in_memory

# transformers keeps these as Conv1D, which is a linear layer with its matrix the other way round
VOCABULARY_ROWS = ("transformer.wte.weight", "lm_head.weight")
TRANSPOSED = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")


def load_weights(
    model: nn.Module,
    source: str,
    report: Callable[[str], None] = lambda text: None,
    new_ids_from: int | None = None,
) -> None:
    """Fill the model from `source`, the config's init_from; checkpoints passed over as damaged are reported.

    Ids from new_ids_from up are new to it: their rows begin as the mean of the trained ones, and the tables grow.
    """
    tensors = read_weights(source, report)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, parameter in parameters.items():
            tensor = tensors.get(name)
            if tensor is None and name.endswith(".bias"):
                raise UserError(f"{source} was trained without biases", hint="set bias = False")
            if tensor is None:
                raise UserError(f"{source} has no {name}", hint="its n_layer must be the config's")
            if name == "transformer.wpe.weight":
                tensor = tensor[: parameter.shape[0]]  # cropped context
            if name in VOCABULARY_ROWS and new_ids_from is not None:
                tensor = _with_new_rows(tensor, new_ids_from, parameter.shape[0])
            if tensor.shape != parameter.shape:
                raise UserError(
                    f"{name} is {list(tensor.shape)} in {source} but {list(parameter.shape)} in the config",
                    hint="set n_layer, n_head, n_embd, vocab_size and a block_size it can be cropped to",
                )
            parameter.copy_(tensor)
    unused = [name for name in tensors if name not in parameters and name != "lm_head.weight"]
    if unused:
        raise UserError(
            f"{source} holds weights the config has no place for ({unused[0]})",
            hint="set n_layer and bias as it was trained",
        )


def _with_new_rows(tensor: Tensor, trained: int, rows: int) -> Tensor:
    """A table of the vocabulary with `rows` rows, those from `trained` on the mean of the others.

    The mean row is an average token: neither likely nor unlikely, and of the length that the layers above expect. Padding
    rows of a trained model are no such thing: they were only ever pushed down.
    """
    known = tensor[:trained].float()
    return torch.cat((known, known.mean(dim=0).expand(rows - len(known), -1))).to(tensor.dtype)


def read_weights(
    source: str, report: Callable[[str], None] = lambda text: None
) -> dict[str, Tensor]:
    """Tensors by nanoGPT's names, matrices as nn.Linear keeps them."""
    path = Path(source)
    if path.suffix == ".pt" or (path / "ckpt.pt").is_file():
        return _nanogpt(path if path.suffix == ".pt" else path / "ckpt.pt")
    if path.is_dir():
        saved = checkpoint.read_named(path, report)
        if saved is not None:
            return saved.model
        if not (path / checkpoint.MODEL).is_file():
            raise UserError(
                f"{source} holds no {checkpoint.MODEL}",
                hint="name a run, a checkpoint, or a folder from the hub",
            )
        return _safetensors(path / checkpoint.MODEL)
    if source in RELEASED or source.startswith("gpt2"):
        return _from_hub(source)
    raise UserError(
        f"init_from = {source!r} is neither a file, a folder nor a released GPT-2",
        hint="scratch, resume, gpt2 (-medium, -large, -xl), a run's folder or a ckpt.pt",
    )


def _safetensors(file: Path) -> dict[str, Tensor]:
    try:
        tensors = in_memory(file)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{file} cannot be read: {error}", hint="fetch or write it again") from None
    # transformers' files: bare names without "transformer.", mask buffers among them, matrices the other way round
    bare = "wte.weight" in tensors
    theirs = (
        bare
        or any(name.endswith((".attn.bias", ".attn.masked_bias")) for name in tensors)
        or _conv1d(tensors)
    )
    if not theirs:
        return tensors
    answer = {}
    for name, tensor in tensors.items():
        if name.endswith((".attn.bias", ".attn.masked_bias")):
            continue
        ours = name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}"
        answer[ours] = tensor.t() if ours.endswith(TRANSPOSED) else tensor
    return answer


def _conv1d(tensors: dict[str, Tensor]) -> bool:
    """Whether c_attn is (width, 3 · width), as transformers keeps it."""
    weights = [t for name, t in tensors.items() if name.endswith("attn.c_attn.weight")]
    return bool(weights) and weights[0].shape[1] == 3 * weights[0].shape[0]


def load_plain(file: Path) -> Any:
    """A checkpoint of torch's own format, tensors and plain values alone; nothing in it is executed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's remarks on what a damaged file might be
        return torch.load(file, map_location="cpu", weights_only=True, mmap=True)


def _nanogpt(file: Path) -> dict[str, Tensor]:
    try:
        # mapped: the optimizer's two thirds of the file are never read
        with report_if_cut_short(file):
            saved = load_plain(file)
            return {
                name.removeprefix("_orig_mod."): tensor.clone()
                for name, tensor in saved["model"].items()
                if not name.endswith(".attn.bias")  # the mask of old versions
            }
    except OnecardError:
        raise
    except Exception as error:  # whatever a damaged or hostile file makes torch raise
        raise UserError(
            f"{file} is not a nanoGPT checkpoint that can be read safely: {first_line(error)}",
            hint="it must hold tensors and plain values only",
        ) from None


def hub_folder(name: str, files: list[str]) -> Path:
    """A model's files from the hub as a local folder; what was fetched once serves without a network.

    Whether the hub answers is asked once: a download by a file's name would retry for half a minute, two lines each time.
    """
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=files))
    except Exception:  # a network has many ways to fail; the cache may have the files
        return Path(snapshot_download(name, allow_patterns=files, local_files_only=True))


def _from_hub(name: str) -> dict[str, Tensor]:
    file = checkpoint.MODEL
    try:
        return _safetensors(hub_folder(f"openai-community/{name}", [file]) / file)
    except UserError:
        raise
    except Exception as error:  # a network has many ways to fail
        raise UserError(
            f"{name} could not be fetched from the Hugging Face hub ({type(error).__name__})",
            hint="check the network, or name a local folder that holds it",
        ) from None
