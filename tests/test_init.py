"""`attnlab.audit` and others are a module and a function at once, however they are imported."""

import importlib
import inspect

import pytest

import attnlab

FUNCTIONS = ["attention", "audit", "claim", "compare", "evaluate", "generate", "runs", "train"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_function_has_its_signature_and_is_listed(name):
    found = getattr(attnlab, name)
    assert callable(found) and name in dir(attnlab) and name in attnlab.__all__
    assert inspect.signature(found) == inspect.signature(attnlab._load(name))
    assert attnlab._load(name).__doc__, "every function is documented"


@pytest.mark.parametrize("name", sorted(attnlab._MODULES))
def test_a_module_of_the_same_name_stays_a_module(name):
    module = importlib.import_module(f"attnlab.{name}")
    assert getattr(attnlab, name) is module and inspect.ismodule(module)
    with pytest.raises(AttributeError, match="nonsense"):
        module.nonsense  # noqa: B018


def test_names_inside_of_such_a_module_are_found():
    import attnlab.audit.contract as contract

    assert attnlab.audit.contract is contract
    assert attnlab.audit.Certificate is contract.Certificate


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="trane"):
        attnlab.trane  # noqa: B018


def test_all_names_can_be_imported_with_a_star():
    names = {}
    exec("from attnlab import *", names)
    assert set(attnlab.__all__) <= set(names)
