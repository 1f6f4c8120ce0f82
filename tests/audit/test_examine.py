"""The audit as a whole: our own attentions are certified, and contracts are kept or not."""

import dataclasses
import json

import pytest
import torch
import torch.nn.functional as F

from attnlab import config, registry
from attnlab.attention.heads import HeadedAttention, Layer, combinations
from attnlab.audit import Contract, Subject, assert_contract, audit
from attnlab.audit.contract import ESTABLISHED_BY
from attnlab.audit.errors import AuditError, InputError
from attnlab.audit.examine import examine
from attnlab.audit.own import own_attention
from attnlab.audit.probe.probe import Probe
from attnlab.audit.subject.adapters import subject_for
from attnlab.audit.subject.load import from_file
from attnlab.kernels import hardware
from attnlab.models.transformer import TransformerSettings

MISTAKES = ("rotary-growing", "rotary-by-head")


def failed(certificate):
    return [(one.name, one.detail) for one in certificate.findings if one.verdict == "fail"]


@pytest.mark.parametrize(("heads", "score"), combinations())
@pytest.mark.parametrize("window", [None, 5])
def test_all_our_attentions_are_certified(heads, score, window):
    certificate = audit(own_attention(heads, score, window), causal=True, window=window)
    assert certificate.verdict == "pass", failed(certificate)


@pytest.mark.parametrize(
    "positions", [one.name for one in registry.options("positions") if one.name not in MISTAKES]
)
def test_all_our_positions_are_certified_in_a_transformer_with_a_cache(positions):
    torch.manual_seed(0)
    settings = TransformerSettings(vocabulary=31, width=16, depth=2, context=128)
    model = config.override(settings, [f"positions={positions}", "window=6,none"]).build()
    certificate = audit(model, causal=True, cache=True)
    assert certificate.verdict == "pass", failed(certificate)


def test_a_contract_that_is_not_kept_is_an_assertion_error_with_every_reason():
    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v)

    with pytest.raises(AssertionError, match=r"does not keep its contract:\n  causality: output 0"):
        assert_contract(attend, causal=True)
    assert assert_contract(attend).verdict == "pass"


def test_a_certificate_is_plain_json_with_the_influence_of_each_input():
    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    certificate = audit(attend, name="mine", causal=True)
    plain = certificate.plain()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert plain["target"] == "mine" and plain["verdict"] == "pass"
    matrix = torch.tensor(certificate.influence)
    assert (matrix.triu(1) == 0).all() and (matrix.tril() > 0).sum() == 23 * 24 / 2


def test_an_unknown_declaration_is_refused():
    with pytest.raises(ValueError, match="casual: no such setting; did you mean 'causal'"):
        audit(lambda q, k, v: v, casual=True)


def test_code_that_breaks_down_is_reported_not_raised():
    """It is called once with success, to find out how."""
    calls = []

    def attend(q, k, v):
        calls.append(q.shape[2])
        if len(calls) > 1:
            raise RuntimeError("23 is too many")
        return v

    certificate = audit(attend, causal=True)
    found = {one.name: one for one in certificate.findings}
    assert found["causality"].verdict == "cannot tell"
    assert found["causality"].detail == (
        "raised RuntimeError in `attend` at length 23, during causality: 23 is too many"
    )
    assert certificate.influence == ()


def test_one_length_that_is_refused_is_said_and_the_others_are_examined():
    def attend(q, k, v):
        if q.shape[2] == 23:
            raise RuntimeError("no 23")
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    certificate = audit(attend, causal=True)
    found = {one.name: one.detail for one in certificate.findings}
    assert certificate.verdict == "pass"
    for name in ("finite", "causality"):
        assert "raised RuntimeError in `attend` at length 23: no 23" in found[name]
    assert len(certificate.influence) == 22


@pytest.mark.parametrize("error", [KeyError("ours"), ValueError("ours"), AssertionError("ours")])
def test_an_error_of_ours_is_not_blamed_on_the_code(monkeypatch, error):
    def examine(self, probe):
        raise error

    monkeypatch.setattr(registry.load("property", "window"), "examine", examine)
    with pytest.raises(AuditError, match=r"attnlab itself failed during window: \w+: '?ours"):
        audit(torch.nn.Linear(8, 8), causal=True)
    with pytest.raises(AuditError):
        assert_contract(torch.nn.Linear(8, 8))


def test_outputs_of_another_shape_at_some_length_are_the_codes_error():
    def attend(q, k, v):
        return v.squeeze(2) if q.shape[2] == 1 else v

    class Wider(Plain):
        def forward(self, x):
            y = self.attend(x)
            return torch.cat((y, y), -1) if x.shape[1] == 3 else y

    found = {one.name: one for one in audit(attend).findings}
    for name in ("finite", "causality"):  # it is said, and no text of one is examined
        assert "takes texts of 2 to 129" in found[name].detail
        assert "it must give [b, h, t, d]" in found[name].detail
    assert audit(Wider()).verdict == "pass"  # every text is held to others of its length


def test_a_subject_of_ones_own():
    class Shifted(Subject):
        """Every output is the input before it."""

        name = "shifted"

        def draw(self, batch, length, seed):
            generator = torch.Generator().manual_seed(seed)
            return torch.randn(batch, length, 3, generator=generator, dtype=torch.float64)

        def run(self, x, *, padding=None, positions=None):
            return F.pad(x, (0, 0, 1, 0))[:, :-1]

    certificate = audit(Shifted(), causal=True)
    assert certificate.verdict == "pass" and certificate.target == "shifted"


@pytest.mark.parametrize(
    "strange",
    [
        lambda y: 0 * y,
        lambda y: torch.nan * y,
        lambda y: y > 0,
        lambda y: torch.complex(y, y),
        lambda y: y[..., :0],
        lambda y: y[..., : 1 + y.shape[1] % 3],
        lambda y: y.float() if y.shape[1] > 5 else y,
    ],
)
def test_strange_outputs_are_findings_and_no_error_of_ours(strange):
    class Strange(Plain):
        def forward(self, x):
            y = self.attend(x)
            return strange(y) if x.shape[1] != 5 else y  # at which it is tried out

    certificate = audit(Strange(), causal=True, window=3, padding=True)
    assert certificate.verdict != "pass"


def test_a_function_without_any_weights_is_no_error_of_ours():
    assert audit(lambda q, k, v: torch.zeros_like(v), name="nothing").target == "nothing"


def test_a_persons_module_stays_as_it_was():
    module = torch.nn.MultiheadAttention(8, 2, batch_first=True).train()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    audit(module, causal=False)
    assert module.training
    for name, value in module.state_dict().items():
        assert value.dtype is torch.float32 and torch.equal(value, before[name]), name


# for each field: what is wrong of causal attention with 4 heads and half-split rotations, and who
# says so
FIELDS = {
    "causal": (True, "causality"),
    "window": (3, "window"),
    "heads": (8, "heads"),
    "kv_heads": (1, "heads"),
    "positions": ("none", "positions"),
    "rope_layout": ("interleaved", "positions"),
    "rope_base": (500.0, "positions"),
    "rope_fraction": (0.5, "positions"),
    "scale": (0.5, "scale"),
    "dtype": ("bfloat16", "positions"),
    "rope_scaling": ("yarn", "positions"),
    "rope_factor": (4.0, "positions"),
    "soft_cap": (50.0, "soft-cap"),
    "sink": ("fixed", "sink"),
    "segments": ("apart", "packing"),
    "layout": ("tbc", "batch"),
    "cache": (True, "cache"),
    "padding": (True, "padding"),
}


class Rotary(torch.nn.Module):
    """Angles are in the precision of the inputs, which is too little in bfloat16."""

    def __init__(self, causal):
        super().__init__()
        self.width, self.causal = 32, causal
        self.project = torch.nn.Linear(32, 96)

    def forward(self, x):
        q, k, v = self.project(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        places = torch.arange(x.shape[1]).to(x.dtype)[:, None]
        angles = places * 10000 ** (-torch.arange(4).to(x.dtype) / 4)

        def turned(y):
            a, b = y.chunk(2, -1)
            cos, sin = angles.cos(), angles.sin()
            return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

        out = F.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=self.causal)
        return out.transpose(1, 2).flatten(2)


@pytest.mark.parametrize("field", [one.name for one in dataclasses.fields(Contract)])
def test_every_field_of_a_contract_is_held_to(field):
    """Declared wrongly it does not pass; of a cache or a mask that is not there nothing is told."""
    wrong, name = FIELDS[field]
    torch.manual_seed(0)
    subject = subject_for(Rotary(field != "causal"), {}, "code")
    examined = registry.load("property", name)()
    assert examined.examine(Probe(subject, Contract())).verdict in ("pass", "not applicable")
    found = examined.examine(Probe(subject, Contract(**{field: wrong})))
    unseen = {"cache": "cannot tell", "padding": "cannot tell", "segments": "not applicable"}
    assert found.verdict == unseen.get(field, "fail")


# for each field: what is right of the same code; of a transformer where that has none
RIGHT = {
    "causal": True,
    "window": 5,
    "heads": 4,
    "kv_heads": 4,
    "positions": "rotary",
    "rope_layout": "half-split",
    "rope_base": 1e4,
    "rope_fraction": 1.0,
    "rope_scaling": "none",
    "rope_factor": 1.0,
    "scale": 8**-0.5,
    "soft_cap": 20.0,
    "sink": "none",
    "segments": "alone",
    "layout": "btc",
    "dtype": "bfloat16",
    "cache": True,
    "padding": True,
}


@pytest.mark.parametrize("field", [one.name for one in dataclasses.fields(Contract)])
def test_every_field_of_a_contract_can_be_established(field):
    torch.manual_seed(0)
    settings = TransformerSettings(vocabulary=31, width=32, depth=1, context=128)
    if field == "window":
        made = registry.load("score", "scaled-dot")().build(4, 8)
        code = HeadedAttention(
            registry.load("attention", "multi-head")(), made, Layer(width=32, window=5)
        )
    elif field in ("dtype", "cache", "padding", "soft_cap", "segments"):
        more = ["soft_cap=20"] if field == "soft_cap" else []
        code = config.override(settings, ["positions=rotary", *more]).build()
    else:
        code = Rotary(causal=True)
    needed = [registry.load("property", name)() for name in ESTABLISHED_BY[field]]
    contract = Contract(**{field: RIGHT[field]})
    certificate = examine(subject_for(code, {}, "code"), contract, properties=needed)
    runs_here = field != "dtype" or hardware.cpu_multiplies("bfloat16")
    wanted = "pass" if runs_here else "incomplete"
    assert certificate.verdict == wanted, certificate.reason


def test_a_dtype_that_this_machine_does_not_have_is_no_failure_of_the_code(monkeypatch):
    monkeypatch.setattr(hardware, "cpu_multiplies", lambda dtype: False)
    code = TransformerSettings(vocabulary=31, width=32, depth=1, context=128).build()
    certificate = examine(subject_for(code, {}, "code"), Contract(dtype="bfloat16"))
    assert certificate.verdict == "incomplete", failed(certificate)
    assert "bfloat16 products do not run on this CPU: audit it on another" in certificate.reason


def test_heads_that_cannot_be_seen_are_not_established():
    class Hidden(Plain):
        """Compares queries and keys by sums of products, which no matrix product shows."""

        def forward(self, x):
            q, k, v = self.inner(x).chunk(3, dim=-1)
            scores = (q[:, :, None] * k[:, None]).sum(-1)
            later = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
            weights = scores.masked_fill(later, -torch.inf).softmax(-1)
            return (weights[..., None] * v[:, None]).sum(2)

    assert audit(Hidden(), causal=True).verdict == "pass"
    certificate = audit(Hidden(), causal=True, heads=7)
    assert certificate.unestablished == ("heads",), certificate.reason


def test_heads_that_options_fix_are_held_to_those_that_are_declared():
    def attend(q, k, v):
        groups = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    options = {"kv_heads": 2}
    assert audit(attend, options=options, kv_heads=2).verdict == "pass"
    assert audit(attend, options=options, kv_heads=1).unestablished == ("kv_heads",)
    assert audit(attend, options=options, heads=8).unestablished == ("heads",)


def test_a_function_is_called_with_the_heads_that_are_declared():
    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    assert audit(attend, causal=True, heads=6).verdict == "pass"
    found = {one.name: one for one in audit(attend, causal=True, heads=6, kv_heads=2).findings}
    assert found["heads"].verdict == "fail" and "are refused" in found["heads"].detail


class Plain(torch.nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.dim = dim
        self.inner = torch.nn.Linear(dim, 3 * dim)

    def attend(self, x, memory=None):
        q, k, v = self.inner(x).chunk(3, dim=-1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        if memory is not None:
            y = y + F.scaled_dot_product_attention(y, memory, memory)
        return y


@pytest.mark.parametrize("name", ["memory", "context", "encoder_hidden_states", "enc_output"])
def test_what_a_decoder_looks_at_is_given_to_it(name):
    scope: dict = {"Plain": Plain}
    exec(
        f"class Decoder(Plain):\n    def forward(self, x, {name}):\n"
        f"        return self.attend(x, {name})",
        scope,
    )
    certificate = audit(scope["Decoder"](), causal=True)
    assert certificate.verdict == "pass", failed(certificate)


def test_a_start_and_a_mask_that_must_be_given_are():
    class Started(Plain):
        def forward(self, x, start_pos, mask):
            assert start_pos == 0 and mask is None
            return self.attend(x)

    assert audit(Started(), causal=True).verdict == "pass"


def test_logits_of_the_last_position_only_are_asked_for_with_targets():
    class Quick(Plain):
        def __init__(self, wrong):
            super().__init__()
            self.tokens, self.wrong = torch.nn.Embedding(29, 16), wrong

        def forward(self, idx, targets=None):
            x = self.tokens(idx)
            y = self.attend(x) + (x.mean(1, keepdim=True) if self.wrong else 0)
            logits = y @ self.tokens.weight.T
            return (logits[:, -1:], None) if targets is None else (logits, logits.sum())

    assert audit(Quick(False), causal=True).verdict == "pass"
    assert failed(audit(Quick(True), causal=True))[0][0] == "causality"


def test_queries_by_name_only():
    def attend(*, query, key, value):
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)

    class Named(torch.nn.Module):
        def forward(self, *, query, key, value):
            return attend(query=query, key=key, value=value)

    assert audit(attend, causal=True).verdict == "pass"
    assert audit(Named(), causal=True).verdict == "pass"


def test_a_module_that_cannot_be_copied_says_so_unless_it_was_made_for_the_audit(tmp_path):
    class Locked(Plain):
        def __deepcopy__(self, memo):
            raise TypeError("a lock")

        def forward(self, x):
            return self.attend(x)

    with pytest.raises(ValueError, match=r"cannot be copied \(a lock\); give a newly made one"):
        audit(Locked())
    path = tmp_path / "locked.py"
    path.write_text(
        "from torch import nn\n"
        "class Locked(nn.Linear):\n"
        "    def __init__(self, dim=8):\n"
        "        super().__init__(dim, dim)\n"
        "    def __deepcopy__(self, memo):\n"
        "        raise TypeError('a lock')\n"
    )
    assert audit(from_file(f"{path}:Locked", {}), causal=True).verdict == "pass"


def test_a_certificate_of_nothing_is_no_pass():
    def once():
        calls = []

        def attend(q, k, v):
            calls.append(q)
            if len(calls) > 1:
                raise RuntimeError("once only")
            return v

        return attend

    for declared in ({}, {"causal": True}):
        certificate = audit(once(), **declared)
        assert certificate.verdict == "incomplete" and "once only" in certificate.reason
        with pytest.raises(AssertionError, match=r"attend is incomplete: .*once only"):
            assert_contract(once(), **declared)


def test_what_is_declared_and_cannot_be_told_is_an_assertion_error():
    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    assert audit(attend, causal=True).verdict == "pass"
    with pytest.raises(AssertionError, match="declared and not established: cache=true"):
        assert_contract(attend, causal=True, cache=True)


def test_a_module_that_draws_random_numbers_fails_and_is_examined_with_one_seed():

    class Noisy(Plain):
        def forward(self, x):
            return self.attend(x) + torch.randn_like(x)

    certificate = audit(Noisy(), causal=True)
    found = {one.name: one for one in certificate.findings}
    assert found["evaluation"].verdict == "fail" and certificate.verdict == "fail"
    assert found["causality"].verdict == "pass"
    assert found["causality"].detail.endswith("with one random seed")


def test_a_module_with_random_numbers_of_its_own_is_not_certified_as_causal():
    """Nothing is known of its causality, which is declared."""

    class Noisy(Plain):
        generator = torch.Generator()

        def forward(self, x):
            noise = torch.randn(x.shape, generator=self.generator, dtype=x.dtype)
            return self.attend(x) + noise

    certificate = audit(Noisy(), causal=True)
    verdicts = {one.name: one.verdict for one in certificate.findings}
    assert verdicts["causality"] == "cannot tell" and verdicts["evaluation"] == "fail"
    assert certificate.unestablished == ("causal",)


def test_a_class_or_a_text_is_told_from_what_can_be_audited():
    with pytest.raises(InputError, match=r"Linear is a class; .* as audit\(Linear\(…\)\)"):
        audit(torch.nn.Linear)
    with pytest.raises(InputError, match=r"'file.py:Name' is a text; audit takes a module or"):
        audit("file.py:Name")
