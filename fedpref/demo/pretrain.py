"""Trains the tiny base model of the demo from scratch on freshly generated reports.

    python -m fedpref.demo.pretrain --steps 3701 --seed 1 --output fedpref/demo/model

The model is a Qwen3 of about two million parameters. It learns to read synthetic reports and to
answer in the task's form: single findings first, then whole reports, then under labelling habits
that it cannot see (see `habits`), so that it ends able to read but without the sites' convention.
The last weights are saved as bfloat16; TRAINING.json beside them records how they came about.

The shipped weights are of a run that its clock ended (`--minutes 26`, after 3701 steps), so this
command repeats its recipe and not its bits; a run that `--steps` ends repeats itself.
"""

import argparse
import json
import logging
import math
import time
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
from fedpref.task import match_counts, messages, project, prompt_digest

logger = logging.getLogger(__name__)

VOCABULARY: Final = 2048
TOKENIZER_REPORTS: Final = 8000
BATCH: Final = 16
POOL: Final = 40  # batches that are drawn together, so that each holds reports of like length
PEAK_RATE: Final = 3e-3
WARM_UP_STEPS: Final = 100
# Reading comes first: short reports with one finding, then whole ones, then the habits.
SIMPLE_UNTIL: Final = 0.15
EXACT_UNTIL: Final = 0.75
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


def sample_example(
    rng: np.random.Generator, tokenizer: PreTrainedTokenizerFast, progress: float
) -> Example:
    """Return a fresh report and its answer, as they are at this point of the training."""
    style = sample_style(rng)
    if progress < SIMPLE_UNTIL:
        style = replace(style, denials_mean=0.4, priors_mean=0.2, distractors_mean=0.2, history=0.0)
        report = render(sample_case(rng)[:1], style, rng)
    else:
        report = sample_report(rng, style)
    habits = EXACT if progress < EXACT_UNTIL else sample_habits(rng)
    written = answer(report, habits).to_json()
    return Example(
        tokenizer(prompt_text(tokenizer, report.text), add_special_tokens=False)["input_ids"],
        tokenizer(f"{written}{tokenizer.eos_token}\n", add_special_tokens=False)["input_ids"],
    )


def pooled_batches(
    rng: np.random.Generator, tokenizer: PreTrainedTokenizerFast, progress: float
) -> list[list[Example]]:
    """Return `POOL` batches of fresh examples in random order, like lengths together."""
    pool = sorted((sample_example(rng, tokenizer, progress) for _ in range(BATCH * POOL)), key=len)
    return [pool[index * BATCH : (index + 1) * BATCH] for index in rng.permutation(POOL)]


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
    *,
    steps: int,
    minutes: float,
) -> dict[str, Any]:
    """Train in place and return counts of steps, examples, tokens and the loss at the end.

    The rate falls to its end after `steps`, or earlier after `minutes`; only a run that is not cut
    short by the clock gives the same weights again.
    """
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=PEAK_RATE, betas=BETAS, weight_decay=WEIGHT_DECAY
    )
    model.train()
    started, step, tokens, recent = time.monotonic(), 0, 0, 0.0
    waiting: list[list[Example]] = []
    while (progress := _progress(step, steps, started, minutes)) < 1:
        for group in optimizer.param_groups:
            group["lr"] = PEAK_RATE * min(1.0, (step + 1) / WARM_UP_STEPS) * _decay(progress)
        if not waiting:
            waiting = pooled_batches(rng, tokenizer, progress)
        ids, labels = tensors(waiting.pop(), int(tokenizer.pad_token_id))
        loss = response_loss(model, ids, labels)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), LARGEST_GRADIENT)
        optimizer.step()
        step, tokens = step + 1, tokens + ids.numel()
        recent = loss.item() if step == 1 else 0.98 * recent + 0.02 * loss.item()
        if step % 200 == 0:
            seconds = time.monotonic() - started
            logger.info("step %d  loss %.3f  %.0f tokens/s", step, recent, tokens / seconds)
    return {
        "steps": step,
        "cut_short_by_the_clock": step < steps,
        "examples": step * BATCH,
        "tokens": tokens,
        "last_loss": round(recent, 4),
        "seconds": round(time.monotonic() - started, 1),
    }


def _progress(step: int, steps: int, started: float, minutes: float) -> float:
    return max(step / steps, (time.monotonic() - started) / (60 * minutes))


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
        texts += [system, report.text, answer(report, sample_habits(rng)).to_json()]
    return train_tokenizer(texts, VOCABULARY)


def main() -> None:
    """Train, evaluate and save, as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=3701)
    parser.add_argument("--minutes", type=float, default=60.0, help="stop after this time at most")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "model")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(options.threads)

    for_tokenizer, for_training, for_dev = (
        np.random.Generator(np.random.Philox(key=[options.seed, part])) for part in range(3)
    )
    tokenizer = build_tokenizer(for_tokenizer)
    with torch.random.fork_rng():
        torch.manual_seed(options.seed)
        model = Qwen3ForCausalLM(model_config(tokenizer)).float()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    logger.info("%d parameters, %d tokens", parameters, len(tokenizer))
    training = train(model, tokenizer, for_training, steps=options.steps, minutes=options.minutes)
    # What is measured is what is shipped: weights rounded to bfloat16, computed in float32.
    model = model.bfloat16().float()
    dev = [sample_report(for_dev, sample_style(for_dev)) for _ in range(DEV_REPORTS)]
    record = {
        "what": "tiny demo model, trained on synthetic reports only; not for medical use",
        "seed": options.seed,
        "asked": {"steps": options.steps, "minutes": options.minutes},
        "threads": options.threads,
        "parameters": parameters,
        "vocabulary": len(tokenizer),
        "prompt_digest": prompt_digest("compact"),
        "simple_until": SIMPLE_UNTIL,
        "exact_until": EXACT_UNTIL,
        "exact_answers_then": EXACT_RATE,
        "habits": HABIT_RATES,
        "training": training,
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
