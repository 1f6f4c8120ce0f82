"""The proof in a process of its own: what `transformers` computes with a folder, against a request.

It imports nothing of ours: `python -P proof.py FOLDER REQUEST`, with a request.json and a
request.safetensors in REQUEST, whose logits and texts a model of ours has computed in float64. The
answer is JSON on the last line of the output.

In float64 throughout: the library's norms, softmaxes and rotations ask for float32 by name, and
meanwhile the name means float64. So what is compared is the function, not the rounding; how far the
model is off as it is, in float32, is told besides.
"""

import importlib.util
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch.overrides import TorchFunctionMode


class Float64(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> object:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        if kwargs.get("dtype") is torch.float32:
            kwargs["dtype"] = torch.float64
        args = tuple(torch.float64 if one is torch.float32 else one for one in args)
        return func(*args, **kwargs)


def load(folder: str, trust: bool, dtype: torch.dtype) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager", trust_remote_code=trust
    )
    return model.eval()


def largest(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest difference, of the largest number."""
    return float((found.double() - wanted).abs().max() / wanted.abs().max())


def generate(model: Any, rows: list[list[int]], count: int, use_cache: bool) -> list[list[int]]:
    """Greedy; rows of different lengths are padded on the left."""
    from transformers import GenerationConfig

    longest = max(map(len, rows))
    tokens = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    # nothing of the folder's own wishes, such as where to stop
    model.generation_config = GenerationConfig(
        do_sample=False, max_new_tokens=count, use_cache=use_cache, pad_token_id=0
    )
    found = model.generate(input_ids=tokens, attention_mask=mask)
    texts: list[list[int]] = found[:, longest:].tolist()
    return texts


def disagreement(folder: str, texts: list[dict[str, Any]], trust: bool) -> str | None:
    """A token or text of which AutoTokenizer makes something else; None: there is none.

    `ids` are None where a text cannot be encoded; `marked` are those of a prompt.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    loaded = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust)
    # alone; the other adds what tokenizer_config.json names
    written = PreTrainedTokenizerFast(tokenizer_file=str(Path(folder) / "tokenizer.json"))
    other = loaded.get_vocab().items() ^ written.get_vocab().items()
    if other:
        return min(word for word, _ in other)
    for one in texts:
        try:
            ids = loaded(one["text"], add_special_tokens=False).input_ids
            same = ids == one["ids"] and loaded(one["text"]).input_ids == one["marked"]
            back = loaded.decode(ids, clean_up_tokenization_spaces=False)
            same = same and back == one["back"]
        except Exception:  # the package raises nothing more special for what it cannot encode
            same = one["ids"] is None
        if not same:
            found: str = one["text"]
            return found
    return None


def register(path: str) -> None:
    """The model type of a modelling file that is not in the folder."""
    from transformers import AutoConfig, AutoModelForCausalLM

    spec = importlib.util.spec_from_file_location("modeling_attnlab", path)
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    AutoConfig.register("attnlab", found.AttnlabConfig)
    AutoModelForCausalLM.register(found.AttnlabConfig, found.AttnlabForCausalLM)


@torch.no_grad()
def prove(folder: str, request: dict[str, Any], wanted: dict[str, torch.Tensor]) -> dict[str, Any]:
    import transformers

    transformers.utils.logging.set_verbosity_error()
    trust, count = request["trust"], request["count"]
    if request["code"] is not None:
        register(request["code"])
    made: dict[str, Any] = {
        "transformers": transformers.__version__,
        "tokenizer": None,
        "other_text": None,
    }
    if request["texts"]:
        made["other_text"] = disagreement(folder, request["texts"], trust)
        made["tokenizer"] = made["other_text"] is None
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    with Float64():
        model = load(folder, trust, torch.float64)
        made["class"] = type(model).__name__
        made["logits"] = largest(model(wanted["tokens"]).logits, wanted["logits"])
        rows = request["prompts"]
        answers = {
            "cached": [generate(model, [row], count, True)[0] for row in rows],
            "uncached": [generate(model, [row], count, False)[0] for row in rows[:1]],
            "left padded": generate(model, rows, count, True),
        }
    for name, found in answers.items():
        made[name] = found == request["answers"][: len(found)]
    torch.set_default_dtype(default)
    plain = load(folder, trust, torch.float32)
    made["float32"] = largest(plain(wanted["tokens"]).logits, wanted["logits"])
    return made


def end_with_parent() -> None:
    """Once the input ends, which a parent that is killed can no longer keep open."""

    def wait() -> None:
        os.read(0, 1)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    end_with_parent()
    here = Path(sys.argv[2])
    answer = prove(
        sys.argv[1],
        json.loads((here / "request.json").read_text()),
        load_file(here / "request.safetensors"),
    )
    print(json.dumps(answer))
