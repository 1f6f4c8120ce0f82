"""The settings of a preparation: sizes, the share of validation, and what decides the bytes."""

import pytest

from attnlab import config
from attnlab.data.prepared.preparation import Preparation, size_of


@pytest.mark.parametrize(
    ("text", "size"),
    [("64MB", 64 * 10**6), ("1.5GiB", 3 * 2**29), ("7", 7), (" 2 kb ", 2000), ("1TB", 10**12)],
)
def test_sizes_are_read(text, size):
    assert size_of(text) == size


@pytest.mark.parametrize("text", ["", "MB", "0", "-1MB", "3 apples", "0.1B"])
def test_what_is_no_size_is_refused_by_name(text):
    with pytest.raises(ValueError, match="such as 64MB"):
        Preparation(sample=text)


def test_a_part_that_fills_the_memory_is_refused():
    with pytest.raises(ValueError, match="use 1GB or less"):
        Preparation(part="2GB")


def test_a_part_is_a_16th_of_a_small_source():
    sizes = {10: 10**6, 16 * 10**7: 10**7, 10**12: 64 * 10**6}
    for source, part in sizes.items():
        assert Preparation().part_of(source) == part
    assert Preparation(part="3KB").part_of(10**12) == 3000


def test_the_share_of_validation_is_by_the_document_alone():
    documents = [f"document {number}".encode() for number in range(20_000)]
    for share in (0.0, 0.01, 0.25):
        kept = [Preparation(validation=share).kept_apart(one) for one in documents]
        assert abs(sum(kept) / len(kept) - share) < 4 * (share / len(kept)) ** 0.5 + 1e-9
    few = {one for one in documents if Preparation(validation=0.01).kept_apart(one)}
    many = {one for one in documents if Preparation(validation=0.02).kept_apart(one)}
    assert few < many


def test_how_it_is_worked_does_not_decide_the_bytes():
    plain = Preparation().decides
    assert config.override(Preparation(), ["bad=skip", "workers=3"]).decides == plain
    for word in ("field=body", "part=1MB", "tokenizer=bytes", "tokenizer.vocabulary=300"):
        assert config.override(Preparation(), [word]).decides != plain
