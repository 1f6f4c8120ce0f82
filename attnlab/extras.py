"""Packages that are only needed for some things: which extra of attnlab brings each."""

EXTRAS = {
    "local-attention": "peers",
    "matplotlib": "plots",
    "pyarrow": "data",
    "ray": "ray",
    "starlette": "web",
    "tensorboard": "track",
    "tokenizers": "hf",
    "transformers": "hf",
    "uvicorn": "web",
}


def missing(package: str, what: str) -> str:
    """What to say where a package is not installed; `what` is that which needs it."""
    return f"{what} needs {package}: pip install 'attnlab[{EXTRAS[package]}]'"
