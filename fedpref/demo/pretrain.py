"""Trains the tiny base model of the demo from scratch on freshly generated reports.

    python -m fedpref.demo.pretrain --output fedpref/demo/model

The model is a Qwen3 of about two million parameters. First it learns to read: single findings,
then whole reports, answered exactly, in two phases of which the second starts from the first. Then
it learns to answer under labelling habits that it cannot see (see `habits`), so that it ends able
to read but with another convention than the sites'. The weights are saved as bfloat16;
TRAINING.json beside them records how they came about.
"""

import argparse
import json
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from fedpref.demo.cases import sample_case
from fedpref.demo.generate import SyntheticReport, render, sample_report, sample_style
from fedpref.demo.habits import EXACT, EXACT_RATE, HABIT_RATES, answer, sample_habits
from fedpref.demo.tokenizer import MAX_LENGTH, train_tokenizer
from fedpref.files import atomic_dir, atomic_write
from fedpref.task import Structure, match_counts, messages, project, prompt_digest

logger = logging.getLogger(__name__)

VOCABULARY: Final = 2048
TOKENIZER_REPORTS: Final = 8000
BATCH: Final = 16
POOL: Final = 40  # batches that are drawn together, so that each holds reports of like length
READING_STEPS: Final = 6000  # of each of the two reading phases
READING_RATE: Final = 3e-3
REREADING_RATE: Final = 2e-3
SIMPLE_UNTIL: Final = 0.10  # share of the first phase in which a report has one finding at most
HABIT_STEPS: Final = 600
HABIT_RATE: Final = 1e-3
WARM_UP_STEPS: Final = 100
LAST_RATE_SHARE: Final = 0.02
WEIGHT_DECAY: Final = 0.01
BETAS: Final = (0.9, 0.98)
LARGEST_GRADIENT: Final = 1.0
DEV_REPORTS: Final = 300
LONGEST_ANSWER: Final = 120
IGNORED: Final = -100


def model_config(tokenizer: PreTrainedTokenizerFast) -> Qwen3Config:
    """Return the architecture of the tiny base model."""
    return Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=True,
        use_sliding_window=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


@dataclass(frozen=True)
class Example:
    """Token ids of a prompt and of the answer that training asks for."""

    prompt: list[int]
    response: list[int]

    def __len__(self) -> int:
        return len(self.prompt) + len(self.response)


def prompt_text(tokenizer: PreTrainedTokenizerFast, text: str) -> str:
    """Return the chat prompt of a report, ready for its answer."""
    rendered = tokenizer.apply_chat_template(
        messages(text, "compact"), add_generation_prompt=True, tokenize=False
    )
    return str(rendered)


# Draws a report and its answer, as they are at this point (0–1) of a phase of the training.
Sampler = Callable[[np.random.Generator, float], tuple[SyntheticReport, Structure]]


def to_read(rng: np.random.Generator, progress: float) -> tuple[SyntheticReport, Structure]:
    """Return a fresh report with its exact answer; in the beginning a short one."""
    style = sample_style(rng)
    if progress >= SIMPLE_UNTIL:
        report = sample_report(rng, style)
    else:
        style = replace(style, denials_mean=0.4, priors_mean=0.2, distractors_mean=0.2, history=0.0)
        report = render(sample_case(rng)[:1], style, rng)
    return report, answer(report, EXACT)


def to_reread(rng: np.random.Generator, progress: float) -> tuple[SyntheticReport, Structure]:
    """Return a fresh whole report with its exact answer."""
    report = sample_report(rng, sample_style(rng))
    return report, answer(report, EXACT)


def under_habits(rng: np.random.Generator, progress: float) -> tuple[SyntheticReport, Structure]:
    """Return a fresh report and the answer of somebody with habits."""
    report = sample_report(rng, sample_style(rng))
    return report, answer(report, sample_habits(rng))


def pooled_batches(
    rng: np.random.Generator,
    tokenizer: PreTrainedTokenizerFast,
    sample: Sampler,
    progress: float,
) -> list[list[Example]]:
    """Return `POOL` batches of fresh examples in random order, like lengths together."""
    drawn = (sample(rng, progress) for _ in range(BATCH * POOL))
    pool = sorted((_example(tokenizer, *pair) for pair in drawn), key=len)
    return [pool[index * BATCH : (index + 1) * BATCH] for index in rng.permutation(POOL)]


def _example(
    tokenizer: PreTrainedTokenizerFast, report: SyntheticReport, written: Structure
) -> Example:
    response = f"{written.to_json()}{tokenizer.eos_token}\n"
    return Example(
        tokenizer(prompt_text(tokenizer, report.text), add_special_tokens=False)["input_ids"],
        tokenizer(response, add_special_tokens=False)["input_ids"],
    )


def tensors(batch: list[Example], padding: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and labels (batch, length), padded on the right; only responses are labelled."""
    length = max(map(len, batch))
    ids = torch.full((len(batch), length), padding, dtype=torch.long)
    labels = torch.full((len(batch), length), IGNORED, dtype=torch.long)
    for row, example in enumerate(batch):
        ids[row, : len(example)] = torch.tensor(example.prompt + example.response)
        labels[row, len(example.prompt) : len(example)] = torch.tensor(example.response)
    return ids, labels


def response_loss(model: Qwen3ForCausalLM, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy over response tokens; logits are made only for those."""
    hidden = model.model(input_ids=ids).last_hidden_state[:, :-1]
    targets = labels[:, 1:]
    wanted = targets != IGNORED
    return torch.nn.functional.cross_entropy(model.lm_head(hidden[wanted]), targets[wanted])


def train(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    rng: np.random.Generator,
    sample: Sampler,
    *,
    steps: int,
    peak_rate: float,
) -> dict[str, Any]:
    """Train in place and return counts of steps, examples, tokens and the loss at the end."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=peak_rate, betas=BETAS, weight_decay=WEIGHT_DECAY
    )
    model.train()
    started, tokens, recent = time.monotonic(), 0, 0.0
    waiting: list[list[Example]] = []
    for step in range(1, steps + 1):
        progress = (step - 1) / steps
        for group in optimizer.param_groups:
            group["lr"] = peak_rate * min(1.0, step / WARM_UP_STEPS) * _decay(progress)
        if not waiting:
            waiting = pooled_batches(rng, tokenizer, sample, progress)
        ids, labels = tensors(waiting.pop(), int(tokenizer.pad_token_id))
        loss = response_loss(model, ids, labels)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), LARGEST_GRADIENT)
        optimizer.step()
        tokens += ids.numel()
        recent = loss.item() if step == 1 else 0.98 * recent + 0.02 * loss.item()
        if step % 200 == 0:
            seconds = time.monotonic() - started
            logger.info("step %d  loss %.3f  %.0f tokens/s", step, recent, tokens / seconds)
    return {
        "steps": steps,
        "examples": steps * BATCH,
        "tokens": tokens,
        "last_loss": round(recent, 4),
        "seconds": round(time.monotonic() - started, 1),
    }


def _decay(progress: float) -> float:
    return LAST_RATE_SHARE + (1 - LAST_RATE_SHARE) * (1 + math.cos(math.pi * progress)) / 2


@torch.no_grad()  # type: ignore[untyped-decorator]
def answers(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, texts: list[str], batch: int = 50
) -> list[str]:
    """Return the greedy answer to each report, in order."""
    model.eval()
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    written = [""] * len(texts)
    for start in range(0, len(order), batch):
        chosen = order[start : start + batch]
        encoded = tokenizer(
            [prompt_text(tokenizer, texts[index]) for index in chosen],
            return_tensors="pt",
            padding=True,
            add_special_tokens=False,
        )
        output = model.generate(
            input_ids=encoded["input_ids"],
            attention_mask=encoded["attention_mask"],
            max_new_tokens=LONGEST_ANSWER,
            do_sample=False,
        )
        for index, row in zip(chosen, output[:, encoded["input_ids"].shape[1] :], strict=True):
            written[index] = str(tokenizer.decode(row, skip_special_tokens=True))
    return written


def evaluate(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, reports: list[SyntheticReport]
) -> dict[str, float]:
    """Return micro-F1 of greedy answers against the exact annotations, and how they were formed."""
    started = time.monotonic()
    written = answers(model, tokenizer, [report.text for report in reports])
    seconds = time.monotonic() - started
    projected = [project(text) for text in written]
    counts = [
        match_counts(projection.structure, report.structure)
        for projection, report in zip(projected, reports, strict=True)
    ]
    found = [sum(getattr(c, name) for c in counts) for name in ("tp", "fp", "fn")]
    found_diseases = [sum(getattr(c, f"disease_{n}") for c in counts) for n in ("tp", "fp", "fn")]
    return {
        "reports": len(reports),
        "location_disease_f1": _f1(*found),
        "disease_f1": _f1(*found_diseases),
        "eligible": sum(p.eligible for p in projected) / len(projected),
        "strict": sum(p.strict for p in projected) / len(projected),
        "reports_per_second": round(len(reports) / seconds, 1),
    }


def _f1(tp: int, fp: int, fn: int) -> float:
    return round(2 * tp / max(1, 2 * tp + fp + fn), 4)


def build_tokenizer(rng: np.random.Generator) -> PreTrainedTokenizerFast:
    """Return the tokenizer, trained on generated reports, their answers and the prompt."""
    system = messages("", "compact")[0]["content"]
    texts: list[str] = []
    for _ in range(TOKENIZER_REPORTS):
        report = sample_report(rng, sample_style(rng))
        texts += [system, report.text, answer(report, EXACT).to_json()]
    return train_tokenizer(texts, VOCABULARY)


def new_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    """Return the untrained model in float32; the global random state is left as it was."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(model_config(tokenizer)).float()


def main() -> None:
    """Train, evaluate and save, as the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "model")
    parser.add_argument(
        "--reader",
        type=Path,
        help="keep the model that can read here; if it is there already, only learn the habits",
    )
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(options.threads)

    for_tokenizer, for_reading, for_dev, for_habits, for_rereading = (
        np.random.Generator(np.random.Philox(key=[options.seed, part])) for part in range(5)
    )
    dev = [sample_report(for_dev, sample_style(for_dev)) for _ in range(DEV_REPORTS)]
    if options.reader and options.reader.is_dir():
        tokenizer = PreTrainedTokenizerFast.from_pretrained(options.reader)
        model = Qwen3ForCausalLM.from_pretrained(options.reader, dtype=torch.float32)
        reading = json.loads((options.reader / "READING.json").read_text(encoding="utf-8"))
    else:
        tokenizer = build_tokenizer(for_tokenizer)
        model = new_model(tokenizer, options.seed)
        phases = [
            train(model, tokenizer, rng, sample, steps=READING_STEPS, peak_rate=rate)
            for rng, sample, rate in (
                (for_reading, to_read, READING_RATE),
                (for_rereading, to_reread, REREADING_RATE),
            )
        ]
        reading = {"phases": phases, "dev": evaluate(model, tokenizer, dev)}
        if options.reader:
            with atomic_dir(options.reader) as folder:
                model.save_pretrained(folder)
                tokenizer.save_pretrained(folder)
                atomic_write(folder / "READING.json", json.dumps(reading, indent=2) + "\n")
    logger.info("after reading: %s", json.dumps(reading["dev"]))
    habits = train(
        model, tokenizer, for_habits, under_habits, steps=HABIT_STEPS, peak_rate=HABIT_RATE
    )
    # What is measured is what is shipped: weights rounded to bfloat16, computed in float32.
    model = model.bfloat16().float()
    record = {
        "what": "tiny demo model, trained on synthetic reports only; not for medical use",
        "seed": options.seed,
        "threads": options.threads,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "vocabulary": len(tokenizer),
        "prompt_digest": prompt_digest("compact"),
        "reading": reading,
        "habits": {"exact_answers": EXACT_RATE, "rates": HABIT_RATES, **habits},
        "dev": evaluate(model, tokenizer, dev),
        "torch": torch.__version__,
    }
    logger.info("%s", json.dumps(record["dev"]))
    with atomic_dir(options.output) as folder:
        model.bfloat16().save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        atomic_write(folder / "TRAINING.json", json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
