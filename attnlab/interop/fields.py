"""The fields of a config.json, each looked at: what nobody has asked for is refused, not ignored.

A field that we do not know may change the function of a model, and so may one that is false or
null: `is_causal: null` makes a model that attends to what comes later. So a family takes the fields
that it understands, and whatever remains changes no logit by its name (`HARMLESS`), or has a value
that means what our models do anyway (`USUAL`), or is refused.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

# no code on the way to a logit of a model in eval mode reads them, whatever they say
HARMLESS = {
    *("architectures", "auto_map", "model_type", "transformers_version", "_name_or_path"),
    *("attnlab_version", "name_or_path", "_commit_hash", "transformers.js_config"),
    *("torch_dtype", "dtype", "use_cache", "initializer_range", "embd_initializer_range"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "decoder_start_token_id"),
    *("id2label", "label2id", "num_labels", "problem_type", "return_dict", "output_attentions"),
    *("output_hidden_states", "return_dict_in_generate", "chunk_size_feed_forward", "task"),
    *("task_specific_params", "finetuning_task", "tokenizer_class", "prefix", "license"),
    *("summary_type", "summary_use_proj", "summary_activation", "summary_first_dropout"),
    *("summary_proj_to_labels", "classifier_dropout", "pretraining_tp", "_attn_implementation"),
    *("gradient_checkpointing", "is_decoder", "n_ctx", "hidden_dropout", "embedding_dropout"),
    *("residual_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop", "_sliding_window_pattern"),
    *("cache_implementation", "attn_implementation", "mlp_dropout", "max_window_layers"),
    *("_attn_implementation_autoset", "tie_last_hidden_states", "tie_encoder_decoder"),
    *("torchscript", "use_bfloat16", "tf_legacy_loss", "is_llama_config"),
    # how texts are generated, once a part of a model's config
    *("max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups"),
    *("diversity_penalty", "temperature", "top_k", "top_p", "typical_p", "repetition_penalty"),
    *("length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids"),
    *("num_return_sequences", "output_scores", "remove_invalid_values", "suppress_tokens"),
    *("begin_suppress_tokens", "forced_bos_token_id", "forced_eos_token_id"),
    *("exponential_decay_length_penalty",),
}
# what these say where they change nothing
USUAL: Mapping[str, tuple[Any, ...]] = {
    "is_causal": (True,),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (None,),
    "pruned_heads": (None, {}),
    "per_layer_config": (None, {}),
    "attention_bias": (None, False),
    "mlp_bias": (None, False),
    "use_bidirectional_attention": (None, False),
    "use_sliding_window": (None, False),
    # by these the library chooses the cache of a model whose attention has neither
    "sliding_window": (None,),
    "attention_chunk_size": (None,),
    "layer_types": (None,),
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
    "rope_theta": (None,),
    "rope_scaling": (None, {}),
    "partial_rotary_factor": (None, 1.0),
    "rope_interleaved": (None, False),
    "use_mrope": (None, False),
    "use_qk_norm": (None, False),
}


class Unsupported(ValueError):
    """What our settings cannot express: the field, its value, and what would do."""


_MISSING = object()
MOST_LAYERS = 4096  # as of our models
T = TypeVar("T")
LARGEST = 10**15  # no tensor has so many rows, and no text so many tokens


def short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:60]}…"


class Fields:
    def __init__(self, plain: Mapping[str, Any], family: str) -> None:
        self._plain, self.family = dict(plain), family
        self._taken: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return self._plain.get(name) is not None

    def take(self, name: str, default: Any = _MISSING) -> Any:
        """The value of a field; `default` is what the family has where a config leaves it out."""
        self._taken.add(name)
        if name in self._plain:
            return self._plain[name]
        if default is _MISSING:
            raise Unsupported(f"config.json has no {name}, which a {self.family} model needs")
        return default

    def whole(self, name: str, default: Any = _MISSING) -> int:
        value = self.take(name, default)
        if type(value) is not int or not 1 <= value <= LARGEST:
            what = f"config.json: {name} is {short(repr(value))}"
            raise Unsupported(f"{what}; it is a whole number from 1 to {LARGEST:,}")
        return value

    def number(self, name: str, default: Any = _MISSING) -> float:
        value = self.take(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Unsupported(f"config.json: {name} is {short(repr(value))}; it is a number")
        try:
            return float(value)
        except OverflowError:
            raise Unsupported(
                f"config.json: {name} is {short(repr(value))}; no float holds it"
            ) from None

    def layers(self) -> int:
        """How many there are: few enough to write down something of each."""
        found = self.whole("num_hidden_layers")
        if found > MOST_LAYERS:
            raise self.refused("num_hidden_layers", found, f"it is at most {MOST_LAYERS:,}")
        return found

    def optional(self, name: str, read: Callable[..., T], default: Any = None) -> T | None:
        """What `read` (such as `whole`) makes of a field; None where it is null or left out."""
        return None if self.take(name, default) is None else read(name, default)

    def sequence(self, name: str, of: int) -> list[Any] | None:
        """A list with so many entries, one for each layer; None where it is null or left out."""
        value = self.take(name, None)
        if value is not None and not (isinstance(value, list) and len(value) == of):
            raise self.refused(name, value, f"it is a list with an entry for each of {of} layers")
        return value

    def flag(self, name: str, default: Any = _MISSING) -> bool:
        value = self.take(name, default)
        if not isinstance(value, bool | None):
            raise Unsupported(f"config.json: {name} is {value!r}; it is true or false")
        return bool(value)

    def one_of(self, name: str, known: Mapping[str, T], default: Any = _MISSING) -> T:
        value = self.take(name, default)
        if not isinstance(value, str) or value not in known:
            raise self.refused(name, value, "attnlab has " + ", ".join(known))
        return known[value]

    def refuse_unless(self, name: str, wanted: Any, default: Any = _MISSING, why: str = "") -> None:
        value = self.take(name, wanted if default is _MISSING else default)
        if value != wanted:
            raise self.refused(name, value, why or f"attnlab reads {wanted!r} only")

    def refused(self, name: str, value: object, why: str) -> Unsupported:
        return Unsupported(
            f"config.json: {name} is {short(repr(value))} in this {self.family} model; {why}"
        )

    def refuse_rest(self) -> None:
        for name in sorted(self._plain.keys() - self._taken - HARMLESS):
            value, usual = self._plain[name], USUAL.get(name)
            if usual is None:
                raise self.refused(
                    name,
                    value,
                    "attnlab does not know this field, which may change what it computes",
                )
            if not any(_is_same(value, one) for one in usual):
                said = " or ".join(json.dumps(one) for one in usual)
                raise self.refused(name, value, f"attnlab reads {said} only, in this model type")


def _is_same(value: object, other: object) -> bool:
    """0 and false are equal to Python, and not to a config."""
    return isinstance(value, bool) is isinstance(other, bool) and bool(value == other)
