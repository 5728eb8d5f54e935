"""Names out of a spec, which may be any text, to names and words that source can hold."""

from __future__ import annotations

import keyword
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field


def spelled(name: str) -> str:
    """The nearest Python name: other characters become underscores, keywords get one at the end."""
    # Python reads identifiers in this normal form: names that are equal in it are the same name.
    normal = unicodedata.normalize("NFKC", name)
    plain = "".join(c if f"_{c}".isidentifier() else "_" for c in normal)
    if not plain.isidentifier():
        plain = f"_{plain}"
    return f"{plain}_" if keyword.iskeyword(plain) else plain


def ascii_spelled(name: str) -> str:
    """The nearest name in the letters, digits and underscores that every language takes; starts with a letter."""
    plain = "".join(
        c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in unicodedata.normalize("NFKC", name)
    )
    return plain if plain[:1].isalpha() else f"n{plain}" if plain.startswith("_") else f"n_{plain}"


def words(name: str) -> str:
    """A name for a comment or a docstring: on one line, without quotes or backslashes that would end it."""
    kept = "".join(c if c.isprintable() and c not in '"\\' else " " for c in name)
    return " ".join(kept.split()) or "?"


@dataclass(slots=True)
class Names:
    """Hands out names of one scope of the source: each differs from the reserved ones and from all given before."""

    taken: set[str] = field(default_factory=set[str])
    spelling: Callable[[str], str] = spelled

    def new(self, wanted: str, suffixes: Iterable[str] = ("",)) -> str:
        """`wanted` as it is spelled, with underscores added until it and each `suffix` on it are free; these are then taken."""
        name, endings = self.spelling(wanted), list(suffixes)
        while not self.taken.isdisjoint(name + ending for ending in endings):
            name += "_"
        self.taken |= {name + ending for ending in endings}
        return name
