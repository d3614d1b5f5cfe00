"""Sentences of compare: what differs between runs, where the losses of sources, evaluations and tuned runs stand, and what a log contradicts."""

from onecard.sentences.sentence import sentence

COMPARING = dict(
    [
        sentence(
            "tuned-differs",
            "a tuned run's loss counts the assistant's words alone, so that it does not compare with a base's; the loss on the base's own text does, where the run has it",
        ),
        sentence(
            "tokenizers-differ-bytes",
            "the runs use different tokens, so that losses per token do not compare; bits per byte do, and are used here",
        ),
        sentence(
            "tokenizers-differ",
            "the runs use different tokens ({sizes}), so that their losses do not compare; bits per byte would, but the logs do not have them",
        ),
        sentence(
            "datasets-differ",
            "the runs learn from different data ({data}): a lower loss may be the easier text",
        ),
        sentence("effect-none", "no effect on what is learned or on the step itself"),
        sentence(
            "effect-shape",
            "together with the rest of the shape: {params:.2f} times the parameters, {flops:.2f} times the FLOPs per token",
        ),
        sentence("effect-model", "another model"),
        sentence(
            "effect-same-batch",
            "the total batch stays {tokens:int} tokens a step: the same optimizer steps; only speed and memory change",
        ),
        sentence("effect-batch", "the total batch becomes {ratio:.2f} times as large"),
        sentence("effect-length", "another length, and with it another schedule"),
        sentence("effect-learning", "changes how fast it learns, not how fast it runs"),
        sentence("effect-speed", "changes how fast it runs, hardly what it learns"),
        sentence("effect-unknown", "these runs do not show its effect alone"),
        sentence("benchmark", "{task} {value:.1%} at step {step:int}: {meaning}"),
        sentence(
            "mfu-is-not-speed",
            "{high} has the higher MFU ({high_mfu:.1%} against {low_mfu:.1%}) and yet "
            "processes {slower:.1f} times fewer tokens a second: each token costs "
            "{flops:.2f} times the FLOPs. A higher MFU only says that it uses the card better",
        ),
        sentence(
            "larger-is-slower",
            "{large}'s step takes {slower:.1f} times as long for {work:.2f} times the FLOPs: a larger step, not a slower card or a regression",
        ),
        sentence(
            "slower-than-larger",
            "{large}'s step takes {slower:.1f} times as long for only {work:.2f} times the FLOPs: the size does not explain it all",
        ),
        sentence("micro-batch-gain", "micro-batch {batch:int} would make it {gain:percent} faster"),
        sentence(
            "micro-batch-too-large",
            "micro-batch {batch:int} does not fit on the {card} with these settings",
        ),
        sentence("micro-batch-level", "micro-batch {batch:int} would not be slower"),
        sentence(
            "micro-batch-and-mfu",
            "{small}'s smaller micro-batch ({few:int} against {many:int}) did not raise its MFU: its larger model did. With the model held fixed the larger micro-batch is the faster one until memory runs out: {expected}",
        ),
        sentence(
            "accumulation",
            "accumulating {a_n:int} or {b_n:int} micro-batches changes no optimizer step: both runs take one every {tokens:int} tokens",
        ),
        sentence(
            "learning-rate-and-width",
            "learning rate ({a_lr:g} and {b_lr:g}) and model changed together: the "
            "difference in loss cannot be attributed to either; a run that changes only one "
            "of them would show it",
        ),
        sentence(
            "too-close",
            "at step {step:int} the losses {first:.4f} ({a}) and {second:.4f} ({b}) are {gap:.4f} apart, within what another seed would change: too close to call",
        ),
        sentence(
            "hours-decide",
            "after the same {hours:.2f} hours {best} is ahead, {low:.3f} against {high:.3f}: "
            "it makes more steps in the time, which a comparison at equal steps hides",
        ),
        sentence(
            "unequal-schedules",
            "after {amount} {done} is at its end, its learning rate down, while {other} is in mid-schedule, the last fall of its loss still to come: a comparison there favours {done}",
        ),
        sentence("source-losses", "validation loss by source at step {step:int}: {listed}"),
        sentence(
            "source-changes",
            "validation loss by source at step {step:int}, and its change since step {half:int}: {listed}",
        ),
        sentence(
            "source-overfits",
            "the loss of {source} is {rise:.3f} nats above its best ({best:.4f}): repeated text is being learned by heart; give it a smaller share or fewer tokens",
        ),
        sentence(
            "rate-rewarmed",
            "lengthened at step {step:int} after its rate had decayed: the loss rose by {rise:.3f} nats from {before:.4f} and is not back below it yet; a branch from before the decay (keep_predecay) would not rise",
        ),
        sentence(
            "rewarmed-back",
            "lengthened at step {step:int} after its rate had decayed: the loss rose by {rise:.3f} nats from {before:.4f} and was back below it only at step {back:int}; a branch from before the decay (keep_predecay) would not rise",
        ),
        sentence(
            "sources-traded",
            "{b} against {a}, by source: better at {better}, at the cost of {worse} (nats)",
        ),
        sentence("sources-better", "{b} against {a}, by source: better at {better} (nats)"),
        sentence("sources-worse", "{b} against {a}, by source: worse at {worse} (nats)"),
        sentence(
            "forgotten-much",
            "tuning has cost much of what the base knew: the loss on its own validation text rose from {before:.3f} to {after:.3f} ({change:+.3f} nats); a smaller learning rate, fewer passes or a larger --keep-base keep more",
        ),
        sentence(
            "forgotten",
            "of the base's own validation text a little was forgotten: its loss rose from {before:.3f} to {after:.3f} ({change:+.3f} nats)",
        ),
        sentence(
            "not-forgotten",
            "nothing of the base's own validation text was forgotten: its loss was {before:.3f} and is {after:.3f}",
        ),
        sentence(
            "tuned-from",
            "{tuned} was tuned from {base} on conversations: learning rate, batch, schedule and the rows of its vocabulary are tuning's own, not an experiment on {base}",
        ),
        sentence("config-wrong", "its config cannot be right: {why}"),
        sentence(
            "params-disagree",
            "the config makes {config:count} parameters, but the log printed {printed:count}",
        ),
        sentence(
            "tokens-disagree",
            "the config makes {config:int} tokens a step, but the log printed {printed:int}",
        ),
        sentence(
            "params-disagree-defaults",
            "the keys in the log, with nanoGPT's defaults for the others, make {config:count} parameters, but the log printed {printed:count}: its config is needed for more; give --config FILE, or keys as --n_embd=384",
        ),
        sentence(
            "tokens-disagree-defaults",
            "the keys in the log, with nanoGPT's defaults for the others, make {config:int} tokens a step, but the log printed {printed:int}: its config is needed for more; give --config FILE, or keys as --batch_size=8",
        ),
        sentence(
            "mfu-disagrees",
            "the printed MFU is {ratio:.2f} times what model, batch and step time give: one of these figures is wrong",
        ),
        sentence(
            "card-impossible",
            "{rate:.0f} TFLOPS are more than {gpus:int} × {card} can do ({peak:.0f} TFLOPS): it ran on another card, on more of them, or a figure of the log is wrong",
        ),
    ]
)
