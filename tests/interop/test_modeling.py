"""The modelling file of exported models: the same function as ours, whatever the settings."""

import dataclasses

import pytest
import torch

from attnlab import config
from attnlab.generate import Sampling, generate
from attnlab.interop.families.own import ATTENTIONS, OWN, POSITIONS, SCORES
from attnlab.models.transformer import TransformerSettings

modelling = pytest.importorskip(
    "attnlab.interop.modeling_attnlab", reason="needs transformers: pip install 'attnlab[hf]'"
)
SMALL = TransformerSettings(vocabulary=31, context=64, width=24, depth=3)
YARN = ["positions.scaling=yarn", "positions.scaling.original=16", "positions.base=100"]
VARIANTS = [
    *([f"attention={name}"] for name in ATTENTIONS),
    *([f"score={name}", "attention=grouped"] for name in SCORES),
    *([f"positions={name}"] for name in POSITIONS),
    ["score.scale=0.7", "soft_cap=2", "logit_cap=3", "sink=fixed"],
    ["positions.layout=interleaved", "positions.fraction=0.7", *YARN],
    ["positions.base=100,none,1000", "positions.temperature=0.3", "positions.temperature_step=5"],
    ["window=5,none,3", "sink=learned", "gate=elementwise", "bias=true"],
    ["chunk=4,none", "gate=headwise", "attention=grouped"],
    ["value_residual=first", "value_embedding=false,true", "attention=grouped"],
    ["shared_kv=false,false,true", "norm_heads=true", "head_gains=true"],
    ["norm=unit", "norm_heads=true", "feedforward=squared-relu", "tied=false"],
    ["norm_offset=true", "norm_heads=true", "head_gains=true", "norm_place=both"],
    ["norm=layer", "bias=true", "qkv_bias=false", "parallel=true", "feedforward=gelu-tanh"],
    ["norm_place=after", "norm_epsilon=0.01", "feedforward=geglu", "embedding_scale=3"],
    ["feedforward=swiglu", "qkv_bias=true", "attention.head_width=10"],
]


def pair(words):
    """Ours, and theirs with its weights."""
    torch.manual_seed(0)
    ours = config.override(SMALL, words).build().double().eval()
    for parameter in ours.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    plain = OWN.config(ours.settings)
    del plain["model_type"], plain["auto_map"]
    theirs = modelling.AttnlabForCausalLM(modelling.AttnlabConfig(**plain)).double().eval()
    theirs.load_state_dict(ours.state_dict(), strict=False)
    theirs.tie_weights()
    return ours, theirs


def text(rows=2, length=27):
    return torch.randint(31, (rows, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("words", VARIANTS, ids=" ".join)
@torch.no_grad()
def test_logits_are_ours_at_once_and_in_pieces(words):
    ours, theirs = pair(words)
    given = text()
    wanted = ours(given)
    found = theirs(given)
    torch.testing.assert_close(found.logits, wanted, atol=1e-10, rtol=0)
    first = theirs(given[:, :11], use_cache=True)
    rest = [
        theirs(given[:, n : n + 2], past_key_values=first.past_key_values).logits
        for n in range(11, 27, 2)
    ]
    pieces = torch.cat([first.logits, *rest], 1)
    torch.testing.assert_close(pieces, wanted, atol=1e-10, rtol=0)
    last = theirs(given, use_cache=False, logits_to_keep=1).logits
    torch.testing.assert_close(last, wanted[:, -1:], atol=1e-10, rtol=0)


@pytest.mark.parametrize("words", VARIANTS, ids=" ".join)
@torch.no_grad()
def test_rows_padded_on_the_left_are_as_if_alone(words):
    ours, theirs = pair(words)
    given = text(3)
    mask = (torch.arange(27)[None] >= torch.tensor([[6], [0], [1]])).long()
    found = theirs(given, attention_mask=mask).logits
    for row, pad in enumerate((6, 0, 1)):
        alone = ours(given[row : row + 1, pad:])[0]
        torch.testing.assert_close(found[row, pad:], alone, atol=1e-10, rtol=0)


@pytest.mark.parametrize("words", VARIANTS, ids=" ".join)
def test_gradients_are_ours(words):
    ours, theirs = pair(words)
    given = text()
    theirs(given, labels=given).loss.backward()
    logits = ours(given)[:, :-1].flatten(0, 1).float()
    torch.nn.functional.cross_entropy(logits, given[:, 1:].flatten()).backward()
    there = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(there[name].grad, parameter.grad, atol=1e-6, rtol=1e-5)


def test_generate_with_a_cache_in_batches_and_with_beams():
    ours, theirs = pair(["window=5,none", "positions=alibi"])
    prompts = [text()[0, :9].tolist(), text()[1, :4].tolist()]
    wanted = generate(ours, prompts, tokens=12, sampling=Sampling(temperature=0))
    tokens = torch.tensor([prompts[0], [0] * 5 + prompts[1]])
    mask = torch.tensor([[1] * 9, [0] * 5 + [1] * 4])
    given = {"input_ids": tokens, "attention_mask": mask, "max_new_tokens": 12}
    found = theirs.generate(**given, do_sample=False, pad_token_id=0)
    assert found[:, 9:].tolist() == wanted
    beams = theirs.generate(**given, num_beams=3, do_sample=False, pad_token_id=0)
    plain = theirs.generate(**given, num_beams=3, do_sample=False, pad_token_id=0, use_cache=False)
    assert beams.tolist() == plain.tolist()


def test_a_mask_of_another_shape_and_too_many_tokens_are_refused():
    _, theirs = pair(["positions=learned"])
    with pytest.raises(ValueError, match=r"attention_mask has shape \[2, 5\]; it is \[batch, 27\]"):
        theirs(text(), attention_mask=torch.ones(2, 5))
    with pytest.raises(ValueError, match="65 tokens are more than the 64 learned positions"):
        theirs(text(1, 65))


def test_a_config_that_does_not_follow_from_its_settings_is_refused():
    plain = OWN.config(SMALL)
    assert OWN.settings(plain) == SMALL
    layers = [dict(one, window=3) for one in plain["layers"]]
    for changed in ({"layers": layers}, {"num_hidden_layers": 2}, {"rotations": []}):
        with pytest.raises(ValueError, match="that does not follow from its settings"):
            OWN.settings(plain | changed)
    with pytest.raises(ValueError, match=r"config.json: settings: .*depht"):
        OWN.settings(plain | {"settings": {**plain["settings"], "depht": 3}})


def test_weights_have_our_names():
    rules = list(OWN.rules(dataclasses.replace(SMALL, tied=False)))
    assert all(rule.ours == rule.theirs for rule in rules) and len(rules) > 10
