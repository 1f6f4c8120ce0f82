"""The words that biographies are made of: invented names and places, and sentences around a value.

`TEMPLATES[attribute]` are sentences with `{}` where the value stands. The first values of a list
are the common ones.
"""

ATTRIBUTES = ("birthplace", "profession", "birth year", "university", "employer", "hobby")


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _combine(beginnings: str, endings: str) -> tuple[str, ...]:
    return tuple(first + last for first in _words(beginnings) for last in _words(endings))


GIVEN = _combine(
    "Al Bren Cor Dar El Fen Gal Hel Is Jor Kel Lor Mar Ner Or Per Quin Ros Sel Tor Ul Ver Wil Yor",
    "a an eth ia in is o on us wen",
)
FAMILY = _combine(
    "Ash Bar Cald Dor Ever Fal Gran Hart Iv Jas Karr Lind Morr Nor Oak Pell Rav Storm Thorn Und "
    "Vask West Yarr Zell",
    "ane beck by dell er feld ham ick ley man nall or own ridge sen son stad ton vale wick",
)
VALUES = {
    "birthplace": _words(
        "Velmora Karsten Ombria Tallis Norvik Elstow Brava Quillon Sandor Mirefall Pelago Astren "
        "Dunmere Corvale Hollin Zarith Lunden Ferros Oriel Wexmoor Tamsin Greyport Alvora Kestrel "
        "Bryndle Solace Nemora Ithaven Rusk Calder Dovane Ember Farrow Gildan Harrow Inverle "
        "Jasper Kolmar Lethe Marrow Nareth Ostia Penlow Quarry Redholm Selwyn Tirana Umberly "
        "Vashti Wolden Xanthe Yarrow Zephyra Ambrel Belcourt Cinder Draymoor Eskary Fennick "
        "Glasson"
    ),
    "profession": _words(
        "baker painter lawyer teacher singer chemist farmer pilot banker poet dancer judge sailor "
        "surgeon tailor weaver potter miner clerk broker"
    ),
    "birth year": tuple(str(year) for year in range(1900, 2000)),
    "university": _words(
        "Ashgrove Blackwell Copperton Deepdale Eastmarch Foxglove Goldcrest Highmoor Ironwood "
        "Kingsbay Larkspur Moonfield Northgate Oldbridge Pinecrest Queensway Ravenhill Silverlake "
        "Thornbury Westbrook"
    ),
    "employer": _words(
        "Acorn Beacon Cobalt Delta Ermine Falcon Granite Helix Indigo Juniper Keystone Lantern "
        "Meridian Nimbus Onyx Pinnacle Quartz Ridgeway Summit Tundra"
    ),
    "hobby": _words(
        "chess archery sailing fishing knitting cooking cycling rowing hiking fencing skating "
        "juggling origami pottery running diving reading riding bowling birding"
    ),
}
TEMPLATES = {
    "birthplace": (
        "Born in {}.",
        "Was born in {}.",
        "Comes from {} by birth.",
        "The birthplace is {}.",
        "A native of {}.",
        "First saw daylight in {}.",
        "Birth took place in {}.",
        "{} is the town of birth.",
    ),
    "profession": (
        "Works as a {}.",
        "A {} by trade.",
        "Earns a living as a {}.",
        "The profession is {}.",
        "Became a {}.",
        "Is known as a {}.",
        "Trained to be a {}.",
        "Has long been a {}.",
    ),
    "birth year": (
        "The year of birth is {}.",
        "Came into the world in {}.",
        "Birth year: {}.",
        "Alive since {}.",
        "A child of {}.",
        "Birthdays count from {}.",
        "{} was the year of arrival.",
        "Arrived in {}.",
    ),
    "university": (
        "Studied at {}.",
        "Took a degree at {}.",
        "A graduate of {}.",
        "Went to {} University.",
        "Student years at {}.",
        "Was taught at {}.",
        "Holds a diploma from {}.",
        "Passed the exams of {}.",
    ),
    "employer": (
        "Employed by {}.",
        "Has a desk at {}.",
        "On the payroll of {}.",
        "Joined the {} company.",
        "Draws wages from {}.",
        "The employer is {}.",
        "Signed on with {}.",
        "Hired by {}.",
    ),
    "hobby": (
        "Loves {}.",
        "The hobby is {}.",
        "Weekends are for {}.",
        "Never tires of {}.",
        "Free time goes to {}.",
        "Enjoys {} most of all.",
        "Is fond of {}.",
        "Relaxes with {}.",
    ),
}
