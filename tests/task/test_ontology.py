"""The ontology as data."""

import pickle
from pathlib import Path

import pytest

from fedpref.errors import ConfigError
from fedpref.task import ONTOLOGY, load_ontology


def test_the_frozen_vocabularies() -> None:
    assert len(ONTOLOGY.diseases) == 9
    assert len(ONTOLOGY.locations) == 18
    assert ONTOLOGY.diseases[4] == "pulmonary edema/hazy opacity"
    assert ONTOLOGY.locations[13] == "left costophrenic angle"
    # Every side's subregions, and nothing else, have that side's lung as parent.
    for side in ("right", "left"):
        children = {c for c, p in ONTOLOGY.parents.items() if p == f"{side} lung"}
        assert children == {
            name for name in ONTOLOGY.locations if name.startswith(side) and name != f"{side} lung"
        }
    assert len(ONTOLOGY.parents) == 12


def test_another_ontology_loads_from_toml(tmp_path: Path) -> None:
    path = tmp_path / "o.toml"
    path.write_text(
        'name = "z"\ndiseases = ["worm"]\nlocations = ["head", "ear"]\n[parents]\near = "head"\n'
    )
    ontology = load_ontology(path)
    assert ontology.ancestors("ear") == ("head",)
    assert ontology.digest != ONTOLOGY.digest
    assert pickle.loads(pickle.dumps(ontology)) == ontology


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = ", "not valid"),
        ('name = "z"\ndiseases = ["a"]', "missing keys"),
        ('name = "z"\ndiseases = ["a"]\nlocations = ["b"]\nx = 1', "unknown keys"),
        ('name = "z"\ndiseases = ["a", "a"]\nlocations = ["b"]', "repeats"),
        ('name = "z"\ndiseases = []\nlocations = ["b"]', "empty"),
        ('name = "z"\ndiseases = [1]\nlocations = ["b"]', "strings"),
        ('name = "z"\ndiseases = ["a"]\nlocations = ["b"]\n[parents]\nc = "b"', "unknown"),
        ('name = "z"\ndiseases = ["a"]\nlocations = ["b"]\n[parents]\nb = "b"', "circle"),
    ],
)
def test_a_bad_file_is_one_clear_error(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "o.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        load_ontology(path)
    assert "o.toml" in str(caught.value)


def test_a_missing_file_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_ontology(tmp_path / "none.toml")
