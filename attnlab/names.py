"""Names as people write them: GQA, RoPE, BiRNN. The names that one types have small letters."""

WRITTEN = {
    "alibi": "ALiBi",
    "birnn": "BiRNN",
    "bpe": "BPE",
    "elman": "Elman",
    "gpt": "GPT",
    "gqa": "GQA",
    "kv": "KV",
    "lm": "LM",
    "mha": "MHA",
    "mqa": "MQA",
    "relu": "ReLU",
    "rnn": "RNN",
    "rope": "RoPE",
}


def title(name: str) -> str:
    """A name of the registry as a heading: "gqa-is-tied-mha" gives "GQA is tied MHA"."""
    words = [WRITTEN.get(word, word) for word in name.split("-")]
    first = words[0] if words[0] in WRITTEN.values() else words[0][:1].upper() + words[0][1:]
    return " ".join([first, *words[1:]])
