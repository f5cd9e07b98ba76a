"""What left each site: the list of `docs/what-leaves-a-site.md`, for the report. A test compares.

The list is fixed: it does not depend on the run, because a site sends nothing else in any run; the
draws of an effect only answer a question about finished runs.
"""

from typing import Final, NamedTuple


class Field(NamedTuple):
    """Fields of one message, in the words of the page."""

    names: tuple[str, ...]
    what: str


class Message(NamedTuple):
    """One kind of message that a site answers."""

    title: str
    key: str
    fields: tuple[Field, ...]
    notes: tuple[str, ...] = ()


NEVER: Final = (
    "Report text, annotations, candidates, pairs, predictions, patient ids, report ids, file "
    "contents and paths are in no message, no error and no log line."
)

# Of which `counts` consists; `fedpref.evaluation.metrics.EvaluationCounts` has the same fields.
COUNTS: Final = (
    "reports", "tp", "fp", "fn", "disease_tp", "disease_fp", "disease_fn", "projected", "strict",
    "truncated", "empty_targets", "empty_with_prediction", "pairs", "pairs_preferred",
)  # fmt: skip

MESSAGES: Final = (
    Message(
        "The handshake, once a run",
        "handshake",
        (
            Field(("status", "site", "federation"), "ready; name of the site; federation id"),
            Field(("partition-id", "num-partitions"), "of the SuperNode's node config"),
            Field(("config",), "hash of the run configuration as the site read it"),
            Field(("weights", "tokenizer"), "hashes of the base model, of tokenizer and template"),
            Field(("prompt", "ontology"), "hashes of the prompt without a report, the vocabulary"),
            Field(("adapter-spec", "initial"), "tensor names and shapes; initial adapter's hash"),
            Field(("versions",), "versions of the libraries"),
            Field(("pairs",), "how many pairs the site trains on"),
            Field(("dev-reports",), "how many dev reports it has, unless too few to say"),
            Field(("synthetic",), "whether the reports are invented"),
            Field(("holds",), "hashes of the adapters that it still has"),
        ),
    ),
    Message(
        "Training, once a round",
        "training",
        (
            Field(("status", "site", "federation", "round"), "trained, nothing trained, missing"),
            Field(("base-hash", "adapter-hash"), "hashes of the adapters trained from and to"),
            Field(("missing", "holds"), "hashes of adapters that the site lacks, or has"),
            Field(("num-examples",), "number of distinct pairs that entered an optimiser step"),
            Field(("train_loss",), "mean loss of the training, only if the strategy asks for it"),
            Field(
                ("the adapter",),
                "all LoRA tensors as one float32 array, or, with another wire, the encoded "
                "difference to the adapter of the round; lora_B alone where lora_A is frozen",
            ),
        ),
    ),
    Message(
        "Evaluation, once a round",
        "evaluation",
        (
            Field(("status", "site", "federation", "round"), "evaluated, withheld, missing"),
            Field(("missing", "holds"), "hashes of adapters that the site lacks, or has"),
            Field(
                ("counts",),
                "sums over the site's dev reports, never one report's; too few are withheld",
            ),
        ),
        (f"The counts are: {', '.join(COUNTS)}.",),
    ),
    Message(
        "The draws of an effect, on request, in no run",
        "effect",
        (
            Field(("status", "site", "num-partitions"), "totals, withheld; as above"),
            Field(("question",), "hash of the question that is answered"),
            Field(("observed",), "tp, fp, fn of both arms and each seed over all dev reports"),
            Field(("draws",), "the same sums over each of 10,000 draws of the site's patients"),
            Field(("reason",), "where totals are withheld: the rule of the site that forbids them"),
        ),
        ("Of a site with few patients nothing is sent; the secret of the draws never is.",),
    ),
)

FAILURE: Final = (
    "When something fails, one coded message leaves instead: it names keys, file names and line "
    "numbers, never content."
)

LIMITS: Final = (
    "An adapter is trained on patient data, and the coordinator sees each site's adapter in the "
    "clear unless the federation adds protection. There is no formal privacy guarantee."
)
