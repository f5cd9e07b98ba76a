"""The bundled demo: synthetic reports, six synthetic sites, rule lexicons, a tiny base model."""

from pathlib import Path
from typing import Final

# The name of the bundled base model in a run configuration, and where it lies.
DEMO_MODEL: Final = "demo"
DEMO_MODEL_FOLDER: Final = Path(__file__).resolve().parent / "model"
