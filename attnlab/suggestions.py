"""What a person may have meant by a name that there is not."""

import difflib
from collections.abc import Sequence

# Words of the field for what has another name here.
SYNONYMS = {
    "rope": "rotary",
    "gqa": "grouped",
    "mqa": "multi_query",
    "mha": "multi_head",
    "lr": "rate",
    "learning_rate": "rate",
    "batch_size": "batch",
    "block_size": "context",
    "max_len": "context",
    "seq_len": "context",
    "layers": "depth",
    "n_layer": "depth",
    "n_layers": "depth",
    "num_layers": "depth",
    "n_head": "heads",
    "n_heads": "heads",
    "num_heads": "heads",
    "d_model": "width",
    "n_embd": "width",
    "hidden_size": "width",
    "vocab_size": "vocabulary",
    "gpu": "cuda",
}
CLOSE, TIE = 0.6, 0.05  # likeness of two names, and a difference in it that is none


def suggest(wrong: str, right: Sequence[str], inside: Sequence[str] = ()) -> str:
    """The end of an error message: the closest valid names, else all of them.

    `inside` are names that are not listed, but suggested to whoever writes their last part.
    """
    near = nearest(wrong, right, inside)
    if near:
        return f"did you mean {' or '.join(map(repr, near))}?"
    return f"choose from {', '.join(right)}"


def nearest(
    wrong: str, right: Sequence[str], inside: Sequence[str] = (), *, close: float = CLOSE
) -> list[str]:
    """The valid names that may be meant: at most three, often none."""
    meant = {_last(wrong), SYNONYMS.get(_last(wrong), _last(wrong))}
    near = [one for one in [*right, *inside] if _last(one) in meant]
    near = near or [one for one in right if not meant.isdisjoint(_last(one).split("_"))]
    if not near:
        like = {one: _likeness(_last(wrong), _last(one)) for one in right}
        best = max(like.values(), default=0)
        near = [one for one in right if best >= close and like[one] > best - TIE]
    return list(dict.fromkeys(near))[:3]


def _likeness(one: str, other: str) -> float:
    """From 0 to 1; letters in another order are a slip of the fingers, and a beginning counts."""
    if sorted(one) == sorted(other):
        return 0.9
    ratio = difflib.SequenceMatcher(None, one, other).ratio()
    ratio -= TIE * (one[:1] != other[:1])  # hardly anybody gets the first letter wrong
    return max(ratio, CLOSE) if one[:3] == other[:3] else ratio


def _last(name: str) -> str:
    return name.rpartition(".")[2].replace("-", "_").lower()
