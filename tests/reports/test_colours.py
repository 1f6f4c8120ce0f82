"""One name, one colour, in all plots of a report."""

import re

from reports.samples import line, plot

from attnlab.reports import downloads
from attnlab.reports.colours import NEUTRAL, PALETTE, assign, numbers
from attnlab.reports.html import as_html
from attnlab.reports.report import Report, Section, Series


def bars(*names):
    return plot(Series(name="accuracy", x=list(names), y=[1.0] * len(names)), kind="bars")


def of(*blocks):
    sections = [Section(heading="h", blocks=blocks)]
    return Report(title="t", question="q", answer="a", sections=sections)


def test_a_variant_has_one_colour_whatever_the_order_in_a_plot():
    found = of(plot(line("a"), line("b"), line("c")), plot(line("c"), line("a"), kind="points"))
    colours = assign(found.blocks)
    assert colours == {"a": 0, "b": 1, "c": 2}
    assert numbers(found.blocks[1], colours) == [2, 0]
    drawings = re.findall(r"<svg.*?</svg>", as_html(found), re.DOTALL)
    drawings += [
        file.content.decode() for one in downloads.make(found).values() for file in one[:1]
    ]
    for second in drawings[1::2]:
        assert PALETTE[2] in second and PALETTE[0] in second and PALETTE[1] not in second


def test_bars_of_variants_have_their_colours_and_others_are_neutral():
    found = of(bars("most frequent", "b", "a"), plot(line("a"), line("b")))
    assert assign(found.blocks) == {"a": 0, "b": 1}, "the measure is no variant"
    drawn = re.findall(r"<svg.*?</svg>", as_html(found), re.DOTALL)[0]
    order = re.findall("|".join([NEUTRAL, *PALETTE]), drawn)
    assert list(dict.fromkeys(order)) == [NEUTRAL, PALETTE[1], PALETTE[0]]


def test_in_one_plot_no_two_of_up_to_six_share_a_colour():
    """Though the report has more names than colours."""
    names = [f"n{number}" for number in range(17)]
    together = [names[at : at + 5] for at in range(0, 17, 3)]
    together.append(names[::6])  # as they come up, these would have one colour
    found = of(*(plot(*map(line, several)) for several in together))
    colours = assign(found.blocks)
    assert len(set(colours.values())) == len(colours) == 17
    for one in found.blocks:
        taken = [number % len(PALETTE) for number in numbers(one, colours)]
        assert len(set(taken)) == len(taken)


def test_series_without_a_name_take_what_is_left():
    assert numbers(plot(line(""), line("b")), {"b": 0}) == [1, 0]
