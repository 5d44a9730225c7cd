"""One style for all figures: sizes, colors that everybody can distinguish, the same for a method.

Importing it sets matplotlib's options: its defaults, whatever a ``matplotlibrc`` says, and ours.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import matplotlib

PAGE = 6.9  # inches, the width of a printed page's text
matplotlib.rcdefaults()
matplotlib.rcParams.update(
    {
        "font.size": 8.5,
        "axes.titlesize": 9,
        "axes.labelsize": 8.5,
        "xtick.labelsize": 8,
        "ytick.labelsize": 8,
        "legend.fontsize": 8,
        "legend.frameon": False,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "grid.alpha": 0.3,
        "svg.hashsalt": "unremix",  # the same figure gives the same file
        "svg.fonttype": "none",  # text stays text
    }
)

Dash = str | tuple[int, tuple[float, ...]]

# Okabe and Ito's colors, which people with any color vision can distinguish. Their yellow is left
# out: it is too pale for lines on white.
BLUE, VERMILION, GREEN, PINK, ORANGE, SKY, BLACK = COLORS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000",
)  # fmt: skip
GRAYS = ("#777777", "#aaaaaa", "#cccccc")
SOLID: Dash = "-"
DASHED: Dash = (0, (5.0, 1.5))
DOTTED: Dash = (0, (1.2, 1.2))
DASH_DOTTED: Dash = (0, (5.0, 1.5, 1.2, 1.5))
LEVELS = ((GRAYS[0], DASHED), (GRAYS[1], DOTTED))  # lines of what there is without training
DASHES = (SOLID, DASHED, DOTTED, DASH_DOTTED)
MARKERS = ("o", "s", "^", "D")
HATCHES = ("", "////", "....", "xxxx")
COMPONENT_COLORS = {"uncertainty": ORANGE, "similarity": VERMILION, "representativeness": GREEN}
FRAMES = {"false negative": VERMILION, "redundant": ORANGE, "true and diverse": GREEN}


@dataclass(frozen=True)
class Look:
    """How something is drawn: its color, and its turn for dashes, markers and hatches."""

    color: str
    turn: int = 0  # 0 is solid; others distinguish what shares a color

    @property
    def dash(self) -> Dash:
        """Of its line."""
        return DASHES[self.turn % len(DASHES)]

    @property
    def marker(self) -> str:
        """Of its points."""
        # Shifted when the dashes begin again, so that together they distinguish 16.
        return MARKERS[(self.turn + self.turn // len(DASHES)) % len(MARKERS)]

    @property
    def hatch(self) -> str:
        """Of its bars."""
        return HATCHES[self.turn % len(HATCHES)]


LOOKS = {
    name: look
    for look, names in {
        Look(BLACK): "simclr infograph quickthought quick-thought graphcl",
        Look(BLACK, 1): "debiased",
        Look(VERMILION): "hcl infograph-hcl quickthought-hcl graphcl-hcl similarity unremix-s",
        Look(PINK): "moco moco-v2",
        Look(PINK, 1): "mochi",
        Look(PINK, 2): "patch patch-based",
        Look(ORANGE): "swav uncertainty unremix-u",
        Look(ORANGE, 1): "imix i-mix",
        Look(GREEN): "unmix un-mix representativeness unremix-r",
        Look(BLUE): "unremix unremix-simclr unremix-moco infograph-unremix "
        "quickthought-unremix graphcl-unremix all learned pseudo-label",
        Look(BLUE, 1): "unremix-fixed fixed",
        Look(BLUE, 2): "free",
        Look(BLUE, 3): "adversarial",
        Look(GREEN, 1): "unremix-nt-xent nt-xent",
    }.items()
    for name in names.split()
}
AS_PRINTED = "as printed"


def looks_of(names: Iterable[str]) -> dict[str, Look]:
    """How methods are drawn: each as in every other figure, and no two in one figure alike.

    Names are those of recipes, or as in the paper's tables; the first word decides the color.

    Example:
        >>> found = looks_of(["HCL on SimCLR", "unremix", "unremix-moco", "mine"])
        >>> found["HCL on SimCLR"] == looks_of(["hcl"])["hcl"], found["unremix-moco"].turn
        (True, 1)
    """
    found: dict[str, Look] = {}
    for number, name in enumerate(names):
        word = re.split("[, ]", name.lower())[0]
        if name.endswith(AS_PRINTED):
            look = Look(SKY)
        elif word in LOOKS:
            look = LOOKS[word]
        else:
            look = Look(COLORS[number % len(COLORS)], number // len(COLORS))
        while look in found.values():
            look = Look(look.color, look.turn + 1)
        found[name] = look
    return found
