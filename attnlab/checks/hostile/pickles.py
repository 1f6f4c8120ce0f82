"""Pickles in place of every file that is read: whoever unpickles one executes what it says."""

import json
import pickle
import zipfile
from collections.abc import Callable
from io import BytesIO

import numpy as np
import torch

from attnlab.checks.hostile import acts, forge
from attnlab.checks.hostile.trial import (
    EITHER,
    EVALUATE,
    GENERATE,
    LIST,
    RESUME,
    Act,
    Family,
    Place,
    Plant,
    Trial,
    command,
)

Gadget = Callable[[Place], bytes]


def reduce_system(place: Place) -> bytes:
    """Protocol 0: GLOBAL and REDUCE, as text."""
    return f"cposix\nsystem\n(S'touch {place.mark}'\ntR.".encode()


def instance(place: Place) -> bytes:
    """Protocol 0: INST calls a class with what is on the stack."""
    return f"(S'touch {place.mark}'\niposix\nsystem\n.".encode()


def objects(place: Place) -> bytes:
    """Protocol 1: OBJ."""
    return f"(cposix\nsystem\nS'touch {place.mark}'\no.".encode()


def stack_global(place: Place) -> bytes:
    """Protocol 4: STACK_GLOBAL, in a frame."""

    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return exec, (f"open({str(place.mark)!r}, 'w').close()",)

    return pickle.dumps(Evil(), protocol=4)


def popen(place: Place) -> bytes:
    """Protocol 2: a class is called, which starts a process."""
    return f"\x80\x02csubprocess\nPopen\n((lS'touch'\naS'{place.mark}'\natR.".encode("latin-1")


def memoized(place: Place) -> bytes:
    """Protocol 5, the call hidden deep in a dict of tensors, and the name put together."""
    hidden = stack_global(place)
    return pickle.dumps({"a": [1] * 100}, protocol=5)[:-1] + b"0" + hidden[2:]


GADGETS: dict[str, Gadget] = {
    "REDUCE": reduce_system,
    "INST": instance,
    "OBJ": objects,
    "STACK_GLOBAL": stack_global,
    "Popen": popen,
    "behind a dict": memoized,
}


def torch_zip(place: Place) -> bytes:
    """What torch.save writes, with a payload for its unpickler."""
    out = BytesIO()
    torch.save({"weight": torch.zeros(2)}, out)
    evil = BytesIO()
    with zipfile.ZipFile(out) as good, zipfile.ZipFile(evil, "w") as bad:
        for name in good.namelist():
            content = reduce_system(place) if name.endswith("data.pkl") else good.read(name)
            bad.writestr(name, content)
    return evil.getvalue()


def object_array(place: Place) -> bytes:
    """A .npy of objects, which NumPy would unpickle if it were allowed to."""
    head = BytesIO()
    np.lib.format.write_array_header_1_0(
        head, {"descr": "|O", "fortran_order": False, "shape": (1,)}
    )
    return head.getvalue() + reduce_system(place)


def instead_of(name: str, made: Gadget) -> Plant:
    """A file of the run is a pickle; where a manifest has its hash, it has that of the pickle."""

    def plant(place: Place) -> None:
        (place.run / forge.path_in(place, name)).write_bytes(made(place))
        forge.seal(place.checkpoint)

    return plant


# every file of a run, the verb that reads it, and the gadget that waits there
RUN_FILES: list[tuple[str, Act, str]] = [
    ("checkpoint/model.safetensors", GENERATE, "REDUCE"),
    ("checkpoint/model.safetensors", RESUME, "STACK_GLOBAL"),
    ("checkpoint/optimiser.safetensors", RESUME, "INST"),
    ("checkpoint/config.json", GENERATE, "OBJ"),
    ("checkpoint/tokenizer.json", GENERATE, "Popen"),
    ("checkpoint/state.json", RESUME, "behind a dict"),
    ("checkpoint/manifest.json", EVALUATE, "REDUCE"),
    ("config.json", RESUME, "STACK_GLOBAL"),
    ("config.json", LIST, "INST"),
    ("manifest.json", RESUME, "OBJ"),
    ("metrics.jsonl", LIST, "Popen"),
    ("eval.jsonl", GENERATE, "behind a dict"),
    ("result.json", LIST, "REDUCE"),
    ("samples.jsonl", acts.page("/api/runs/20200101-000000-tiny-abcdef"), "STACK_GLOBAL"),
]


def _elsewhere(name: str) -> Plant:
    return lambda place: place.write(name, reduce_system(place))


def _model_folder(place: Place) -> None:
    """A folder of transformers with weights as a pickle, and code that it asks to be run."""
    place.write("model/pytorch_model.bin", torch_zip(place))
    about = {"model_type": "gpt2", "auto_map": {"AutoModelForCausalLM": "evil.Model"}}
    place.write("model/config.json", json.dumps(about))
    place.write("model/evil.py", f"open({str(place.mark)!r}, 'w').close()\n")


def _model_folder_with_tensors(place: Place) -> None:
    _model_folder(place)
    place.write("model/model.safetensors", torch_zip(place))


def _foreign_architecture(place: Place) -> None:
    _model_folder_with_tensors(place)
    about = {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Config"}}
    place.write("model/config.json", json.dumps(about))


AUDIT_FOLDER = command("audit", "hf:model", "--timeout", "50")
CODE = "import torch\nclass Plain(torch.nn.Module):\n    pass\n"
FAMILY = Family(
    name="pickles",
    about="unpickled by a file that we read",
    trials=[
        *(
            Trial(
                name=f"{gadget} as {name}, {n}",
                plant=instead_of(name, GADGETS[gadget]),
                act=act,
                codes=EITHER,
            )
            for n, (name, act, gadget) in enumerate(RUN_FILES)
        ),
        Trial(
            name="torch.save as model.safetensors",
            plant=instead_of("checkpoint/model.safetensors", torch_zip),
            act=GENERATE,
        ),
        Trial(
            name="an object array as model.safetensors",
            plant=instead_of("checkpoint/model.safetensors", object_array),
            act=GENERATE,
        ),
        Trial(
            name="an object array as a shard",
            plant=lambda place: (place.copy("shards", "shards") / "00000.tokens").write_bytes(
                object_array(place)
            ),
            act=acts.open_shards,
            codes=EITHER,
        ),
        Trial(
            name="as the index of shards",
            plant=lambda place: (place.copy("shards", "shards") / "index.json").write_bytes(
                reduce_system(place)
            ),
            act=acts.open_shards,
            codes=EITHER,
        ),
        Trial(
            name="as the result of a job",
            plant=lambda place: acts.damaged_part(place, reduce_system(place)),
            act=acts.use_workspace,
            codes=EITHER,
        ),
        Trial(
            name="as --contract",
            plant=_elsewhere("contract.json"),
            act=command("audit", "x.py:X", "--contract", "contract.json"),
        ),
        Trial(
            name="as --config",
            plant=_elsewhere("config.json"),
            act=command("train", "tiny", "--config", "config.json"),
        ),
        Trial(
            name="as rows of a sweep",
            plant=lambda place: (
                place.write("list.txt", "x.py:X\n"),
                place.write("rows.jsonl", reduce_system(place) + b"\n"),
            ),
            act=command("audit", "@list.txt", "--out", "rows.jsonl", "--resume"),
        ),
        Trial(
            name="as text to train on",
            plant=_elsewhere("text.txt"),
            act=command("train", "tiny", "data=text.txt", "steps=1", "device=cpu"),
            codes=EITHER,
        ),
        Trial(
            name="as the record of claims",
            plant=_elsewhere("docs/theory/outcomes.json"),
            act=acts.read_record,
        ),
        Trial(name="weights of a model's folder", plant=_model_folder, act=AUDIT_FOLDER),
        Trial(
            name="weights of a model's folder, named safetensors",
            plant=_model_folder_with_tensors,
            act=AUDIT_FOLDER,
        ),
        Trial(
            name="a model's folder that brings its code",
            plant=_foreign_architecture,
            act=AUDIT_FOLDER,
        ),
        *(
            Trial(
                name=f"unpickled: {name}",
                plant=instead_of("checkpoint/model.safetensors", gadget),
                act=lambda place: pickle.loads(
                    (place.checkpoint / "model.safetensors").read_bytes()
                ),
                caught="executed",
            )
            for name, gadget in GADGETS.items()
        ),
        Trial(
            name="torch.load without weights_only",
            plant=lambda place: place.write("weights.pt", torch_zip(place)),
            act=lambda place: torch.load(place.folder / "weights.pt", weights_only=False),
            caught="executed",
        ),
        Trial(
            name="numpy.load with allow_pickle",
            plant=lambda place: place.write("shard.npy", object_array(place)),
            act=lambda place: np.load(place.folder / "shard.npy", allow_pickle=True),
            caught="executed",
        ),
    ],
)
