"""A forward over a tree against its sequences one by one, in float64, for every architecture."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from families import COMMON, CONFIGS, FAMILIES, bare_model
from tiny_models import LORA, make_pairs, with_settings
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, PreTrainedModel
from transformers.integrations import flex_attention

from fedpref.adapter_state import initial_state
from fedpref.training import tree_forward
from fedpref.training.adapter import attach, load_state, spec_of
from fedpref.training.encoding import EncodedPair
from fedpref.training.preference_tree import TreeLimits, pair_sequences, token_tree, trees_of
from fedpref.training.reference import sequence_logps
from fedpref.training.session import model_session
from fedpref.training.tree_forward import (
    response_logps,
    tree_limits,
    use_block_attention,
    uses_trees,
)

pytestmark = pytest.mark.contract

PAIRS = make_pairs(4)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads that wait for each other on a busy machine take minutes for these tiny products."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make_model(family: str, attention: str | None = None) -> Any:
    """A random float64 model with an adapter that is away from zero."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = bare_model(family, attention)
        spec = spec_of(copy.deepcopy(model), LORA)
        model = attach(model, spec)
        load_state(model, spec, initial_state(spec, 1))
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.data = parameter.data.double()
            if "lora_B" in name:
                parameter.data.normal_(0, 0.1)
    return model


def one_by_one(model: Any, pairs: list[EncodedPair]) -> torch.Tensor:
    sums = []
    for prompt, response in pair_sequences(pairs):
        logits = model(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1]
        rows = torch.log_softmax(logits, -1).gather(1, torch.tensor(response)[:, None])
        sums.append(rows.sum())
    return torch.stack(sums)


def loss_of(logps: torch.Tensor) -> torch.Tensor:
    return -torch.nn.functional.logsigmoid(0.1 * (logps[0::2] - logps[1::2])).sum()


def gradient(model: Any, losses: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    model.zero_grad()
    for loss in losses:
        loss.backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("max_tokens", [10_000, 100], ids=["one tree", "split"])
def test_log_probs_and_gradients(
    family: str, max_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    softmax = torch.nn.functional.softmax
    # Gemma-2's own attention takes it in float32, whatever the model is in.
    monkeypatch.setattr(
        torch.nn.functional, "softmax", lambda scores, dim, dtype=None: softmax(scores, dim)
    )
    model = make_model(family)
    assert uses_trees(model.get_base_model(), with_settings())
    expected = one_by_one(model, PAIRS)
    wanted = gradient(model, [loss_of(expected)])
    runs = trees_of(PAIRS, pair_sequences, TreeLimits(max_tokens))
    assert (len(runs) == 1) == (max_tokens == 10_000)
    found = [response_logps(model, tree) for _, tree in runs]
    assert (torch.cat(found) - expected).abs().max() <= 1e-9
    gradients = gradient(model, [loss_of(logps) for logps in found])
    assert gradients.keys() == wanted.keys()
    assert all(".lora_" in name for name in wanted)
    for name, value in wanted.items():
        assert (gradients[name] - value).abs().max() <= 1e-9
    assert max(float(value.abs().max()) for value in wanted.values()) > 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_gradient_checkpointing(family: str) -> None:
    model = make_model(family)
    tree = token_tree(pair_sequences(PAIRS))
    plain = gradient(model, [loss_of(response_logps(model, tree))])
    model.get_base_model().gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    saved = gradient(model, [loss_of(response_logps(model, tree))])
    assert saved.keys() == plain.keys()
    for name, value in plain.items():
        assert (saved[name] - value).abs().max() <= 1e-9


@pytest.mark.long  # test_trajectory.py follows the trainers themselves, with two families
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_whole_trajectory(family: str, *, checkpointing: bool) -> None:
    """Twelve AdamW steps on trees that are split, and on single sequences: 1e-6 apart at most."""
    pairs = make_pairs(12, seed=4)

    def train(*, trees: bool) -> dict[str, torch.Tensor]:
        model = make_model(family)
        if checkpointing:
            model.get_base_model().gradient_checkpointing_enable({"use_reentrant": False})
            model.train()
        parameters = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.0)
        for start in range(0, 12, 4):
            for _ in range(4):
                group = pairs[start : start + 4]
                runs = trees_of(group, pair_sequences, TreeLimits(90))
                assert len(runs) > 1
                losses = (
                    [loss_of(response_logps(model, tree)) for _, tree in runs]
                    if trees
                    else [loss_of(one_by_one(model, [pair])) for pair in group]
                )
                gradient(model, losses)
                optimizer.step()
        return {n: p.detach() for n, p in model.named_parameters() if p.requires_grad}

    one, other = train(trees=True), train(trees=False)
    for name, value in one.items():
        assert (value - other[name]).norm() <= 1e-6 * other[name].norm()


def test_logits_are_made_only_where_a_response_is_predicted() -> None:
    model = make_model("qwen3")
    shapes: list[Any] = []
    head = model.get_base_model().lm_head
    head.register_forward_hook(lambda _m, _i, output: shapes.append(tuple(output.shape)))
    tree = token_tree(pair_sequences(PAIRS))
    response_logps(model, tree)
    assert shapes == [(1, len(set(tree.predictors.tolist())), 259)]
    assert shapes[0][1] < len(tree)


@pytest.mark.parametrize("family", ["qwen3", "qwen3, window", "mistral, window"])
def test_block_masks_see_what_the_matrix_says(family: str) -> None:
    # FlexAttention itself is for CUDA; what it would see is read out here.
    model = make_model(family, attention="flex_attention")
    tree = token_tree(pair_sequences(PAIRS))
    config = model.config
    padding = 512 - len(tree)
    masks = tree_forward.attention_masks(config, tree, model.device, padding)
    windows = {"full_attention": None, "sliding_attention": 16}
    by_window = (
        {windows[kind]: mask for kind, mask in masks.items()}
        if isinstance(masks, dict)
        else {config.sliding_window: masks}
    )
    places = torch.arange(512)
    for window, block in by_window.items():
        seen = block.mask_mod(None, None, places[:, None], places[None, :])
        assert torch.equal(seen[: len(tree), : len(tree)], torch.from_numpy(tree.attention(window)))
        assert not seen[: len(tree), len(tree) :].any()
        assert seen[len(tree) :].any(dim=1).all()  # a row that sees nothing would be no number


@pytest.mark.long  # it is compiled
@pytest.mark.parametrize(
    "family",
    ["qwen3", "llama", "gemma", "qwen3, window", "mistral, window", "gemma3, window"],
)
def test_flex_attention_gives_the_same_numbers(family: str) -> None:
    tree = token_tree(pair_sequences(PAIRS))
    model = make_model(family).float()
    with torch.no_grad():
        expected = response_logps(model, tree)
        model.get_base_model().set_attn_implementation("flex_attention")
        found = response_logps(model.eval(), tree)
    assert found.tolist() == pytest.approx(expected.tolist(), rel=1e-5)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[None]]:
    """An item for each time FlexAttention is compiled; here it runs as it is written."""
    items: list[None] = []

    def backend(graph: Any, _examples: Any) -> Any:
        items.append(None)
        return graph

    compile_with = partial(torch.compile, backend=backend)
    monkeypatch.setattr(flex_attention.torch, "compile", compile_with)
    monkeypatch.setattr(flex_attention.WrappedFlexAttention, "_instance", None)
    torch._dynamo.reset()
    yield items
    torch._dynamo.reset()


@pytest.mark.parametrize(("family", "kinds"), [("qwen3", 1), ("gemma3, window", 2)])
def test_flex_attention_is_compiled_for_few_lengths(
    family: str, kinds: int, compiled: list[None]
) -> None:
    """For the first length, for a single block, for any: by kind of layer, however many come."""
    model = make_model(family, attention="flex_attention").float().eval()
    lengths = set()
    with torch.no_grad():
        for count in (4, 8, 2, 10, 16):
            tree = token_tree(pair_sequences(make_pairs(count, seed=count)))
            lengths.add(-(-len(tree) // 128))
            response_logps(model, tree)
    assert len(lengths) >= 4
    assert len(compiled) == 3 * kinds


@pytest.fixture
def on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models say that they are on a GPU; to be asked, not to be computed with."""
    monkeypatch.setattr(PreTrainedModel, "device", property(lambda _: torch.device("cuda")))


@pytest.mark.usefixtures("on_cuda")
@pytest.mark.parametrize("family", FAMILIES)
def test_on_cuda_attention_goes_by_blocks_where_it_can(family: str, base: Any) -> None:
    model = AutoModelForCausalLM.from_config(copy.deepcopy(FAMILIES[family]))
    dense = model.config._attn_implementation == "eager"
    assert dense == family.startswith("gemma2")  # which transformers gives no other attention
    before = torch._dynamo.config.recompile_limit
    with model_session(replace(base, model=model)):
        # Sizes are asked before and after the switch, and are the same.
        limits = tree_limits(model, 77)
        use_block_attention(model)
        assert tree_limits(model, 77) == limits
        assert model.config._attn_implementation == ("eager" if dense else "flex_attention")
        # A dense mask costs by the square of the tree, on whatever device.
        assert (limits.balance is not None) == dense
        assert torch._dynamo.config.recompile_limit == (before if dense else 64)
    assert model.config._attn_implementation == ("eager" if dense else "sdpa")
    assert torch._dynamo.config.recompile_limit == before


def test_on_a_cpu_attention_stays_as_it_is() -> None:
    model = make_model("qwen3").get_base_model()
    use_block_attention(model)
    assert model.config._attn_implementation == "sdpa"


def test_an_unknown_architecture_falls_back_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tree_forward._warn.cache_clear()
    model = AutoModelForCausalLM.from_config(GPT2Config(n_layer=1, n_embd=32, n_head=2))
    with caplog.at_level(logging.WARNING):
        assert not uses_trees(model, with_settings())
        assert not uses_trees(model, with_settings())
    assert len(caplog.records) == 1
    assert "gpt2" in caplog.text
    caplog.clear()
    assert not uses_trees(model, with_settings(engine="trl"))  # asked for: nothing to warn about
    assert not caplog.records


def test_rotation_by_the_longest_sequence_is_no_tree_s(caplog: pytest.LogCaptureFixture) -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    config = LlamaConfig(**COMMON, rope_parameters=rope)
    assert not uses_trees(AutoModelForCausalLM.from_config(config), with_settings())
    assert "type llama that rotates positions by the longest sequence" in caplog.text
    assert uses_trees(AutoModelForCausalLM.from_config(FAMILIES["llama"]), with_settings())


def test_balance_by_hand(base: Any) -> None:
    # A layer of the tiny Qwen3: q 32×32, k and v 16×32, o 32×32, three of the MLP 48×32.
    parameters = 32 * 32 * 2 + 2 * 16 * 32 + 3 * 48 * 32
    limits = tree_limits(base.model, 77)
    assert limits == TreeLimits(77, balance=parameters / (2 * 32))


def test_float32_numbers_are_close(base: Any, spec: Any, root: Any) -> None:
    trees = sequence_logps(base, spec, root, PAIRS, with_settings())
    pairs = sequence_logps(base, spec, root, PAIRS, with_settings(engine="trl"))
    for pair_id, logps in trees.items():
        assert logps == pytest.approx(pairs[pair_id], rel=1e-5)
