"""Sentences of recommend, can, fit and review."""

from onecard.sentences.sentence import sentence

ADVICE = dict(
    [
        sentence(
            "fit-total",
            "the total batch stays {tokens:int} tokens, so nothing changes in what is learned",
        ),
        sentence("fit-same", "yours is already the fastest that fits"),
        sentence(
            "fit-8bit",
            "the optimizer's moments are kept in 8 bits, rounded at random so that their mean "
            "is right; docs/performance.md has what it costs in loss",
        ),
        sentence(
            "fit-4bit",
            "the optimizer's moments are kept in 4 bits, rounded at random so that their mean "
            "is right; docs/performance.md has what it costs in loss",
        ),
        sentence(
            "fit-bf16",
            "weights and gradients are kept in bf16, rounded at random so that their mean is right; "
            "bench/saver_loss.py measures what it costs in loss",
        ),
        sentence(
            "fit-offload", "the optimizer is kept in the computer's memory, {host:bytes} of it"
        ),
        sentence("fit-unneeded", "no memory saver is needed on this card"),
        sentence(
            "fit-now-fits",
            "as it was it does not fit ({bytes:bytes}); now it does, with {now:duration} a step",
        ),
        sentence(
            "fit-loosened",
            "as it was it may not fit ({bytes:bytes}); now it does, with {now:duration} a step",
        ),
        sentence(
            "fit-faster",
            "a step takes {now:duration} instead of {was:duration}: {share:percent} less",
        ),
        sentence("fit-equal", "no faster than it was to within {share:percent}"),
        sentence(
            "instead-rent",
            "rent: {card}, {time:duration} and about {cost:money} at {price:money} an hour "
            "({period:period})",
        ),
        sentence("instead-cards", "{number} such cards side by side would do it in the time"),
        sentence("instead-machines", "{number} such machines together would do it in the time"),
        sentence(
            "instead-finetune",
            "fine-tune the released weights: init_from = '{preset}' on {tokens:count} tokens "
            "of your own takes {time:duration} here",
        ),
        sentence(
            "instead-smaller",
            "the largest that fits in memory and time: {params:count} parameters ({layers} "
            "layers, {width} wide) on its {tokens:count} compute-optimal tokens, "
            "{time:duration}; `onecard recommend` finds the best for the time",
        ),
        sentence(
            "review-is",
            "it is a model of {params:count} parameters (nanoGPT prints {nanogpt:count}): "
            "{layers} layers, {heads} heads of {head}, {width} wide",
        ),
        sentence(
            "review-mend",
            "batch_size = {batch}, gradient_accumulation_steps = {steps}{savers} makes it "
            "fit, the total batch unchanged",
        ),
        sentence(
            "review-time",
            "{steps:int} steps of {step:duration} take about {total:duration} for "
            "{tokens:count} tokens",
        ),
        sentence("review-loss", "it should end at a loss of {loss:.2f}"),
        sentence("review-claim", "its {where} says {size}, which it is not"),
        sentence("review-fits", "it fits: {used:bytes} of the {name}'s {card:bytes}"),
        sentence(
            "review-tight",
            "it is too tight to rely on: it needs {used:bytes}, and the {name} has {card:bytes}, {reserve}",
        ),
        sentence(
            "review-no-fit",
            "it does not fit: it needs {used:bytes}, and the {name} has {card:bytes}, {reserve}",
        ),
        sentence(
            "review-faster",
            "batch_size = {batch}, gradient_accumulation_steps = {steps}{savers} does the "
            "same run in {total:duration}",
        ),
        sentence(
            "review-no-loss",
            "no public losses are on this data, so what would be better is unknown",
        ),
        sentence(
            "review-sooner",
            "the same loss in {total:duration}: {params:count} parameters on {tokens:count} tokens",
        ),
        sentence(
            "review-better",
            "better in the same hours: {params:count} parameters ({layers} layers, {width} "
            "wide) on {tokens:count} tokens, expected {loss:.2f}, {gain:.2f} nats lower",
        ),
        sentence(
            "review-good",
            "nothing better is known for the same hours: it is within {gain:.3f} nats of the best",
        ),
        sentence(
            "trade-smaller-loss",
            "cheaper to use afterwards; takes {extra:duration} longer to get there",
        ),
        sentence(
            "trade-larger-loss",
            "fewer tokens, each slower; takes {extra:duration} longer to get there",
        ),
        sentence(
            "trade-smaller-data",
            "cheaper to use afterwards and finished sooner, for {nats:.3f} nats",
        ),
        sentence(
            "trade-smaller", "cheaper to use afterwards and more tokens seen, for {nats:.3f} nats"
        ),
        sentence("trade-larger", "better with every further hour, for {nats:.3f} nats now"),
        sentence("trade-sooner", "what the other half of the time would buy: {nats:.3f} nats"),
        sentence(
            "fit-error",
            "the loss is known to ±{error:.2f} nats, more than sizes from {low:count} to "
            "{high:count} differ by; most of the error is common to all of them, so their "
            "order is more certain",
        ),
        sentence(
            "flat-time",
            "from {low:count} to {high:count} parameters it takes the same time to within "
            "{share:.0%}",
        ),
        sentence(
            "fit-error-time",
            "the loss is known to ±{error:.2f} nats, so the time to reach it is a rough estimate",
        ),
        sentence(
            "no-double",
            "a model of twice the size does not fit, is larger than the public runs, or would"
            " see fewer tokens for its size than any of them: no loss is predicted for it",
        ),
        sentence(
            "chinchilla",
            "Chinchilla's law would choose about {params:count} parameters and {tokens:count}"
            " tokens here: {difference:.3f} nats more by our fit to public runs",
        ),
        sentence(
            "flat",
            "the size matters little: from {low:count} to {high:count} parameters the "
            "expected loss differs by less than {flat:g} nats",
        ),
        sentence(
            "sharp",
            "the size matters: only {low:count} to {high:count} parameters come within "
            "{flat:g} nats of the best",
        ),
        sentence("sharpest", "the size matters: no other comes within {flat:g} nats of the best"),
        sentence(
            "limit-memory",
            "limited by memory: with four times the {card:bytes} of the {name} the loss "
            "would be {memory:.3f} lower",
        ),
        sentence(
            "limit-memory-time",
            "limited by memory: with four times the {card:bytes} of the {name} it would take "
            "{memory:duration} less",
        ),
        sentence(
            "limit-data",
            "limited by data: {tokens:count} tokens are {epochs} times over the set, or as "
            "far as public runs of its size go; with more text the same time would give "
            "{data:.3f} nats less",
        ),
        sentence(
            "limit-compute-loss",
            "limited by compute: a smaller model would need more tokens than it saves, a "
            "larger one more time for each; four times the memory would save "
            "{memory:duration}",
        ),
        sentence(
            "limit-tokens",
            "the largest model that {tokens:count} tokens are enough for (Chinchilla's "
            "optimum); a larger one would spend its time better on more tokens",
        ),
        sentence(
            "limit-compute",
            "limited by compute: twice the time would lower the loss by {compute:.3f}, four "
            "times the memory by {memory:.3f}",
        ),
        sentence(
            "choice-batch",
            "micro-batch {batch}: the fastest that fits; it needs {used:bytes} of {card:bytes}, {reserve}",
        ),
        sentence("choice-total", "{tokens:int} tokens a step, as runs of this size and length use"),
        sentence(
            "choice-swept",
            "{tokens:int} tokens a step: near AdamW's best batch for a run of this length in a public sweep",
        ),
        sentence("choice-muon", "learning rate {rate:g}: Muon's usual one, for every size"),
        sentence(
            "choice-rate-low",
            "learning rate {rate:g}: the usual one for this size (GPT-3, table 2.1); a "
            "public sweep's best would be {best:.1e}, {gain:.2f} nats lower if the run stays "
            "stable",
        ),
        sentence(
            "choice-rate", "learning rate {rate:g}: the usual one for this size (GPT-3, table 2.1)"
        ),
        sentence("choice-savers", "memory savers: {savers}; they pay for themselves here"),
        sentence("choice-plain", "no memory saver is worth its cost here"),
        sentence(
            "short", "no public run is this short for its size: take the loss as a rough estimate"
        ),
        sentence(
            "unknown-data",
            "no public losses are on this data: the sizes are ranked as if it were FineWeb",
        ),
        sentence("context", "the expected loss has no term for the context: public runs have 1024"),
        sentence(
            "can-yes",
            "yes: {model} on {tokens:count} tokens takes the {card} about {need:duration}",
        ),
        sentence(
            "can-savers",
            "yes, with memory savers: {model} on {tokens:count} tokens takes the {card} "
            "about {need:duration} ({savers})",
        ),
        sentence(
            "can-no-memory",
            "no: with every saver {model} still needs {least:bytes}, and the {card} has {total:bytes}, {reserve}",
        ),
        sentence(
            "can-tight",
            "too tight to rely on: with every saver {model} takes about {least:bytes} and up "
            "to {high:bytes}, and the {card} has {total:bytes}, {reserve}",
        ),
        sentence(
            "can-tight-desktop",
            "too tight beside other programs: with every saver {model} takes about {least:bytes} "
            "and up to {high:bytes}, and the {card} has {total:bytes}, {reserve}; with all of "
            "it free it would fit",
        ),
        sentence(
            "can-no-time",
            "not in that time: {model} on {tokens:count} tokens takes the {card} about "
            "{need:duration}, not {time:duration}",
        ),
        sentence(
            "unpublished",
            "how many tokens OpenAI's GPT-2 saw was never published; estimates differ by more"
            " than ten times, so it is a range here",
        ),
        sentence(
            "utilization",
            "we expect training to reach {reached:percent} of the {dtype} peak, against the "
            "{asked:percent} asked for",
        ),
        sentence(
            "fp32-peak",
            "the fp32 peak is often quoted, but training in {dtype} runs on the tensor cores,"
            " whose peak is {times:.1f} times that",
        ),
        sentence(
            "padding",
            "vocab_size = {padded} instead of {vocab} changes nothing in what is learned and "
            "saves {share:percent} of the time",
        ),
        sentence(
            "small-run",
            "{params:count} parameters suit {tokens:count} tokens, which is what {time:duration} "
            "allow: the Chinchilla law, used to rank sizes",
        ),
        sentence(
            "small-run-repeats",
            "{params:count} parameters on {tokens:count} tokens, {epochs:.0f} times over the text: repeated more "
            "often it teaches nothing; to use {time:duration}, prepare more text",
        ),
        sentence(
            "small-run-loss",
            "no public run is this small or short, so no loss is predicted",
        ),
        sentence(
            "unknown-text-loss",
            "no public runs say what loss to expect from this text or its tokenizer, so none is predicted",
        ),
        sentence("hypothetical", "the predicted rate is that of the same card with enough memory"),
    ]
)
