"""The fields of a config.json, each looked at: what nobody has asked for is refused, not ignored.

A field that we do not know may change the function of a model. So a family takes the fields that
it understands, and whatever remains is harmless by name (`HARMLESS`), or off, or refused.
"""

from collections.abc import Mapping
from typing import Any

# they change no logit of a model in eval mode
HARMLESS = {
    *("architectures", "auto_map", "model_type", "transformers_version", "_name_or_path"),
    *("attnlab_version",),
    *("torch_dtype", "dtype", "use_cache", "initializer_range", "embd_initializer_range"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "decoder_start_token_id"),
    *("id2label", "label2id", "problem_type", "return_dict", "output_attentions"),
    *("output_hidden_states", "return_dict_in_generate", "chunk_size_feed_forward", "task"),
    *("task_specific_params", "finetuning_task", "tokenizer_class", "prefix", "license"),
    *("summary_type", "summary_use_proj", "summary_activation", "summary_first_dropout"),
    *("summary_proj_to_labels", "classifier_dropout", "pretraining_tp", "_attn_implementation"),
    *("gradient_checkpointing", "is_decoder", "n_ctx", "hidden_dropout", "embedding_dropout"),
    *("residual_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop", "_sliding_window_pattern"),
    *("sliding_window_pattern", "cache_implementation", "attn_implementation", "mlp_dropout"),
}


class Unsupported(ValueError):
    """What our settings cannot express: the field, its value, and what would do."""


_MISSING = object()
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

    def flag(self, name: str, default: Any = _MISSING) -> bool:
        value = self.take(name, default)
        if not isinstance(value, bool | None):
            raise Unsupported(f"config.json: {name} is {value!r}; it is true or false")
        return bool(value)

    def one_of(self, name: str, known: Mapping[str, Any], default: Any = _MISSING) -> Any:
        value = self.take(name, default)
        if not isinstance(value, str) or value not in known:
            raise self.refused(name, value, "attnlab has " + ", ".join(known))
        return known[value]

    def refuse_unless(self, name: str, wanted: Any, default: Any = _MISSING, why: str = "") -> None:
        value = self.take(name, wanted if default is _MISSING else default)
        if value != wanted:
            raise self.refused(name, value, why or f"attnlab reads {wanted!r} only")

    def refused(self, name: str, value: Any, why: str) -> Unsupported:
        return Unsupported(
            f"config.json: {name} is {short(repr(value))} in this {self.family} model; {why}"
        )

    def refuse_rest(self) -> None:
        for name in sorted(self._plain.keys() - self._taken - HARMLESS):
            value = self._plain[name]
            if value is None or value is False or value in ({}, []):
                continue
            raise self.refused(
                name, value, "attnlab does not know this field, which may change what it computes"
            )
