"""Names that lead elsewhere: in run words, in manifests, in settings, in addresses of the page."""

from typing import Any

from attnlab.checks.hostile import acts
from attnlab.checks.hostile.forge import edited, write_manifest
from attnlab.checks.hostile.trial import (
    EITHER,
    RESUME,
    Family,
    Place,
    Plant,
    Trial,
    command,
    fill,
)

WORDS = {
    "a file above": "../victims/precious.txt",
    "a folder above": "../../../../../../etc",
    "a file by its whole path": "{victim}",
    "a folder by its whole path": "{victims}",
    "a checkpoint that is none": "{victims}/step_000002",
    "the root": "/",
    "the folder itself": ".",
    "nothing": "",
    "a blank": " ",
    "5,000 letters": "x" * 5_000,
    "300 folders": "x/" * 300,
    "ends of lines": "a\nerror: b\n",
    "half a letter": "\udcff\udcfe",
    "a home of nobody": "~nobody-at-all/run",
    "a pattern": "*",
    "a device": "/dev/zero",
}
ROUTES = {
    "a run above": "/api/runs/..%2f..%2fvictims%2fprecious.txt",
    "a run by its whole path": "/api/runs/%2f{victim}",
    "dots in a run's curve": "/api/runs/../../victims/curve",
    "NUL": "/api/runs/a%00b",
    "static above": "/static/..%2f..%2f..%2fvictims%2fprecious.txt",
    "static by its whole path": "/static/%2f{victim}",
    "static, dots without escapes": "/static/../../../../etc/hosts",
    "a report above": "/report/..%2fvictims",
    "a report by its whole path": "/report/%2f{victims}",
    "half a letter": "/report/%ff%fe",
    "a claim above": "/api/claims/..%2f..%2fvictims",
}


def listed(name: str) -> Plant:
    """The manifest of a checkpoint names a file elsewhere, with the right hash of it."""

    def plant(place: Place) -> None:
        import hashlib
        import json

        body = json.loads((place.checkpoint / "manifest.json").read_bytes())["body"]
        content = place.victim.read_bytes()
        known = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        body["files"][fill(name, place)] = known
        write_manifest(place.checkpoint, body)

    return plant


def setting(at: str, value: Any) -> Plant:
    """A setting of the run names a path."""

    def plant(place: Place) -> None:
        (place.run / "result.json").unlink()

        def edit(plain: Any) -> object:
            plain[at] = filled(value, place)
            return plain

        for name in ("config.json", "checkpoint/config.json"):
            edited(name, edit)(place)

    return plant


def filled(value: object, place: Place) -> object:
    if isinstance(value, dict):
        return {name: filled(one, place) for name, one in value.items()}
    return fill(value, place) if isinstance(value, str) else value


def shard_name(name: str) -> Plant:
    def plant(place: Place) -> None:
        index = place.copy("shards", "shards") / "index.json"
        index.write_text(index.read_text().replace("00000.tokens", fill(name, place)))

    return plant


def naive_run(place: Place) -> None:
    print((place.runs / "../victims/precious.txt").read_text())


def naive_listed(place: Place) -> None:
    """Reads whatever the manifest names."""
    import json

    body = json.loads((place.checkpoint / "manifest.json").read_bytes())["body"]
    for name in body["files"]:
        print((place.checkpoint / name).read_bytes()[-99:])


def naive_static(place: Place) -> None:
    """A server that joins what it is asked for."""
    from urllib.parse import unquote

    asked = unquote(fill(ROUTES["static by its whole path"], place)).removeprefix("/static/")
    print((place.folder / asked).read_text())


FAMILY = Family(
    name="paths",
    about="names that lead elsewhere",
    trials=[
        *(
            Trial(
                name=f"a run is {name}",
                plant=lambda place: place.run,
                act=command("generate", word, "--prompt", "x", "--runs", "runs"),
            )
            for name, word in WORDS.items()
        ),
        *(
            Trial(
                name=f"a run to resume is {name}",
                plant=lambda place: place.run,
                act=command("train", "tiny", "--runs", "runs", f"--resume={WORDS[name]}x"),
            )
            for name in ("a file above", "a folder by its whole path", "half a letter")
        ),
        *(
            Trial(name=f"a manifest lists {name}", plant=listed(name), act=RESUME, codes=EITHER)
            for name in ("../../../../victims/precious.txt", "{victim}", "a\0b", "x" * 300)
        ),
        *(
            Trial(
                name=f"a run starts from {name!r}",
                plant=setting("start", name),
                act=RESUME,
                codes=EITHER,
            )
            for name in ("../../victims", "{victims}/step_000002", "a\0b")
        ),
        *(
            Trial(
                name=f"a run's text is {name!r}",
                plant=setting("corpus", {"name": "text", "path": name, "validation": 0.1}),
                act=RESUME,
            )
            for name in ("{victim}", "/dev/zero", "a\0b", "x" * 5000)
        ),
        *(
            Trial(
                name=f"a shard is {name!r}",
                plant=shard_name(name),
                act=acts.open_shards,
                codes=EITHER,
            )
            for name in ("../victims/precious.txt", "{victim}", "00000.tokens/../../x")
        ),
        *(
            Trial(
                name=f"the page is asked for {name}",
                plant=lambda place: place.run,
                act=acts.page(path),
                codes=EITHER if "dots" in name else (2,),
            )
            for name, path in ROUTES.items()
        ),
        Trial(
            name="code to audit is 5,000 letters",
            plant=lambda place: place.run,
            act=command("audit", "x" * 5000 + ".py:X", "--timeout", "50"),
        ),
        Trial(
            name="code to audit is a text",
            plant=lambda place: place.run,
            act=command("audit", "{victim}:X", "--timeout", "50"),
        ),
        Trial(
            name="code to audit is a folder",
            plant=lambda place: place.run,
            act=command("audit", "{victims}:X", "--timeout", "50"),
        ),
        Trial(
            name="settings are a text",
            plant=lambda place: place.run,
            act=command("train", "tiny", "--config", "{victim}"),
        ),
        Trial(
            name="joining a run's name",
            plant=lambda place: place.run,
            act=naive_run,
            caught="leaked",
        ),
        Trial(
            name="reading what a manifest lists",
            plant=listed("../../../../victims/precious.txt"),
            act=naive_listed,
            caught="leaked",
        ),
        Trial(
            name="joining an address",
            plant=lambda place: place.run,
            act=naive_static,
            caught="leaked",
        ),
    ],
)
