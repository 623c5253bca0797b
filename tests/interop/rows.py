"""What a row is, and the list of all rows."""

import dataclasses
from typing import Callable

ROWS = []

# Directions of a row: who requests, who responds.
DIRECTIONS = (("ferroce", "rxe"), ("rxe", "ferroce"))


@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    run: Callable
    requester: str
    responder: str
    # Part of the small set.
    fast: bool
    # Counters of rxe's errors that may change, because the row provokes what they count.
    may_count: frozenset
    # What the network does to packets, both ways, in netem's words; and which of the daemon's counters show that it did.
    netem: str
    shows: tuple
    # ferroced sends something in it.
    ferroce_speaks: bool
    # Judges the row's capture: a function of its path, and the two sides.
    look: Callable


def row(fast=False, may_count=(), netem="", shows=(), directions=DIRECTIONS, variants=((),), answered=True, elsewhere=False, look=None):
    """Registers a function as a row for each direction and each variant (arguments for it). Not `answered`: the responder is silent;
    `elsewhere`: another ferroced has its part."""

    def register(function):
        for variant in variants:
            for requester, responder in directions:
                name = "/".join([function.__name__, *map(str, variant), f"{requester}-to-{responder}"])

                def run(lab, a, b, variant=variant):
                    function(lab, a, b, *variant)

                speaks = (answered or requester == "ferroce") and not elsewhere
                ROWS.append(Row(name, run, requester, responder, fast, frozenset(may_count), netem, tuple(shows), speaks, look))
        return function

    return register
