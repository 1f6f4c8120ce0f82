"""The adapter for `transformers`: built tiny, run whole, step by step and behind padding."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from attnlab.audit.contract import Certificate, Contract
from attnlab.audit.errors import InputError
from attnlab.audit.probe.probe import Probe, apart
from attnlab.audit.properties.backends import Backends
from attnlab.audit.properties.cache import Cache
from attnlab.audit.properties.left_padding import LeftPadding
from attnlab.interop.families.own import OWN
from attnlab.interop.streaming import write_tensors
from attnlab.models.transformer import TransformerSettings

pytest.importorskip("transformers")

from attnlab.audit.hf import models as hf


@pytest.fixture(scope="module")
def llama() -> hf.HuggingFace:
    return hf.HuggingFace.of(hf.model_of("llama"), "llama")


def verdicts(certificate: Certificate) -> dict[str, str]:
    return {finding.name: finding.verdict for finding in certificate.findings}


# one of every kind: learned positions, encoder made decoder, sliding and full layers, latent keys
# and experts, mamba and attention, a nest of configurations
@pytest.mark.parametrize(
    "arch", ["gpt2", "bert", "gemma3", "deepseek_v3", "jamba", "lfm2", "qwen4_exp", "opt"]
)
def test_architectures_of_every_kind_are_built_tiny_and_without_a_network(
    arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import socket

    def refuse(*arguments: Any) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    model = hf.model_of(f"causal/{arch}")
    assert sum(one.numel() for one in model.parameters()) < 300_000
    assert model(torch.arange(10).reshape(2, 5), use_cache=False).logits.shape[:2] == (2, 5)


def test_the_same_seed_builds_the_same_weights_and_leaves_the_global_generator_alone() -> None:
    before = torch.random.get_rng_state()
    one, other = hf.model_of("llama").state_dict(), hf.model_of("llama").state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_layers_of_every_kind_are_kept_and_key_value_heads_are_fewer() -> None:
    config: Any = hf.model_of("gemma3_text").config
    assert set(config.layer_types) == {"sliding_attention", "full_attention"}
    assert config.num_key_value_heads < config.num_attention_heads


def test_what_names_no_model_is_told_what_to_name() -> None:
    with pytest.raises(ValueError, match="hf:ARCH"):
        hf.subject_of("")


def test_unknown_and_unfit_architectures_say_why_in_a_line() -> None:
    with pytest.raises(ValueError, match="did you mean 'llama'"):
        hf.model_of("lama")
    with pytest.raises(ValueError, match="drafts for another model"):
        hf.model_of("gemma4_assistant")


def test_it_computes_in_float64_throughout_though_norms_ask_for_float32(
    llama: hf.HuggingFace,
) -> None:
    probe = Probe(llama, Contract())
    assert llama.dtype is torch.float64
    assert probe.tolerance < 1e-10
    assert torch.get_default_dtype() is torch.float32


def test_a_correct_model_passes_everything(llama: hf.HuggingFace) -> None:
    found = verdicts(hf.audit_hf("llama"))
    assert "fail" not in found.values()
    wanted = ("causality", "cache", "batch", "padding", "left padding", "backends")
    assert {name: found[name] for name in wanted} == dict.fromkeys(wanted, "pass")


def test_a_model_that_sees_ahead_fails_causality_and_its_cache() -> None:
    subject = hf.HuggingFace.of(hf.model_of("gpt2", "eager"), "gpt2")
    for block in subject.convention.code.transformer.h:
        block.attn.register_forward_pre_hook(unmasked, with_kwargs=True)
    found = verdicts(hf.certificate_of(subject))
    assert found["causality"] == found["cache"] == "fail"


def unmasked(module: Any, args: Any, kwargs: Any) -> Any:
    return args, {**kwargs, "attention_mask": torch.zeros(1, 1, 1, 1)}


def test_state_that_mixes_rows_is_found_where_rows_are_decoded_together() -> None:
    """In this library, rwkv adds the last state of every row to every row."""
    subject = hf.HuggingFace.of(hf.model_of("rwkv"), "rwkv")
    assert Cache().examine(Probe(subject, Contract(cache=True))).verdict == "fail"


def test_a_text_behind_padding_is_the_text_alone_whole_and_decoded(llama: hf.HuggingFace) -> None:
    probe = Probe(llama, Contract(causal=True))
    assert LeftPadding().examine(probe).verdict == "pass"

    class Deaf(hf.HuggingFace):
        """Says that it takes masks and positions, and does not pass them on."""

        def run(self, x: torch.Tensor, **ignored: Any) -> torch.Tensor:
            return super().run(x)

    deaf = Deaf(llama.convention)
    assert deaf.placed
    found = LeftPadding().examine(Probe(deaf, Contract(causal=True)))
    assert found.verdict == "fail"


def test_it_is_told_more_by_name(llama: hf.HuggingFace) -> None:
    x = llama.draw(1, 5, 3)
    assert llama.takes == ("attention_mask", "position_ids")
    with torch.no_grad():
        alone = llama.run(x)
    near, far = (llama.named(x, position_ids=torch.arange(5)[None] * n) for n in (1, 9))
    assert apart(near, alone) < 1e-12 < 1e-3 < apart(far, near)
    assert llama.flexible


def test_steps_in_pieces_of_any_size_are_the_whole_text(llama: hf.HuggingFace) -> None:
    x, cache = llama.draw(2, 11, 3), llama.new_cache()
    with torch.no_grad():
        whole = llama.run(x)
        pieces = torch.cat([llama.step(one, cache) for one in x.split((3, 1, 1, 4, 2), 1)], dim=1)
    assert apart(pieces, whole) < 1e-12


def test_backends_that_agree_pass_and_one_that_differs_is_named(llama: hf.HuggingFace) -> None:
    assert list(llama.backends) == ["sdpa", "eager", "attnlab"]
    probe = Probe(llama, Contract())
    assert Backends().examine(probe).verdict == "pass"

    for odd in ("eager", "attnlab"):

        class Odd(hf.HuggingFace):
            wrong = odd

            def run(self, x: torch.Tensor, **how: Any) -> torch.Tensor:
                factor = 1.01 if self.convention.backend == self.wrong else 1.0
                return factor * super().run(x, **how)

        found = Backends().examine(Probe(Odd(llama.convention), Contract()))
        assert found.verdict == "fail" and f"{odd} differs from sdpa" in found.detail


def test_backends_do_not_apply_to_code_that_has_one_way() -> None:
    subject = hf.HuggingFace.of(hf.model_of("mamba"), "mamba")
    assert Backends().examine(Probe(subject, Contract())).verdict == "not applicable"


def test_a_saved_folder_is_audited_and_one_of_pickles_is_refused(tmp_path: Path) -> None:
    model: Any = hf.model_of("gpt2")
    model.save_pretrained(tmp_path / "good")
    subject = hf.HuggingFace.of(hf.model_in(tmp_path / "good"), "good")
    assert subject.run(subject.draw(1, 4, 0)).shape == (1, 4, 104)
    (tmp_path / "bad").mkdir()
    (tmp_path / "good" / "config.json").rename(tmp_path / "bad" / "config.json")
    torch.save(model.state_dict(), tmp_path / "bad" / "pytorch_model.bin")
    with pytest.raises(ValueError, match="safetensors"):
        hf.model_in(tmp_path / "bad")
    with pytest.raises(ValueError, match=r"config\.json"):
        hf.model_in(tmp_path / "good")


def test_an_encoder_is_declared_bidirectional_and_its_padding_examined() -> None:
    found = hf.audit_hf("bert")
    assert found.contract == Contract(causal=False)
    wanted = ("batch", "padding", "backends", "precision", "finite")
    assert {name: verdicts(found)[name] for name in wanted} == dict.fromkeys(wanted, "pass")
    assert found.verdict == "pass"


def test_an_encoder_that_reads_its_padding_fails() -> None:
    subject = hf.subject_of("bert")
    subject.convention.code.register_forward_pre_hook(deaf_to("attention_mask"), with_kwargs=True)
    assert verdicts(hf.certificate_of(subject))["padding"] == "fail"


@pytest.mark.parametrize("arch", ["t5", "bart"])
def test_a_decoder_and_the_text_of_its_encoder_are_both_examined(arch: str) -> None:
    found = hf.audit_hf(arch)
    assert found.contract == Contract(causal=True, cache=True)
    wanted = ("causality", "cache", "padding", "encoder batch", "encoder padding")
    assert {name: verdicts(found)[name] for name in wanted} == dict.fromkeys(wanted, "pass")
    assert found.verdict == "pass"


def test_padding_of_the_encoders_text_that_the_decoder_reads_fails() -> None:
    subject = hf.subject_of("bart")
    decoder = subject.convention.code.get_decoder()
    decoder.register_forward_pre_hook(deaf_to("encoder_attention_mask"), with_kwargs=True)
    found = verdicts(hf.certificate_of(subject))
    assert found["encoder padding"] == "fail"
    assert found["causality"] == found["encoder batch"] == "pass"


def test_a_step_that_forgets_the_padding_of_the_encoders_text_fails() -> None:
    subject = hf.subject_of("bart")
    decoder = subject.convention.code.get_decoder()

    def forget(module: Any, args: Any, kwargs: Any) -> Any:
        cache = kwargs.get("past_key_values")
        late = cache is not None and cache.get_seq_length() > 0
        return args, {**kwargs, **({"encoder_attention_mask": None} if late else {})}

    decoder.register_forward_pre_hook(forget, with_kwargs=True)
    assert verdicts(hf.certificate_of(subject))["cache"] == "fail"


def deaf_to(name: str) -> Any:
    def hook(module: Any, args: Any, kwargs: Any) -> Any:
        return args, {**kwargs, name: None}

    return hook


def test_images_are_examined_by_patches_and_sound_is_said_not_to_be() -> None:
    found = verdicts(hf.audit_hf("vit"))
    assert found["batch"] == found["backends"] == "pass" and "fail" not in found.values()
    with pytest.raises(ValueError, match="wav2vec2 is not built: it takes sound"):
        hf.subject_of("wav2vec2")
    with pytest.raises(ValueError, match=r"resnet is not built: .* does not cut into patches"):
        hf.subject_of("resnet")


def test_options_are_of_the_configuration_and_a_wrong_one_is_answered_with_a_name() -> None:
    config: Any = hf.model_of("moshi", sliding_window=200).config
    assert config.sliding_window == 200
    config = hf.model_of("gemma3_text", num_hidden_layers=5).config
    assert config.num_hidden_layers == len(config.layer_types) == 5
    config = hf.model_of("gemma3", sliding_window=5).config  # of the configuration inside
    assert config.text_config.sliding_window == 5
    with pytest.raises(ValueError, match="LlamaConfig has no 'num_layer'; did you mean"):
        hf.model_of("llama", num_layer=3)


@pytest.mark.parametrize("arch", ["causal/gpt2", "encoder/bert", "seq2seq/t5"])
def test_weights_of_a_folder_are_left_as_they_are(arch: str, tmp_path: Path) -> None:
    model: Any = hf.model_of(arch)
    model.save_pretrained(tmp_path)
    subject = hf.subject_of(f"{arch.partition('/')[0]}/{tmp_path}")
    ours = subject.convention.code.state_dict()
    for name, one in model.state_dict().items():
        assert torch.equal(ours[name].to(one), one), name
    with pytest.raises(ValueError, match="has no 'vocabulary'; did you mean 'vocab_size'"):
        hf.subject_of(str(tmp_path), vocabulary=7)


def test_weights_at_0_in_a_folder_are_said_to_hide_what_they_gate(tmp_path: Path) -> None:
    model: Any = hf.model_of("gpt2")
    with torch.no_grad():
        model.transformer.h[1].attn.c_proj.weight.zero_()
    model.save_pretrained(tmp_path)
    (found,) = hf._hidden(hf.subject_of(str(tmp_path)))
    assert found.verdict == "cannot tell"
    assert "transformer.h.1.attn.c_proj.weight" in found.detail


def test_no_token_of_a_text_is_padding_to_a_model_that_looks_for_it() -> None:
    """Some take the token 0 for padding wherever it stands, and count positions without it."""
    for arch in ("t5gemma", "seamless_m4t", "bert"):
        config: Any = hf.model_of(arch).config
        every = [config, *(one for one in vars(config).values() if hasattr(one, "pad_token_id"))]
        known = [one.pad_token_id for one in every if one.pad_token_id is not None]
        assert known and min(known) >= 97, arch


def test_what_cannot_be_built_says_so_and_is_no_error_of_ours() -> None:
    for arch in ("encoder/fsmt", "dinat", "omdet-turbo", "oneformer"):
        with pytest.raises(InputError, match=r"is not built|cannot be called"):
            hf.subject_of(arch)


def test_a_decoder_that_takes_single_steps_only_is_stepped() -> None:
    assert hf.subject_of("seq2seq/prophetnet").caches


def test_a_folder_of_our_own_type_is_run_by_our_own_file(tmp_path: Path) -> None:
    """Whatever lies in the folder under that name."""
    settings = TransformerSettings(vocabulary=31, width=16, depth=1, context=16)
    named = [(name, one.detach()) for name, one in settings.build().named_parameters()]
    write_tensors(tmp_path, named)
    (tmp_path / "config.json").write_text(json.dumps(OWN.config(settings)))
    (tmp_path / "modeling_attnlab.py").write_text("raise SystemExit('it was run')")
    model = hf.model_in(tmp_path)
    assert type(model).__module__ == "attnlab.interop.modeling_attnlab"


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "model.safetensors"])
def test_a_fifo_in_a_folder_is_refused_and_not_waited_for(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(InputError, match=r"holds no config\.json|is a FIFO, a socket"):
        hf.subject_of(str(tmp_path))


@pytest.mark.parametrize("text", ["[" * 200_000, "[]", '{"architectures": [[]]}', "{"])
def test_a_config_of_no_sense_is_refused_in_words(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match="cannot be loaded"):
        hf.subject_of(str(tmp_path))
