"""Sentences of plan: its warnings, and how a run compares with GPT-2."""

from onecard.sentences.sentence import sentence

PLANNING = dict(
    [
        sentence(
            "network_assumed", "the link between the machines is assumed to be {link}; name yours"
        ),
        sentence(
            "stack",
            "memory and time are as {stack}'s code would take them, with a wider range; the loss is as for this config",
        ),
        sentence(
            "calibration-disturbed",
            "the machine was busy or throttled while it was probed (its own steps are off by "
            "{off:.0%}), so the range is wide; run `onecard probe` again when it is idle",
        ),
        sentence(
            "calibration-ignored",
            "the calibration {file} was ignored ({why}); `onecard probe` makes a new one",
        ),
        sentence("calibration-of-another", "it is of {other}, not of {this}"),
        sentence(
            "calibration-other-memory", "it is of one with {other:bytes}, not with {this:bytes}"
        ),
        sentence(
            "calibration-limit-unknown", "its power limit is not known and is {now:.0f} W now"
        ),
        sentence(
            "calibration-limit-unread", "its power limit was {was:.0f} W and cannot be read now"
        ),
        sentence(
            "calibration-other-limit", "its power limit was {was:.0f} W and is {now:.0f} W now"
        ),
        sentence(
            "calibration-no-torch", "it was measured with torch {was}, and none is installed here"
        ),
        sentence(
            "calibration-other-torch",
            "it was measured with torch {was}, and torch {now} is installed",
        ),
        sentence(
            "data-part",
            "the prepared folder {name} holds {tokens} of {family}'s {whole} tokens, and the "
            "plan uses these; `onecard data {name} --tokens N --fresh` prepares more",
        ),
        sentence("source-epochs", "epochs by source: {listed}"),
        sentence(
            "source-repeated",
            "{name} is seen {epochs:.1f} times: repeated so often, its tokens teach as much as {worth:percent} of them would if they were fresh; a smaller share or more text of it is better",
        ),
        sentence("reserve-none", "all of it free"),
        sentence("reserve-desktop", "{bytes:bytes} of it kept for the desktop"),
        sentence("reserve-taken", "{bytes:bytes} of it in use by other programs"),
        sentence("memory.change.yes", "{change}: {memory:bytes}, it fits"),
        sentence("memory.change.tight", "{change}: {memory:bytes}, still tight"),
        sentence("memory.change.no", "{change}: {memory:bytes}, still too much"),
        sentence(
            "near-gpt2",
            "too close to call between this run and the released {model} on {dataset}: "
            "{mid:.2f} against {theirs}",
        ),
        sentence(
            "beats-gpt2",
            "expected to beat the released {model} on {dataset}: {mid:.2f} against {theirs}",
        ),
        sentence(
            "behind-gpt2",
            "not expected to reach the released {model} on {dataset}: {mid:.2f} against {theirs}",
        ),
        sentence(
            "eval-only",
            "eval_only = True: `onecard train` would evaluate once and stop; these figures "
            "are for training it",
        ),
        sentence(
            "compile-old",
            "torch.compile does not support the {card}: this plan is for compile = False, "
            "which is slower and takes more memory",
        ),
        sentence(
            "bf16-emulated",
            "the {card} has no bf16 hardware: bf16 runs slower than fp32 there; use dtype = "
            "'float16'",
        ),
        sentence(
            "fp32-slow",
            "float32 leaves most of the {card}'s rate unused; dtype = 'auto' would use {better}",
        ),
        sentence(
            "epochs",
            "the data is seen {epochs:.1f} times; past about 4 times it teaches little more",
        ),
        sentence("dropout", "dropout = {dropout} slows learning when no text is seen twice"),
        sentence(
            "batch-small",
            "{tokens:int} tokens a step is a tiny batch for {size:count} parameters; about "
            "0.5 M is usual",
        ),
        sentence(
            "batch-huge",
            "{tokens:count} tokens a step is a huge batch for {size:count} parameters: fewer,"
            " larger steps learn less per token; about 0.5 M is usual",
        ),
        sentence(
            "learning-rate",
            "learning_rate = {rate:g} is far from {usual:.1g}, which is usual for {optimizer} at this size; a loss expected there is a rough estimate",
        ),
        sentence(
            "learning-rate-unknown",
            "learning_rate = {rate:g} is far from {usual:.1g}, which is usual for {optimizer} at this size: most public runs at such a rate diverged, or there are none, so no loss is predicted",
        ),
        sentence(
            "muon-4bit",
            "Muon's momentum in 4 bits cost {loss:.2f} nats in short runs of a small model, which the "
            "expected loss leaves out; optimizer_state = '8bit' cost nothing measurable",
        ),
        sentence(
            "offload",
            "{host:bytes} are kept in the computer's memory; copying them takes at most {seconds:duration} of "
            "a step ({share:percent}) over PCIe {pcie:.1f} with 16 lanes",
        ),
        sentence(
            "offload-short",
            "{host:bytes} are to be kept in the computer's memory, and this one has {there:bytes}, its "
            "system included",
        ),
        sentence(
            "update-in-backward",
            "gradients are applied within the backward pass: a bad step cannot be done again, and the "
            "run goes back to its last checkpoint, up to {steps:int} steps",
        ),
        sentence(
            "warmup",
            "the warm-up of {steps:int} steps is {share:percent} of the run; 1–5% is usual",
        ),
        sentence(
            "schedule-unfinished",
            "the learning rate would still be decaying when the run ends: lr_decay_iters = "
            "{decay:int} is beyond max_iters = {steps:int}",
        ),
        sentence(
            "head-width", "heads are {head} wide; 64 or 128 suit the attention kernels better"
        ),
        sentence(
            "width",
            "n_embd = {width} is not a multiple of 64, which wastes part of each matmul tile",
        ),
        sentence(
            "laptop",
            "laptop cards differ by their power limit: expect the low end of the speed range",
        ),
        sentence("card-unsure", "the figures of the {card} are uncertain ({source})"),
        sentence(
            "not-trainable",
            "onecard does not train on the {card}: torch's CUDA, ROCm and Metal builds do not"
            " run on it",
        ),
        sentence(
            "old-build",
            "torch's usual build (CUDA {default}) no longer supports the {card}: it needs "
            "torch built for CUDA {cuda}",
        ),
        sentence(
            "attention-guess",
            "few public runs are on cards like the {card}, which FlashAttention does not "
            "support: its attention time is a rough estimate",
        ),
        sentence(
            "vocab-padding-plain",
            "vocab_size = {vocab} is not a multiple of 64, which slows the largest matmul; "
            "{padded} costs nothing",
        ),
        sentence(
            "vocab-padding",
            "vocab_size = {vocab} is not a multiple of 64; {padded} learns the same and saves"
            " {share:percent} of the time",
        ),
    ]
)
