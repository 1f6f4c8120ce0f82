"""Names as people write them."""

from attnlab import names


def test_an_abbreviation_keeps_its_capitals_wherever_it_stands():
    assert names.title("gqa-is-tied-mha") == "GQA is tied MHA"
    assert names.title("birnn-is-no-lm") == "BiRNN is no LM"
    assert names.title("positions-break-it") == "Positions break it"


def test_every_abbreviation_is_typed_in_small_letters():
    assert all(name == written.lower() for name, written in names.WRITTEN.items())
