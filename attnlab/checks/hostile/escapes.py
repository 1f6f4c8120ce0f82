"""Control characters in names and texts: none of them reaches a terminal."""

from attnlab.checks.hostile.forge import content_of, edited
from attnlab.checks.hostile.trial import (
    EITHER,
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

TITLE = "\x1b]0;owned\x07"  # names the window
CLIPBOARD = "\x1b]52;c;cm0gLXJmIH4=\x07"
ANSWER = "\x1b[6n"  # the terminal types an answer
CLEAR = "\x1b[2J\x1b[H"
EIGHT_BIT = "\u009b31m\u009d0;owned\u009c"
DEVICE = "\x1bP+q544e\x1b\\"
RETURN = "bad\rgood"
RING = "\x07\x08\x08\x08"
AUDIT = command("audit", "code.py:Code", "--timeout", "50")


def run_named(text: str) -> Plant:
    return lambda place: place.run.rename(place.runs / f"20200101-000000-tiny{text}-abcdef")


def alphabet(text: str) -> Plant:
    """A model all of whose letters are control characters, but those of the prompt."""

    def plant(place: Place) -> None:
        def edit(plain: dict[str, list[str]]) -> dict[str, list[str]]:
            kept = [one for one in plain["alphabet"] if one in "Where"]
            strange = [chr(n) for n in (*range(32), *range(127, 160)) if chr(n) in text]
            strange += [chr(n) for n in (*range(1, 9), *range(14, 32), *range(127, 160))]
            strange += [chr(n) for n in range(0x4E00, 0x4F00)]
            many = list(dict.fromkeys([*kept, *strange]))[: len(plain["alphabet"])]
            return {**plain, "alphabet": many}

        edited("checkpoint/tokenizer.json", edit)(place)

    return plant


def code(text: str) -> Plant:
    return lambda place: place.write("code.py", text)


def setting(text: str) -> Plant:
    return content_of("config.json", f'{{"model": {{"name": {as_json(text)}}}}}'.encode())


def as_json(text: str) -> str:
    return '"' + "".join(f"\\u{ord(letter):04x}" for letter in text) + '"'


def checkpoint_named(place: Place) -> None:
    place.checkpoint.rename(place.checkpoint.with_name("step_000009"))
    place.run.rename(place.runs / f"20200101-000000-tiny{TITLE}-abcdef")


def on_terminal(name: str, plant: Plant, act: Act, codes: tuple[int, ...] = EITHER) -> Trial:
    several = name == "a target in a list"
    return Trial(name=name, plant=plant, act=act, codes=codes, terminal=True, verdicts=several)


def naive(place: Place) -> None:
    for path in place.runs.iterdir():
        print(path.name)


LONG = command("generate", "{run}", "--prompt", "Where", "--tokens", "60", "--device", "cpu")
SEVERAL = command(
    "generate", "{run}", "--prompt", "Where", "--prompt", "here", "--tokens", "60", "--device",
    "cpu",
)  # fmt: skip
RAISES = "import torch\nclass Code(torch.nn.Module):\n    def forward(self, x):\n        raise "
PRINTS = "import os\nprint({text!r}, flush=True)\nos._exit(3)\n"
FAMILY = Family(
    name="escapes",
    about="control characters on the terminal",
    trials=[
        *(
            on_terminal(f"the name of a run in a list, {n}", run_named(text), LIST)
            for n, text in enumerate((TITLE, CLIPBOARD, EIGHT_BIT, CLEAR, RETURN))
        ),
        *(
            on_terminal(
                f"a run that is not there, {n}",
                lambda place: place.run,
                command("generate", f"none{text}", "--prompt", "x", "--runs", "runs"),
            )
            for n, text in enumerate((ANSWER, DEVICE, EIGHT_BIT, RING))
        ),
        on_terminal("what a model writes", alphabet(TITLE), LONG),
        on_terminal("what a model writes to two prompts", alphabet(ANSWER), SEVERAL),
        on_terminal(
            "a letter that the model does not know",
            lambda place: place.run,
            command("generate", "{run}", "--prompt", TITLE, "--device", "cpu"),
        ),
        on_terminal("a setting of a run", setting(TITLE), RESUME),
        on_terminal("a setting of a run in eight bits", setting(EIGHT_BIT), RESUME),
        on_terminal(
            "the name of a broken checkpoint's run",
            checkpoint_named,
            command("generate", "tiny" + TITLE, "--prompt", "Where", "--runs", "runs"),
        ),
        on_terminal(
            "the name of a checkpoint's tensor",
            content_of(
                "checkpoint/model.safetensors",
                b'\x52\0\0\0\0\0\0\0{"\\u001b]0;owned\\u0007":'
                b'{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}             \0\0\0\0',
            ),
            GENERATE,
        ),
        on_terminal(
            "a name on the command line",
            lambda place: place.run,
            command("train", "tiny", f"mod{ANSWER}el=3"),
        ),
        on_terminal("an unknown preset", lambda place: place.run, command("train", f"x{TITLE}")),
        on_terminal(
            "a text that is not there",
            lambda place: place.run,
            command("train", "tiny", f"data=x{CLIPBOARD}", "steps=1"),
        ),
        on_terminal(
            "the resumed run's path",
            run_named(CLEAR),
            command("train", "tiny", "--runs", "runs", "--resume", "steps=2", "device=cpu"),
        ),
        on_terminal(
            "a contract's key",
            lambda place: place.write("given.json", f"{{{as_json(TITLE)}: 1}}"),
            command("audit", "x.py:X", "--contract", "given.json"),
        ),
        on_terminal("what audited code raises", code(f"{RAISES}ValueError({TITLE!r})\n"), AUDIT),
        on_terminal(
            "what audited code prints before it dies", code(PRINTS.format(text=CLIPBOARD)), AUDIT
        ),
        on_terminal(
            "the name of what is audited",
            lambda place: place.run,
            command("audit", f"x{TITLE}.py:X", "--timeout", "50"),
        ),
        on_terminal(
            "a target in a list",
            lambda place: place.write("list.txt", f"x{ANSWER}.py:X\n"),
            command("audit", "@list.txt", "--timeout", "50"),
        ),
        Trial(
            name="printing a name",
            plant=run_named(TITLE),
            act=naive,
            terminal=True,
            caught="escaped",
        ),
        Trial(
            name="printing what a model writes",
            plant=alphabet(TITLE),
            act=lambda place: print(
                (place.checkpoint / "tokenizer.json").read_text().encode().decode("unicode_escape")
            ),
            terminal=True,
            caught="escaped",
        ),
    ],
)
