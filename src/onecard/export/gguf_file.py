"""A GGUF file for llama.cpp and what is built on it, written by the `gguf` package.

    write_gguf(path, trained, kind="q8_0")

llama.cpp has GPT-2's architecture and its byte-level BPE. It has none for the modern recipe, and no tokeniser for
characters or bytes: these are refused with a sentence that says what to use instead.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from onecard.data.tokenizers.bpe import BpeTokenizer
from onecard.data.tokenizers.kinds import EOT, Tokenizer
from onecard.data.tokenizers.special import END, SpecialTokenizer, plain
from onecard.errors import UserError
from onecard.export.trained import Trained
from onecard.tune.template import CHAT_TEMPLATE

if TYPE_CHECKING:
    import gguf

KINDS = ("f32", "f16", "bf16", "q8_0")
_BLOCK = 32  # numbers that share a scale in q8_0
_NAMES = {
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}
_WITH_BIAS = tuple(f"{part}.weight" for part in (*_NAMES.values(), "output_norm"))
_OUTER = {
    "transformer.wte.weight": "token_embd.weight",
    "transformer.wpe.weight": "position_embd.weight",
    "transformer.ln_f.weight": "output_norm.weight",
    "transformer.ln_f.bias": "output_norm.bias",
    "lm_head.weight": "output.weight",
}


def check(trained: Trained) -> BpeTokenizer:
    """The tokeniser, if llama.cpp can express this model; else a UserError."""
    if trained.config.shape.modern:
        raise UserError(
            f"llama.cpp has no architecture for recipe = {trained.config.recipe!r}",
            hint="export it with the option `to=hf`, which transformers runs; or train with recipe = 'gpt2'",
        )
    tokenizer = plain(trained.tokenizer)
    if not isinstance(tokenizer, BpeTokenizer):
        raise UserError(
            f"llama.cpp has no tokeniser for {trained.tokenizer.name}",
            hint="export it with the option `to=hf`; or prepare the data with the option `tokenizer=gpt2` or bpe:8192",
        )
    return tokenizer


def write_gguf(path: Path, trained: Trained, kind: str = "f16") -> None:
    tokenizer = check(trained)
    gguf = _library()
    writer = gguf.GGUFWriter(path, "gpt2")
    _add_fields(writer, trained, kind, gguf)
    _add_vocabulary(writer, tokenizer, trained.tokenizer, gguf)
    for name, tensor in _tensors(trained).items():
        encoded, number = _encoded(name, tensor, kind, gguf)
        writer.add_tensor(name, encoded, raw_dtype=number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def modelfile(name: str, context: int) -> str:
    """For `ollama create`: the prompt as it is, since a base model knows no turns."""
    return (
        f"FROM ./{name}\n"
        'TEMPLATE "{{ .Prompt }}"\n'
        f"PARAMETER num_ctx {context}\n"
        "PARAMETER temperature 0.8\n"
        "PARAMETER top_k 200\n"
        f'PARAMETER stop "{EOT}"\n'
    )


def _library() -> Any:
    try:
        import gguf
    except ImportError:
        raise UserError(
            "writing GGUF needs the gguf package", hint='pip install "onecard[export]"'
        ) from None
    return gguf


def _add_fields(writer: "gguf.GGUFWriter", trained: Trained, kind: str, gguf: Any) -> None:
    config = trained.config
    writer.add_name(trained.run_folder.name or "onecard")
    writer.add_context_length(config.block_size)
    writer.add_embedding_length(config.n_embd)
    writer.add_feed_forward_length(4 * config.n_embd)
    writer.add_block_count(config.n_layer)
    writer.add_head_count(config.n_head)
    writer.add_layer_norm_eps(1e-5)
    kinds = gguf.LlamaFileType
    file_type = {
        "f32": kinds.ALL_F32,
        "f16": kinds.MOSTLY_F16,
        "bf16": kinds.MOSTLY_BF16,
        "q8_0": kinds.MOSTLY_Q8_0,
    }
    writer.add_file_type(file_type[kind])


def _add_vocabulary(
    writer: "gguf.GGUFWriter", tokenizer: BpeTokenizer, whole: Tokenizer, gguf: Any
) -> None:
    """Tokens in the order of their ids, merges as "a b", the separator and the roles as control tokens."""
    special = whole.special if isinstance(whole, SpecialTokenizer) else {}
    vocabulary = tokenizer.spec["model"]["vocab"]
    tokens = [*sorted(vocabulary, key=vocabulary.__getitem__), EOT, *special]
    kinds = [gguf.TokenType.NORMAL] * len(vocabulary)
    kinds += [gguf.TokenType.CONTROL] * (1 + len(special))
    merges = tokenizer.spec["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")  # our own BPE is trained with GPT-2's way of cutting text
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    writer.add_bos_token_id(tokenizer.eot or 0)
    writer.add_eos_token_id(special.get(END, tokenizer.eot or 0))
    if special:
        writer.add_chat_template(CHAT_TEMPLATE)
    writer.add_add_bos_token(False)


def _tensors(trained: Trained) -> dict[str, NDArray[np.float32]]:
    """By llama.cpp's names, as numpy; biases that the model does not have are zeros."""
    arrays: dict[str, NDArray[np.float32]] = {}
    for name, parameter in trained.model.named_parameters():
        tensor = parameter.detach().numpy()
        if name in ("transformer.wte.weight", "lm_head.weight"):
            tensor = tensor[: trained.vocab_size]
        target = _OUTER.get(name) or _block_name(name)
        arrays[target] = tensor
        if not trained.config.bias and target.endswith(_WITH_BIAS):
            zeros = np.zeros(tensor.shape[0], np.float32)
            arrays[f"{target.removesuffix('weight')}bias"] = zeros
    return arrays


def _block_name(name: str) -> str:
    _, _, layer, rest = name.split(".", 3)
    part, _, kind = rest.rpartition(".")
    return f"blk.{layer}.{_NAMES[part]}.{kind}"


def _encoded(name: str, tensor: NDArray[np.float32], kind: str, gguf: Any) -> tuple[Any, Any]:
    """Vectors and positions stay in f32, as llama.cpp wants them; so does a row that q8_0 cannot cut in blocks."""
    types = gguf.GGMLQuantizationType
    exact = tensor.ndim == 1 or name == "position_embd.weight"
    if exact or kind == "f32" or (kind == "q8_0" and tensor.shape[-1] % _BLOCK):
        return np.ascontiguousarray(tensor, np.float32), types.F32
    number = {"f16": types.F16, "bf16": types.BF16, "q8_0": types.Q8_0}[kind]
    return gguf.quants.quantize(np.ascontiguousarray(tensor, np.float32), number), number
