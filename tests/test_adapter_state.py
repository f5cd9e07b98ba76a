import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpref.adapter_state import (
    AdapterSpec,
    check_state,
    initial_state,
    load_adapter,
    pack,
    save_adapter,
    state_digest,
    unpack,
)
from fedpref.errors import AdapterError

Q = "base_model.model.model.layers.0.self_attn.q_proj"


def spec_of(rank: int = 2, fan_in: int = 6, fan_out: int = 4) -> AdapterSpec:
    return AdapterSpec(
        rank=rank,
        alpha=2.0 * rank,
        rslora=False,
        targets=("q_proj",),
        keys=(f"{Q}.lora_A.weight", f"{Q}.lora_B.weight"),
        shapes=((rank, fan_in), (fan_out, rank)),
    )


def test_scale() -> None:
    assert replace(spec_of(8), alpha=32.0).scale == 4.0
    assert replace(spec_of(4), alpha=32.0, rslora=True).scale == 16.0  # 32 / sqrt(4)


def test_parameter_count_of_qwen3_8b_at_rank_16() -> None:
    # hidden 4096, q 4096, kv 1024, intermediate 12288, 36 layers: r·(in + out) a projection.
    hidden, q, kv, inter = 4096, 4096, 1024, 12288
    modules = [(hidden, q), (hidden, kv), (hidden, kv), (q, hidden)]
    modules += [(hidden, inter), (hidden, inter), (inter, hidden)]
    keys, shapes = [], []
    for layer in range(36):
        for index, (fan_in, fan_out) in enumerate(modules):
            keys += [f"{layer:02}.{index}.lora_A.weight", f"{layer:02}.{index}.lora_B.weight"]
            shapes += [(16, fan_in), (fan_out, 16)]
    spec = AdapterSpec(16, 32.0, False, ("q",), tuple(keys), tuple(shapes))
    assert spec.parameter_count == 43_646_976


def test_initial_state_is_uniform_within_the_bound_of_peft_and_b_is_zero() -> None:
    spec = spec_of(rank=64, fan_in=400)
    state = initial_state(spec, 1)
    a, b = state[spec.keys[0]], state[spec.keys[1]]
    bound = 1 / 20  # 1 / sqrt(400)
    assert a.dtype == np.float32
    assert np.abs(a).max() <= bound
    assert np.abs(a).max() > 0.999 * bound
    assert abs(a.mean()) < 0.02 * bound
    assert abs(a.std() - bound / 3**0.5) < 0.02 * bound
    assert not b.any()


def test_initial_state_is_pinned_to_these_bits() -> None:
    # On any machine and numpy version; a change here changes every run.
    state = initial_state(spec_of(), 20260713)
    assert state_digest(state) == (
        "0413f3e42848139949fa244328a49f2e0425de124aa6032018ec9c32359fa52a"
    )


def test_a_key_draws_the_same_whatever_the_other_keys() -> None:
    small = spec_of()
    more = replace(
        small,
        keys=("a.lora_A.weight", *small.keys),
        shapes=((2, 3), *small.shapes),
    )
    one, two = initial_state(small, 5), initial_state(more, 5)
    assert np.array_equal(one[small.keys[0]], two[small.keys[0]])
    assert not np.array_equal(one[small.keys[0]], initial_state(small, 6)[small.keys[0]])


def test_no_torch_is_needed() -> None:
    code = (
        "import sys, fedpref.adapter_state, fedpref.training.roots, fedpref.training.trained;"
        "assert not {'torch', 'transformers', 'peft', 'flwr'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@given(st.integers(1, 4), st.integers(1, 9), st.integers(1, 9), st.integers(0, 2**63 - 1))
def test_pack_unpack_round_trip(rank: int, fan_in: int, fan_out: int, seed: int) -> None:
    spec = spec_of(rank, fan_in, fan_out)
    state = initial_state(spec, seed)
    flat = pack(dict(reversed(state.items())), spec)  # the mapping's order plays no part
    assert flat.shape == (spec.parameter_count,)
    assert state_digest(unpack(flat, spec)) == state_digest(state)


def test_pack_follows_the_key_order() -> None:
    spec = spec_of(rank=1, fan_in=2, fan_out=2)
    state = {
        spec.keys[1]: np.array([[3.0], [4.0]], dtype=np.float32),
        spec.keys[0]: np.array([[1.0, 2.0]], dtype=np.float32),
    }
    assert pack(state, spec).tolist() == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("flat", [np.zeros(19, np.float32), np.zeros(20), np.zeros((4, 5))])
def test_unpack_refuses_another_length_or_dtype(flat: np.ndarray) -> None:
    with pytest.raises(AdapterError, match=r"expected \(20,\) float32"):
        unpack(flat, spec_of())


def test_digest_depends_on_key_shape_dtype_and_bytes_not_on_order() -> None:
    spec = spec_of()
    state = initial_state(spec, 0)
    a, b = spec.keys
    digests = {
        state_digest(state),
        state_digest({a: state[a], "other": state[b]}),
        state_digest({a: state[a].reshape(6, 2), b: state[b]}),
        state_digest({a: state[a].astype(np.float64), b: state[b]}),
        state_digest({a: np.nextafter(state[a], np.float32(1)), b: state[b]}),
    }
    assert len(digests) == 5
    assert state_digest({b: state[b], a: state[a]}) == state_digest(state)


def test_check_state_names_key_and_both_shapes() -> None:
    spec = spec_of(rank=4)
    state = initial_state(spec, 0)
    with pytest.raises(AdapterError) as error:
        check_state({**state, spec.keys[0]: np.zeros((8, 6), np.float32)}, spec)
    assert "(8, 6)" in str(error.value)
    assert "(4, 6)" in str(error.value)
    assert error.value.key == spec.keys[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({f"{Q}.lora_A.weight": None}, "lacks 1 of 2"),
        ({f"{Q}.lora_A.default.weight": np.zeros(1)}, "1 tensors too many"),
        ({f"{Q}.lora_B.weight": np.zeros((4, 2))}, "float64, expected float32"),
        ({f"{Q}.lora_B.weight": np.full((4, 2), np.nan, np.float32)}, "NaN or infinity"),
        ({f"{Q}.lora_B.weight": np.full((4, 2), np.inf, np.float32)}, "NaN or infinity"),
    ],
)
def test_check_state_refuses(change: dict[str, np.ndarray | None], message: str) -> None:
    spec = spec_of()
    state = {k: v for k, v in (initial_state(spec, 0) | change).items() if v is not None}
    with pytest.raises(AdapterError, match=message):
        check_state(state, spec)


def test_spec_travels_as_json() -> None:
    spec = spec_of()
    again = AdapterSpec.from_dict(json.loads(json.dumps(spec.to_dict())))
    assert again == spec
    assert again.digest == spec.digest
    assert replace(spec, rslora=True).digest != spec.digest
    # 32 and 32.0 are the same alpha, and must not part two sites.
    assert replace(spec, alpha=32).digest == replace(spec, alpha=32.0).digest


@pytest.mark.parametrize("broken", [{}, {"rank": "x"}])
def test_malformed_spec(broken: dict[str, str]) -> None:
    with pytest.raises(AdapterError, match="malformed"):
        AdapterSpec.from_dict({**({} if not broken else spec_of().to_dict()), **broken})


def test_unsorted_keys_are_refused() -> None:
    spec = spec_of()
    with pytest.raises(AdapterError, match="not sorted"):
        replace(spec, keys=spec.keys[::-1])


def test_save_and_load(tmp_path: Path) -> None:
    spec = spec_of()
    state = initial_state(spec, 3)
    save_adapter(tmp_path / "adapter", state, spec, "demo")
    assert state_digest(load_adapter(tmp_path / "adapter", spec)) == state_digest(state)
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config["r"] == spec.rank == state[spec.keys[0]].shape[0]
    assert [p.name for p in tmp_path.iterdir()] == ["adapter"]
    save_adapter(tmp_path / "adapter", initial_state(spec, 4), spec, "demo")  # replaces
    assert state_digest(load_adapter(tmp_path / "adapter", spec)) != state_digest(state)
    with pytest.raises(AdapterError, match=r"\(2, 4.0, False\), expected \(3, 6.0, False\)"):
        load_adapter(tmp_path / "adapter", spec_of(rank=3))


def test_load_names_the_folder_of_a_missing_or_damaged_adapter(tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match="cannot be read"):
        load_adapter(tmp_path / "none", spec_of())
    save_adapter(tmp_path / "a", initial_state(spec_of(), 3), spec_of(), "demo")
    weights = tmp_path / "a" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-5])
    with pytest.raises(AdapterError, match="cannot be read"):
        load_adapter(tmp_path / "a", spec_of())
