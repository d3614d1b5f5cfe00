"""Choices that are unwise, each reported in a sentence with its figure; small functions over one run.

>>> from onecard.config import RunConfig
>>> [str(note) for note in warnings(RunConfig(warmup_iters=200, max_iters=1000, lr_decay_iters=1000))][0]
'the warm-up of 200 steps is 20% of the run; 1–5% is usual'
"""

from collections.abc import Iterator

from onecard.config import RunConfig
from onecard.config.model_rules import padded_vocab
from onecard.config.recipes import MUON_RATE
from onecard.facts.builds import DEFAULT_BUILD, support_of
from onecard.facts.gpus import Device
from onecard.facts.here import computer_bytes
from onecard.messages import Note
from onecard.planner.expected_loss import beyond_known_rates
from onecard.planner.memory import host_has
from onecard.planner.params import params
from onecard.planner.step_time import OLD_ATTENTION, StepTime, padding_gain


def warnings(
    config: RunConfig, device: Device | None = None, dtype: str = "", epochs: float | None = None
) -> list[Note]:
    """Every warning that applies, in the order of what it costs."""
    return [
        *_work(config),
        *(support_warnings(device) if device else ()),
        *_precision(device, dtype),
        *_compiler(config, device),
        *_data(config, epochs),
        *_batch(config),
        *_learning_rate(config),
        *_moments(config),
        *_schedule(config),
        *_vocabulary(config, device, dtype),
        *_shape(config),
        *(_facts(device) if device else ()),
    ]


MOST_USUAL_RATE = 3e-3
MUON_4BIT_LOSS = 0.19  # nats, a small model after 300 steps: bench/saver_loss.py


def usual_learning_rate(optimizer: str, parameters: float) -> float:
    """AdamW's by size: 6e-4 at 124M falling with the square root, as GPT-3's table 2.1 does from 125M to 1.3B. Below
    about 5M parameters that rule runs ahead of what is stable."""
    if optimizer == "muon":
        return MUON_RATE
    return min(MOST_USUAL_RATE, 6e-4 * float((124e6 / parameters) ** 0.5))


def _work(config: RunConfig) -> Iterator[Note]:
    if config.eval_only:
        yield Note(
            "eval-only",
        )


def _compiler(config: RunConfig, device: Device | None) -> Iterator[Note]:
    if device and config.compile and not support_of(device).compiles:
        yield Note(
            "compile-old",
            card=device.name,
        )


def _precision(device: Device | None, dtype: str) -> Iterator[Note]:
    if device is None or device.kind != "cuda":
        return
    if dtype == "bfloat16" and not device.bf16_native:
        yield Note(
            "bf16-emulated",
            card=device.name,
        )
    if dtype == "float32":
        yield Note(
            "fp32-slow",
            card=device.name,
            better=device.training_dtype,
        )


def _data(config: RunConfig, epochs: float | None) -> Iterator[Note]:
    # Muennighoff et al. 2023: up to 4 epochs are almost as good as fresh data
    if epochs is not None and epochs > 4:
        yield Note(
            "epochs",
            epochs=epochs,
        )
    if config.dropout > 0 and config.init_from == "scratch" and epochs is not None and epochs <= 1:
        yield Note(
            "dropout",
            dropout=config.dropout,
        )


def _batch(config: RunConfig) -> Iterator[Note]:
    tokens, size = config.tokens_per_step, params(config.shape).total
    # GPT-3's table 2.1 trains 125M to 760M with 0.5 M tokens a step: an eighth of that is tiny, five times it is huge
    if tokens < 65_536 and size > 80e6:
        yield Note(
            "batch-small",
            tokens=tokens,
            size=size,
        )
    if tokens > 2_500_000 and size < 800e6:
        yield Note(
            "batch-huge",
            tokens=tokens,
            size=size,
        )


def _moments(config: RunConfig) -> Iterator[Note]:
    if config.update_in_backward:
        yield Note("update-in-backward", steps=config.checkpoint_interval or config.eval_interval)
    if config.optimizer == "muon" and config.state_bits == 4:
        yield Note("muon-4bit", loss=MUON_4BIT_LOSS)


def _learning_rate(config: RunConfig) -> Iterator[Note]:
    if config.init_from != "scratch":
        return
    usual = usual_learning_rate(config.optimizer, params(config.shape).total)
    # half a decade each way: wider than the spread of what people use for one size (6e-4 to 1.8e-3 at 124M)
    if not usual / 3.2 <= config.learning_rate <= usual * 3.2:
        yield Note(
            "learning-rate-unknown" if beyond_known_rates(config) else "learning-rate",
            rate=config.learning_rate,
            usual=usual,
            optimizer=config.optimizer,
        )


def _schedule(config: RunConfig) -> Iterator[Note]:
    if not config.decay_lr:
        return
    share = config.warmup_iters / config.max_iters
    if share > 0.1:
        yield Note(
            "warmup",
            steps=config.warmup_iters,
            share=share,
        )
    if config.lr_decay_iters > config.max_iters * 1.01:
        yield Note(
            "schedule-unfinished",
            decay=config.lr_decay_iters,
            steps=config.max_iters,
        )


def support_warnings(device: Device) -> Iterator[Note]:
    """Cards that torch's current builds leave out, and those that onecard does not train on."""
    support = support_of(device)
    if not support.trains:
        yield Note("not-trainable", card=device.name)
    elif support.build is not None and support.build != DEFAULT_BUILD:
        yield Note(
            "old-build", card=device.name, cuda=support.build.cuda, default=DEFAULT_BUILD.cuda
        )
    if device.architecture in OLD_ATTENTION:
        yield Note("attention-guess", card=device.name)


def _vocabulary(config: RunConfig, device: Device | None, dtype: str) -> Iterator[Note]:
    vocab = config.shape.vocab_size
    padded = padded_vocab(vocab)
    if padded == vocab:
        return
    share = padding_gain(config, device, dtype) if device else 0.0
    code = "vocab-padding" if share > 0.005 else "vocab-padding-plain"
    yield Note(code, vocab=vocab, padded=padded, share=share)


def _shape(config: RunConfig) -> Iterator[Note]:
    head = config.n_embd // config.n_head
    if config.n_embd >= 256 and (head % 8 or (head % 64 and head < 128)):
        yield Note(
            "head-width",
            head=head,
        )
    if config.n_embd % 64 and config.n_embd >= 256:
        yield Note(
            "width",
            width=config.n_embd,
        )


def _facts(device: Device) -> Iterator[Note]:
    if "Laptop" in device.name:
        yield Note(
            "laptop",
        )
    elif device.confidence == "C" and device.kind != "cpu":
        yield Note(
            "card-unsure",
            card=device.name,
            source=device.source,
        )


def offloading(host_bytes: int, step: StepTime, device: Device) -> Iterator[Note]:
    """What is kept in the computer's memory, and what that takes."""
    if not host_bytes:
        return
    seconds = step.parts.get("host", 0.0)
    if seconds:
        share = seconds / step.seconds.mid
        yield Note("offload", host=host_bytes, seconds=seconds, share=share, pcie=device.pcie)
    if not host_has(host_bytes, device):
        yield Note("offload-short", host=host_bytes, there=computer_bytes())
