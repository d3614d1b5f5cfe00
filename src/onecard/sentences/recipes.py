"""Sentences about which recipe `recommend` takes, and what follows from it."""

from onecard.sentences.sentence import sentence

RECIPES = dict(
    [
        sentence(
            "recipe-modern",
            "the modern recipe: {gain:.2f} nats lower ({low:.2f} to {high:.2f}) than the best run of "
            "GPT-2's, which ends at {loss:.2f} after {tokens:count} tokens here",
        ),
        sentence(
            "recipe-unproven",
            "GPT-2's recipe: no public run of the modern one has this size, length and data; it might "
            "end at {loss:.2f} instead of {ours:.2f}",
        ),
        sentence(
            "recipe-time",
            "recipe = {recipe} should reach the same loss in {time:duration} instead of "
            "{ours:duration}",
        ),
        sentence(
            "other-lower",
            "recipe = {recipe} should reach a loss of {loss:.2f} in the same budget instead of "
            "{ours:.2f}: {gain:.2f} nats lower ({low:.2f} to {high:.2f})",
        ),
        sentence(
            "other-higher",
            "recipe = {recipe} should reach a loss of {loss:.2f} in the same budget instead of "
            "{ours:.2f}: {gain:.2f} nats higher ({low:.2f} to {high:.2f})",
        ),
        sentence(
            "modern-exports",
            "a model of the modern recipe runs in onecard and in transformers; llama.cpp and nanoGPT "
            "cannot load it, GPT-2's they can",
        ),
        sentence(
            "recipe-rate",
            "{gain:.2f} nats of the difference are GPT-2's careful learning rate: at the best one of "
            "public runs it would end at {loss:.2f}",
        ),
        sentence(
            "recipe-runs",
            "what the modern recipe gains is read off {runs:int} public runs of {sources:int} "
            "projects, {low:count} to {high:count} parameters; {near:int} have half to twice this size",
        ),
        sentence(
            "recipe-runs-far",
            "no public run of the modern recipe has half to twice this size: what it gains is read "
            "off {runs:int} runs of {low:count} to {high:count} parameters, and may be further off",
        ),
        sentence(
            "small-run-recipe",
            "the modern recipe: no public run compares the two at this size or on this text, but in "
            "onecard's own runs of 1 M parameters on prose and on code it reached the loss of GPT-2's "
            "recipe with {tokens:percent} of the tokens and {time:percent} of the time (docs/performance.md)",
        ),
    ]
)
