"""Cache protocols: each is recognised, right code passes by it, and a bug in it is found."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from audit.repro.scripts import ends
from torch import nn

from attnlab import registry
from attnlab.audit import Contract
from attnlab.audit.bugs import caching
from attnlab.audit.contract import Certificate
from attnlab.audit.probe.probe import Probe
from attnlab.audit.properties.cache import Cache
from attnlab.audit.repro.smallest import examples_of
from attnlab.audit.subject.adapters import subject_for
from attnlab.audit.subject.load import from_file

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn


class Base(nn.Module):
    wrong = {wrong}

    def __init__(self, dim=16, heads=2):
        super().__init__()
        self.dim, self.heads, self.layer_idx = dim, heads, 0
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def parts(self, x):
        return self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)

    def attend(self, q, k, v):
        t, n = q.shape[2], k.shape[2]
        seen = torch.ones(t, n, dtype=torch.bool).tril(n - t)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.out(y.transpose(1, 2).flatten(2))
"""
# by protocol, and what is special: code that uses it; wrong code spoils what was kept
CODES = {
    "transformers": """
class Code(Base):
    def forward(self, x, past_key_values=None):
        q, k, v = self.parts(x)
        if past_key_values is not None:
            spoilt = 1.1 if self.wrong and past_key_values.get_seq_length() else 1.0
            k, v = past_key_values.update(k, spoilt * v, self.layer_idx)
        return self.attend(q, k, v)
""",
    "returned, two states": """
class Code(Base):
    '''Two states, which the module allocates and the caller gives back.'''

    def __init__(self, dim=16):
        super().__init__(dim)
        self.conv1d = nn.Conv1d(dim, dim, 3, groups=dim, padding=2)
        self.keep = nn.Parameter(torch.rand(dim))

    def allocate_inference_cache(self, batch_size, max_seqlen, dtype=None):
        kernel, width = 3, self.dim
        zeros = torch.zeros(batch_size, width, kernel, dtype=dtype)
        return zeros, torch.zeros(batch_size, width, dtype=dtype)

    def forward(self, x):
        x, state, outs = self.conv1d(x.mT)[..., : x.shape[1]].mT, 0, []
        for one in x.unbind(1):
            state = state * self.keep.sigmoid() + one
            outs.append(state)
        return torch.stack(outs, 1)

    def step(self, hidden_states, conv_state, ssm_state):
        conv_state = torch.cat((conv_state[..., 1:], hidden_states[..., None]), -1)
        x = (conv_state * self.conv1d.weight[:, 0]).sum(-1) + self.conv1d.bias
        ssm_state = ssm_state * self.keep.sigmoid() + x
        return ssm_state, (conv_state * 1.1 if self.wrong else conv_state), ssm_state
""",
    "whole-text": """
class Code(Base):
    '''With a cache it computes what is behind it, and gives the outputs of that.'''

    def forward(self, x, cache=None, return_cache=False):
        q, k, v = self.parts(x if cache is None else x[:, cache[0].shape[2]:])
        if cache is not None:
            spoilt = 1.1 if self.wrong else 1.0
            k, v = torch.cat((cache[0], k), 2), torch.cat((spoilt * cache[1], v), 2)
        y = self.attend(q, k, v)
        return (y, (k, v)) if return_cache else y
""",
    "set-up": """
class Code(Base):
    '''With the number of positions beside where they begin.'''

    def setup_caches(self, max_batch_size, max_seq_length):
        self.table = torch.zeros(2, max_batch_size, 2, max_seq_length, 8)

    def forward(self, x, input_pos=None, input_pos_maxp1=None):
        q, k, v = self.parts(x)
        if input_pos is not None:
            self.table = self.table.to(x)
            self.table[:, :, :, input_pos] = torch.stack((k, 1.1 * v if self.wrong else v))
            k, v = self.table[:, :, :, :input_pos_maxp1]
        return self.attend(q, k, v)
""",
    "set-up, nothing without it": """
class Code(Base):
    '''No call before room was made, not even of a whole text.'''

    table = None

    def setup_caches(self, max_batch_size, max_seq_length):
        self.table = torch.zeros(2, max_batch_size, 2, max_seq_length, 8)

    def forward(self, x, input_pos=None):
        assert self.table is not None, "caches must be set up first"
        q, k, v = self.parts(x)
        self.table = self.table.to(x)
        self.table[:, :, :, input_pos] = torch.stack((k, v))
        rows = torch.arange(len(input_pos)) if self.wrong and len(input_pos) > 1 else input_pos
        seen = torch.arange(self.table.shape[3]) <= rows[:, None]
        y = F.scaled_dot_product_attention(q, *self.table, attn_mask=seen)
        return self.out(y.transpose(1, 2).flatten(2))
""",
    "returned, keys and values": """
class Code(Base):
    '''Keys and values by themselves, one cache for each.'''

    def forward(self, x, past_keys=None, past_values=None):
        q, k, v = self.parts(x)
        if past_keys is not None:
            spoilt = 1.1 if self.wrong else 1.0
            k, v = torch.cat((past_keys, k), 2), torch.cat((spoilt * past_values, v), 2)
        return self.attend(q, k, v), k, v
""",
}


def examined(subject, **declared):
    contract = Contract(cache=True, **declared)
    return Cache().examine(Probe(subject, contract)), contract


def made(code):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return subject_for(code(), {}, "code")


@pytest.mark.parametrize("code", CODES)
def test_right_code_passes_by_its_protocol_and_wrong_code_fails_with_a_script(
    code, tmp_path, monkeypatch
):
    name = code.partition(",")[0]
    if name == "transformers":
        pytest.importorskip("transformers")
    files = {wrong: tmp_path / f"code_{wrong}.py" for wrong in (True, False)}
    for wrong, file in files.items():
        file.write_text(HEAD.format(wrong=wrong) + CODES[code])
    findings = {}
    for wrong, file in files.items():
        target = f"{file}:Code"
        subject = subject_for(from_file(target, {}), {}, "code")
        assert subject.decoder.protocol.name == name
        findings[wrong], contract = examined(subject)
        assert f"protocol: {name}" in findings[wrong].detail
        if wrong:
            certificate = Certificate(target=target, contract=contract, findings=(findings[True],))
            (example,) = examples_of(certificate, subject, target, {})
    assert findings[False].verdict == "pass", findings[False].detail
    assert findings[True].verdict == "fail", findings[True].detail
    assert example.script, example.reason
    script = tmp_path / example.file
    script.write_text(example.script)
    assert [ends(script, file, monkeypatch) for file in files.values()] == [1, 0]


CASES = {
    "piece-replaces": "returned",
    "top-left": "filled",
    "buffers-top-left": "held",
    "rotated-twice": "whole-text",
    "first-rows-of-the-room": "set-up",
    "unwritten-room": "static",
    "state-after-convolution": "states",
}


def test_every_protocol_has_a_bug_with_its_twin():
    protocols = {option.name for option in registry.options("protocol")}
    assert protocols == {*CASES.values(), *(code.partition(",")[0] for code in CODES)}


@pytest.mark.parametrize(("case", "protocol"), CASES.items())
def test_both_forms_of_a_case_are_stepped_by_the_same_protocol(case, protocol):
    chosen = next(one for one in caching.CASES if one.name == case)
    for wrong in (True, False):
        assert chosen.subject(wrong).decoder.protocol.name == protocol


class Rotary(nn.Module):
    """Positions are the caller's to tell, by a name that nobody knows; a cache is given back."""

    def __init__(self, dim=16):
        super().__init__()
        self.dim, self.qkv, self.places = dim, nn.Linear(dim, 3 * dim), nn.Embedding(160, dim)

    def attend(self, x, cache, begin):
        q, k, v = self.qkv(x + self.places(torch.arange(begin, begin + x.shape[1]))).chunk(3, -1)
        if cache is not None:
            k, v = torch.cat((cache[0], k), 1), torch.cat((cache[1], v), 1)
        t, n = q.shape[1], k.shape[1]
        seen = torch.ones(t, n, dtype=torch.bool).tril(n - t)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen), (k, v)

    def forward(self, x, cache=None, rope_begin_pos=0):
        return self.attend(x, cache, rope_begin_pos)


def test_code_that_waits_for_a_position_nobody_told_is_not_called_wrong():
    finding, _ = examined(made(Rotary))
    assert finding.verdict == "cannot tell"
    assert "returned" in finding.detail and "`rope_begin_pos`" in finding.detail


def test_without_such_a_parameter_positions_that_restart_are_wrong():
    class Restarts(Rotary):
        def forward(self, x, cache=None):
            return self.attend(x, cache, 0)

    assert examined(made(Restarts))[0].verdict == "fail"


def test_a_right_step_does_not_excuse_a_wrong_forward():
    class Both(Rotary):
        def forward(self, x, past_key_value=None):
            return self.attend(x, past_key_value, 0)

        def step(self, x, past_key_value=None):
            begin = 0 if past_key_value is None else past_key_value[0].shape[1]
            return self.attend(x, past_key_value, begin)

    subject = made(Both)
    assert subject.decoder.method == ""
    assert examined(subject)[0].verdict == "fail"


def test_a_text_given_whole_must_be_read_with_its_cache():
    class Ignores(Rotary):
        """Computes everything anew: the cache is never looked at."""

        def forward(self, x, cache=None, return_cache=False):
            y, kept = self.attend(x, None, 0)
            return (y, kept) if return_cache else y

    assert not made(Ignores).caches


def test_every_protocol_says_how_it_is_recognised_and_stepped(capsys):
    from attnlab.cli import listing

    listing.list_options("caches", as_json=False)
    shown = capsys.readouterr().out
    for option in registry.options("protocol"):
        protocol = registry.load("protocol", option.name)
        assert option.name in shown and protocol.name == option.name
        assert "Recognised: " in protocol.__doc__ and "Stepped: " in protocol.__doc__
        assert not dataclasses.fields(protocol)
