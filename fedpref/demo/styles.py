"""The habits of the six demo sites: layout, hedging, priors and short forms differ."""

from typing import Final

from fedpref.demo.generate import SiteStyle

STYLES: Final = (
    SiteStyle(
        name="teaching hospital: sections, long, many hedges and comparisons",
        layouts=(("sections", 0.8), ("prose", 0.2)),
        hedged=0.40, unchanged=0.15, improved=0.10, priors_mean=0.6, denials_mean=1.2,
        distractors_mean=1.0, modifiers=0.7, place_behind=0.6,
    ),
    SiteStyle(
        name="community hospital: plain prose, few hedges",
        layouts=(("prose", 0.85), ("impression", 0.15)),
        hedged=0.12, unchanged=0.08, priors_mean=0.3, denials_mean=1.0, unusual_terms=0.2,
        place_behind=0.4,
    ),
    SiteStyle(
        name="trauma centre: short forms, capitals, wet reads",
        layouts=(("impression", 0.6), ("list", 0.3), ("prose", 0.1)),
        hedged=0.15, short_forms=0.6, capitals=0.15, unusual_terms=0.5, modifiers=0.3,
        distractors_mean=0.6, place_behind=0.15, history=0.25,
    ),
    SiteStyle(
        name="intensive care: daily films, all about change since the last",
        layouts=(("list", 0.5), ("prose", 0.5)),
        hedged=0.20, unchanged=0.28, improved=0.15, priors_mean=0.9, denials_mean=0.6,
        distractors_mean=1.4,
    ),
    SiteStyle(
        name="outpatient clinic: questions asked and denied",
        layouts=(("sections", 0.5), ("impression", 0.5)),
        hedged=0.25, unchanged=0.05, improved=0.05, priors_mean=0.3, denials_mean=1.8,
        history=0.45, unusual_terms=0.15,
    ),
    SiteStyle(
        name="rural clinic: telegraphic, unusual terms, little punctuation",
        layouts=(("prose", 0.7), ("list", 0.3)),
        hedged=0.30, unusual_terms=0.7, lower_case=0.15, glued=0.15, modifiers=0.2,
        distractors_mean=0.5, short_forms=0.25,
    ),
)  # fmt: skip
