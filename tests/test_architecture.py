"""The tree keeps its shape: imports point down, files stay short, the core needs few packages."""

import ast
import importlib.util
import re
import sys
from pathlib import Path

import pytest

from attnlab import registry

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "attnlab").rglob("*.py"))

# from the bottom up; a module may import from its own layer and the ones below
LAYERS = [
    [
        *(
            "attnlab",
            "attnlab.registry",
            "attnlab.registry_causes",
            "attnlab.files",
            "attnlab.json_files",
        ),
        *("attnlab.compat", "attnlab.extras", "attnlab.memory", "attnlab.suggestions"),
        *("attnlab.counter_rng", "attnlab.finite", "attnlab.statistics"),
        *("attnlab.stop", "attnlab.printable", "attnlab.names", "attnlab.screen"),
        *("attnlab.command", "attnlab.errors", "attnlab.cluster"),
    ],
    ["attnlab.config"],
    ["attnlab.code"],
    ["attnlab.reports"],
    ["attnlab.kernels"],
    ["attnlab.attention", "attnlab.data"],
    ["attnlab.models"],
    ["attnlab.interop"],  # folders of transformers as settings, weights and tokenizers of ours
    ["attnlab.generate"],
    ["attnlab.evaluate"],
    ["attnlab.training"],
    ["attnlab.interop.parity", "attnlab.interop.card", "attnlab.integrations"],
    ["attnlab.interop.streaming"],
    ["attnlab.interop.exporting"],
    ["attnlab.interop.importing", "attnlab.interop.converting"],
    ["attnlab.presets", "attnlab.checks"],
    ["attnlab.bench"],
    ["attnlab.experiments", "attnlab.checks.cached", "attnlab.checks.corruption"],
    ["attnlab.studies", "attnlab.compare"],
    ["attnlab.theory", "attnlab.audit", "attnlab.checks.audit"],
    ["attnlab.doctor"],
    [
        "attnlab.bench.cluster",
        "attnlab.checks.statistics",
        "attnlab.checks.machines",
        "attnlab.checks.doctor",
    ],
    ["attnlab.page", "attnlab.checks.fuzz", "attnlab.checks.hostile", "attnlab.checks.strangers"],
    ["attnlab.api"],
    ["attnlab.cli"],
    ["attnlab.__main__"],
]
# names for type checkers only: `attnlab.train` is loaded when it is used
FRONT = ("attnlab", "attnlab.api.")
STANDARD_LIBRARY = sys.stdlib_module_names | {"annotationlib"}  # from Python 3.14 on
CORE = {"torch", "numpy", "safetensors", "jaxtyping", "rich", "typer"}
STANDARD_LIBRARY_ONLY = (
    *("attnlab.registry", "attnlab.config", "attnlab.files", "attnlab.json_files"),
    *("attnlab.stop", "attnlab.printable", "attnlab.names", "attnlab.command", "attnlab.errors"),
    *("attnlab.extras", "attnlab.suggestions"),
)
# each imported where it is used
EXTRAS = {
    "flax": {"attnlab.audit.subject.jax_code"},
    "h11": {"attnlab.page.connections"},
    "jax": {"attnlab.audit.subject.jax_code"},
    "local_attention": {"attnlab.bench.window"},
    "matplotlib": {"attnlab.reports.plots"},
    "pyarrow": {"attnlab.data.prepared.columns"},
    "ray": {"attnlab.cluster"},
    "triton": {"attnlab.kernels.triton.engine"},
    "starlette": {"attnlab.page.routes", "attnlab.page.server"},
    "tokenizers": {"attnlab.data.bpe"},
    "transformers": {
        "attnlab.audit.plugins.callback",
        "attnlab.bench.generate",
        "attnlab.audit.hf.families",
        "attnlab.audit.hf.models",
        "attnlab.audit.hf.running",
        "attnlab.audit.hf.sizes",
        "attnlab.audit.hf.stage",
        "attnlab.interop.proof",
        "attnlab.bench.transformers",
        "attnlab.integrations.mask_terms",
        "attnlab.integrations.transformers",
    },
    "uvicorn": {"attnlab.page.connections", "attnlab.page.server"},
}
# loaded by the package itself: a plugin, and a file that stands in exported folders
PLUGINS = {"pytest": "attnlab.audit.plugins.pytest_plugin"}
PLUGINS |= {"transformers": "attnlab.interop.modeling_attnlab"}
# Triton compiles functions of modules, so these import it at their top, and are loaded when used
KERNELS = {f"attnlab.kernels.triton.{name}" for name in ("parts", "forward", "backward", "launch")}


def module_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer_of(module):
    best = max(
        (
            (len(name), level)
            for level, names in enumerate(LAYERS)
            for name in names
            if module == name or (module.startswith(name + ".") and name != "attnlab")
        ),
        default=None,
    )
    assert best is not None, f"{module} belongs to no layer: add it to LAYERS"
    return best[1]


def imports_of(path, top_level=False):
    tree = ast.parse(path.read_text())
    for node in tree.body if top_level else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            submodules = [f"{node.module}.{alias.name}" for alias in node.names]
            files = [ROOT / Path(*name.split(".")) for name in submodules]
            found = [
                n
                for n, f in zip(submodules, files, strict=True)
                if f.with_suffix(".py").exists() or (f / "__init__.py").exists()
            ]
            yield from found or [node.module]


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_imports_point_down(path):
    module = module_of(path)
    for imported in imports_of(path):
        if imported.split(".")[0] == "attnlab" and not (
            module == FRONT[0] and imported.startswith(FRONT[1])
        ):
            assert layer_of(imported) <= layer_of(module), f"{module} imports {imported}"


# who asks a question of its own does not use the answers of the other
APART = [("attnlab.studies", "attnlab.compare"), ("attnlab.theory", "attnlab.compare")]


@pytest.mark.parametrize(("one", "other"), APART)
def test_peers_share_the_engine_and_not_each_other(one, other):
    for path in FILES:
        module = module_of(path)
        for mine, theirs in ((one, other), (other, one)):
            if module.startswith(mine):
                assert not any(name.startswith(theirs) for name in imports_of(path)), module


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_the_core_imports_only_what_every_machine_has(path):
    module = module_of(path)
    for imported in imports_of(path):
        package = imported.split(".")[0]
        if package == "attnlab" or package in STANDARD_LIBRARY:
            continue
        assert not module.startswith(STANDARD_LIBRARY_ONLY), f"{module} imports {package}"
        if package == "triton" and module in KERNELS:
            continue
        known = package in CORE or module in EXTRAS.get(package, ())
        assert known or PLUGINS.get(package) == module, f"{module} imports {package}"
        if package in EXTRAS and PLUGINS.get(package) != module:
            assert imported not in imports_of(path, top_level=True)


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_kernels_of_triton_are_loaded_when_they_are_used(path):
    """Their modules import Triton, which a machine without a GPU need not have."""
    if module_of(path) not in KERNELS:
        assert not KERNELS & set(imports_of(path, top_level=True))


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_what_ships_patches_nothing(path):
    """A mock replaces code in the whole process, of other threads too."""
    assert not any(name.split(".")[0] == "unittest" for name in imports_of(path))


# what opens, writes or removes a file, by whatever module it comes from
OPENERS = {
    *("open", "fdopen", "read_text", "read_bytes", "write_text", "write_bytes", "mkdir"),
    *("rmtree", "copytree", "copyfile", "memmap", "fromfile", "tofile", "open_memmap"),
    *("load_file", "save_file", "safe_open", "load_model", "save_model"),
}
LOADERS = {"np": {"load", "save", "savez"}, "numpy": {"load", "save"}, "torch": {"load", "save"}}
# with files of runs, studies and comparisons
ROOMS = ("training", "experiments", "studies", "compare", "data", "page", "audit/rows.py")
# neither follows a link of a stranger's folder: of the machine, or a file that a person named
ELSEWHERE = {
    "training/weights.py": 1,  # the memory that a container may take
    "training/launch.py": 1,  # --config FILE
    "training/report.py": 2,  # TensorBoard's own writer, in a folder that is no link
    "training/checkpoint.py": 1,  # a new folder, under a name of our own
    "experiments/worker.py": 1,  # its own standard output
    "studies/rope_gqa/flawed.py": 1,  # the memory of this process
    "data/corpora.py": 1,  # the text that a person named, or the run that was trained on it
    "data/shards.py": 1,  # maps a file that attnlab.files has opened
    "page/redirect.py": 2,  # its own temporary folder
    "page/routes.py": 1,  # the page's own scripts and styles
    "audit/rows.py": 2,  # --out FILE
}


def opened_in(tree):
    """Names in a module that open files; of a method it does not matter whose."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    ours = {a.name for node in imports for a in node.names if node.module.startswith("attnlab.")}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            whose = ast.unparse(node.value)
            loads = node.attr in LOADERS.get(whose, ()) or whose == "shutil"
            if whose != "files" and (loads or node.attr in OPENERS):
                yield f"{whose}.{node.attr}"
        elif isinstance(node, ast.Name) and node.id in OPENERS and node.id not in ours:
            yield node.id


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("open('x')", ["open"]),
        ("(a / 'x').open('rb')", ["a / 'x'.open"]),
        ("map(Path.read_text, paths)", ["Path.read_text"]),
        ("shutil.move(a, b)", ["shutil.move"]),
        ("from shutil import rmtree\nrmtree(a)", ["rmtree"]),
        ("np.load(a), np.memmap(a), torch.load(a)", ["np.load", "np.memmap", "torch.load"]),
        ("safetensors.torch.save_file(a, b)", ["safetensors.torch.save_file"]),
        ("from attnlab.data.corpora import read_text\nread_text(a)", []),
        ("safetensors.torch.save(a), files.read(b), json.load(c)", []),  # in memory, or ours
    ],
)
def test_what_opens_a_file_is_seen(code, found):
    assert sorted(opened_in(ast.parse(code))) == sorted(found)


def test_files_of_runs_are_opened_in_one_place():
    for room in ROOMS:
        place = ROOT / "attnlab" / room
        for path in [place] if place.is_file() else sorted(place.rglob("*.py")):
            names = list(opened_in(ast.parse(path.read_text())))
            allowed = ELSEWHERE.get(path.relative_to(ROOT / "attnlab").as_posix(), 0)
            advice = "use attnlab.files, which follows no links and names path and bytes"
            assert len(names) <= allowed, f"{path}: {', '.join(names)}; {advice}"


def test_files_stay_short():
    for path in [*FILES, *(ROOT / "tests").rglob("*.py"), *(ROOT / "attnlab").rglob("*.[ch]")]:
        lines = len(path.read_text().splitlines())
        limit = 600 if "kernels" in path.parts else 500
        assert lines <= limit, f"{path.name} has {lines} lines; split it at {limit}"


def test_every_module_says_what_it_is():
    for path in FILES:
        assert ast.get_docstring(ast.parse(path.read_text())), f"{path} has no docstring"


def test_the_map_shows_every_file_with_its_first_sentence():
    """By path: a file that moves to another folder makes the page stale."""
    spec = importlib.util.spec_from_file_location("docs_map", ROOT / "docs" / "map.py")
    drawing = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(drawing)
    page = (ROOT / "docs" / "map.md").read_text()
    assert drawing.written(page) == page, "run `python docs/map.py`"
    properties = {re.sub(r"\W", "_", one.name) for one in registry.options("property")}
    for path in FILES:
        listed = path.parent.name == "properties" and path.stem in properties
        if path.name != "__init__.py" and not listed:
            assert re.search(rf"^ +{re.escape(path.name)} +\S", page, re.MULTILINE), path


def test_no_path_of_one_machine_is_in_the_tree():
    home = re.compile(r"/(?:work|root|home/\w+)/")
    for pattern in ("*.py", "*.md", "*.toml", "Makefile", "*.txt"):
        for path in ROOT.rglob(pattern):
            if ".venv" not in path.parts and path.name != Path(__file__).name:
                assert not home.search(path.read_text()), path
