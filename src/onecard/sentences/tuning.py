"""Sentences of tune: why each setting is what it is, and what may be expected."""

from onecard.sentences.sentence import sentence

TUNING = dict(
    [
        sentence(
            "tune-rate-run",
            "a tenth of the {rate:.2g} that the base was trained with: large enough to learn the form of "
            "an answer, small enough to keep what it knows",
        ),
        sentence(
            "tune-rate-size",
            "a tenth of GPT-3's rate at {params:count} parameters (Brown et al., 2020, table 2.1): larger "
            "models learn with smaller steps",
        ),
        sentence(
            "tune-epochs",
            "{distinct:int} distinct conversations: most of the form is learned in the first pass, and from "
            "the third on small sets are memorised (Alpaca took 3, larger sets take 1 or 2)",
        ),
        sentence("tune-epochs-asked", "as asked"),
        sentence(
            "tune-batch",
            "{sequences:int} sequences a step, so that there are some hundred steps ({steps:int}) and "
            "each still averages over several conversations",
        ),
        sentence("tune-steps", "{epochs:g} passes over {windows:int} windows"),
        sentence("tune-decay", "decays to a tenth over the whole run"),
        sentence("tune-warmup", "3% of the steps: the optimizer's moments begin empty"),
        sentence(
            "tune-weight-decay",
            "none: it would pull the base's weights towards zero with nothing to hold them",
        ),
        sentence("tune-chunked", "the logits of {rows:int} tokens are never held all at once"),
        sentence(
            "tune-evaluations",
            "{count:int} evaluations, each over all that is held out: together about {share:percent} of the "
            "time that training takes",
        ),
        sentence(
            "tune-keep-base",
            "{share:percent} of the windows are the base's own text, so that less of it is forgotten",
        ),
        sentence(
            "tune-no-base-text",
            "no text of the base is mixed in, for none was found; --base-data names a prepared folder",
        ),
        sentence(
            "tune-expect-tiny",
            "{params:count} parameters learn the form of an answer and fixed phrases. Do not expect facts, "
            "arithmetic or reasoning, whatever the conversations hold",
        ),
        sentence(
            "tune-expect-small",
            "{params:count} parameters learn the form of an answer, its tone and when to stop; not new "
            "facts. It will answer fluently and often wrongly",
        ),
        sentence(
            "tune-expect-large",
            "{params:count} parameters learn to answer in the form that is shown, and use what the base "
            "knows already; facts that are only in the conversations stay unreliable",
        ),
        sentence(
            "tune-few-distinct",
            "only {distinct:int} of {conversations:int} conversations are distinct: the model will learn "
            "these by heart. More different ones help; more copies do not",
        ),
        sentence(
            "tune-held-out-again",
            "there is only one distinct conversation: none can be held out, and the validation loss is "
            "that of the training text",
        ),
        sentence(
            "tune-shortened",
            "{count:int} conversations are longer than the context: their last turns are left out",
        ),
        sentence(
            "tune-skipped", "{count:int} records of {file} are left out ({reason}): line {lines}"
        ),
        sentence(
            "tune-skipped-more",
            "{count:int} records of {file} are left out ({reason}): line {lines} and {more:int} more",
        ),
        sentence("skip-not-json", "not JSON"),
        sentence("skip-not-utf8", "not UTF-8"),
        sentence("skip-line-too-long", "line too long"),
        sentence("skip-not-object", "not a JSON object"),
        sentence("skip-empty-object", "an empty object"),
        sentence("skip-unknown-format", "no known format (its keys are {keys})"),
        sentence("skip-not-list", "the messages are not a list"),
        sentence("skip-message-not-object", "a message is not an object"),
        sentence("skip-unknown-role", "unknown role {role}"),
        sentence("skip-not-text", "a message is not text"),
        sentence("skip-surrogate", "half of a surrogate pair, which is no character"),
        sentence("skip-no-answer", "no answer"),
        sentence("skip-empty-assistant", "empty answer"),
        sentence("skip-empty-user", "empty user message"),
        sentence("skip-empty-system", "empty system message"),
        sentence("skip-too-long", "longer than the context of {room:int} tokens"),
        sentence("skip-character", "a character that the vocabulary does not have"),
    ]
)
