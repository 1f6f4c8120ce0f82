"""beartype as the shape checker of the tests; like Python itself, it lets an int be a float."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
