"""The words of the synthetic reports. All are invented; no phrase is taken from a real report.

Templates: `{x}` is a mention with its place ("small right pleural effusion"), `{t}` a bare disease
term, `{X}` and `{T}` the same with a capital letter.
"""

from typing import Final

OPACITY: Final = "lung opacity"
EFFUSION: Final = "pleural effusion"
ATELECTASIS: Final = "atelectasis"
HEART: Final = "enlarged cardiac silhouette"
EDEMA: Final = "pulmonary edema/hazy opacity"
PNEUMOTHORAX: Final = "pneumothorax"
CONSOLIDATION: Final = "consolidation"
FAILURE: Final = "fluid overload/heart failure"
PNEUMONIA: Final = "pneumonia"

# The usual terms first (what every reader knows), then the less usual ones.
TERMS: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    OPACITY: (("opacity", "airspace opacity"), ("infiltrate", "airspace disease", "density")),
    EFFUSION: (("pleural effusion", "effusion"), ("pleural fluid", "layering fluid")),
    ATELECTASIS: (("atelectasis",), ("volume loss", "collapse", "atelectatic change")),
    HEART: (("cardiomegaly", "enlarged heart"), ("enlarged cardiac silhouette",)),
    EDEMA: (("pulmonary edema", "hazy opacity"), ("interstitial edema", "haziness")),
    PNEUMOTHORAX: (("pneumothorax",), ("PTX", "pleural air")),
    CONSOLIDATION: (("consolidation",), ("airspace consolidation", "consolidative change")),
    FAILURE: (("heart failure", "fluid overload"), ("CHF", "volume overload")),
    PNEUMONIA: (("pneumonia",), ("infectious process", "bronchopneumonia")),
}

MODIFIERS: Final[dict[str, tuple[str, ...]]] = {
    OPACITY: ("patchy", "subtle", "focal", "ill-defined", "faint"),
    EFFUSION: ("small", "moderate", "large", "trace"),
    ATELECTASIS: ("mild", "linear", "subsegmental", "minimal"),
    HEART: ("mild", "moderate"),
    EDEMA: ("mild", "moderate"),
    PNEUMOTHORAX: ("small", "tiny", "moderate"),
    CONSOLIDATION: ("dense", "focal", "patchy"),
    FAILURE: ("mild", "early"),
    PNEUMONIA: ("early", "developing"),
}

# Zone of a lung -> how it stands before the term, how it stands behind it. `{s}` is the side.
ZONE_BEFORE: Final[dict[str, tuple[str, ...]]] = {
    "lung": ("{s}", "{s} lung", "{s}-sided"),
    "apical zone": ("{s} apical",),
    "upper lung zone": ("{s} upper lobe", "{s} upper lung", "{s} upper zone"),
    "mid lung zone": ("{s} mid lung", "{s} midlung", "{s} mid zone"),
    "lower lung zone": ("{s} lower lobe", "{s} basilar", "{s} lower lung", "{s} base"),
    "hilar structures": ("{s} perihilar", "{s} hilar"),
    "costophrenic angle": ("{s} costophrenic angle",),
}
ZONE_BEHIND: Final[dict[str, tuple[str, ...]]] = {
    "lung": ("in the {s} lung", "on the {s}", "in the {s} hemithorax"),
    "apical zone": ("at the {s} apex", "in the {s} apex"),
    "upper lung zone": ("in the {s} upper lobe", "in the {s} upper lung zone"),
    "mid lung zone": ("in the {s} mid lung", "in the {s} mid lung zone"),
    "lower lung zone": ("in the {s} lower lobe", "at the {s} base", "at the {s} lung base"),
    "hilar structures": ("at the {s} hilum", "in the {s} perihilar region"),
    "costophrenic angle": ("at the {s} costophrenic angle", "in the {s} costophrenic sulcus"),
}
BOTH_BEFORE: Final[dict[str, tuple[str, ...]]] = {
    "lung": ("bilateral", "bilateral", "right and left"),
    "apical zone": ("biapical", "bilateral apical"),
    "upper lung zone": ("bilateral upper lobe", "bilateral upper lung"),
    "mid lung zone": ("bilateral mid lung",),
    "lower lung zone": ("bibasilar", "bilateral lower lobe", "bilateral basilar"),
    "hilar structures": ("bilateral perihilar", "bilateral hilar"),
    "costophrenic angle": ("bilateral costophrenic angle",),
}
BOTH_BEHIND: Final[dict[str, tuple[str, ...]]] = {
    "lung": ("in both lungs", "on both sides", "in the right and left lungs"),
    "apical zone": ("at both apices",),
    "upper lung zone": ("in both upper lobes", "in the upper lungs bilaterally"),
    "mid lung zone": ("in both mid lungs",),
    "lower lung zone": ("at both lung bases", "in both lower lobes", "at the bases bilaterally"),
    "hilar structures": ("at both hila", "in both perihilar regions"),
    "costophrenic angle": ("at both costophrenic angles",),
}
# Sided words and short forms that the rules above do not give.
SIDED_BEFORE: Final[dict[tuple[str, str], tuple[str, ...]]] = {
    ("right", "mid lung zone"): ("right middle lobe",),
    ("left", "mid lung zone"): ("lingular",),
}
SIDED_BEHIND: Final[dict[tuple[str, str], tuple[str, ...]]] = {
    ("right", "mid lung zone"): ("in the right middle lobe",),
    ("left", "mid lung zone"): ("in the lingula",),
}
SHORT_BEFORE: Final[dict[tuple[str, str], str]] = {
    ("right", "upper lung zone"): "RUL",
    ("right", "mid lung zone"): "RML",
    ("right", "lower lung zone"): "RLL",
    ("left", "upper lung zone"): "LUL",
    ("left", "lower lung zone"): "LLL",
    ("right", "lung"): "R",
    ("left", "lung"): "L",
    ("both", "lung"): "bilat",
}
# Locations that belong to no lung.
MIDLINE: Final[dict[str, tuple[str, ...]]] = {
    "mediastinum": ("in the mediastinum", "overlying the mediastinum"),
    "upper mediastinum": ("in the upper mediastinum", "along the superior mediastinum"),
    "trachea": ("next to the trachea", "along the trachea"),
}

PRESENT: Final = (
    "There is {x}.", "{X}.", "{X} is seen.", "{X} is noted.", "{X} is present.",
    "Interval development of {x}.", "Persistent {x}.", "{X} again seen.", "{X}, stable.",
    "Redemonstration of {x}.", "Findings consistent with {x}.",
)  # fmt: skip
HEDGED: Final = (
    "Possible {x}.", "Cannot exclude {x}.", "{X} cannot be excluded.", "Questionable {x}.",
    "Findings may represent {x}.", "{X} is suspected.", "Suspicious for {x}.", "Probable {x}.",
    "{X} may be present.", "{X} is not excluded.",
)  # fmt: skip
# They hold a denial word, and the finding is there all the same.
UNCHANGED: Final = (
    "No change in {x}.", "No significant change in {x}.", "{X} has not resolved.",
    "{X} is not significantly changed.", "No interval improvement of {x}.",
    "Without change in {x}.",
)  # fmt: skip
IMPROVED: Final = (
    "{X} has decreased but persists.", "{X}, smaller than before.", "Improving {x}.",
    "Partial resolution of {x}.",
)  # fmt: skip
DENIED: Final = (
    "No {t}.", "No evidence of {t}.", "There is no {t}.", "Negative for {t}.", "{T}: none.",
    "No definite {t}.", "No {t} is seen.", "{T} is absent.",
)  # fmt: skip
DENIED_PLACED: Final = ("No {x}.", "There is no {x}.", "No evidence of {x}.")
DENIED_TWO: Final = (
    "No {a} or {b}.", "Neither {a} nor {b} is seen.", "Lungs are without {a} or {b}.",
    "No evidence of {a} or {b}.", "There is no {a} and no {b}.",
)  # fmt: skip
DENIED_THREE: Final = (
    "No {a}, {b} or {c}.", "No evidence of {a}, {b}, or {c}.", "Negative for {a}, {b} and {c}.",
)  # fmt: skip
BUT: Final = ("No {t}, but {x}.", "No {t} but there is {x}.", "{X} without {t}.", "{X}, no {t}.")
RESOLVED: Final = (
    "Previously seen {x} has resolved.", "Interval resolution of {x}.", "{X} is no longer seen.",
    "{X} has cleared.", "Prior {x} has resolved.",
)  # fmt: skip
HISTORICAL: Final = (
    "History of {t}.",
    "Known prior {t}, treated.",
    "Status post treatment of {t}.",
)
INDICATION: Final = ("Evaluate for {t}.", "Question of {t}.", "Rule out {t}.", "?{t}")
PROPOSED: Final = (
    "{X}, which may represent {t}.", "{X}, possibly {t}.", "{X} suggesting {t}.",
    "{X} concerning for {t}.", "{X}, likely {t}.",
)  # fmt: skip

HEART_PRESENT: Final = (
    "The heart is enlarged.", "Heart size is enlarged.", "The cardiac silhouette is enlarged.",
    "Cardiac silhouette is mildly enlarged.",
)  # fmt: skip
HEART_HEDGED: Final = ("The heart appears enlarged.", "The heart may be enlarged.")
HEART_NORMAL: Final = (
    "Heart size is normal.", "The heart is not enlarged.", "Heart is normal in size.",
    "Cardiomediastinal silhouette is within normal limits.", "Normal cardiac silhouette.",
)  # fmt: skip
LUNGS_CLEAR: Final = ("Lungs are clear.", "The lungs are clear bilaterally.", "Clear lungs.")
LUNGS_OTHERWISE: Final = ("Lungs are otherwise clear.", "Remaining lungs are clear.")
DISTRACTORS: Final = (
    "Bony structures are intact.", "Degenerative changes of the spine.", "Low lung volumes.",
    "Right PICC tip in the SVC.", "Left chest wall pacemaker.", "The aorta is tortuous.",
    "Endotracheal tube 4 cm above the carina.", "No acute osseous abnormality.",
    "Surgical clips in the right upper quadrant.", "Old left rib fractures.",
    "Elevated right hemidiaphragm.", "Calcified granuloma in the left upper lobe.",
    "Right chest port in place.", "Nasogastric tube below the diaphragm.",
    "Scoliosis of the thoracic spine.", "Emphysema.", "Left hilar calcifications.",
    "Comparison XXXX.", "Compared to ___.", "No free air under the diaphragm.",
    "Sternotomy wires are intact.", "No change in the support lines.",
)  # fmt: skip
NORMAL_IMPRESSION: Final = (
    "No acute cardiopulmonary disease.", "No acute disease.", "Normal chest.",
    "No acute findings.",
)  # fmt: skip
