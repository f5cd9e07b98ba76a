"""`summary.json` of a comparison: what came out at the selected round, for programs. Pure."""

from typing import Any

from fedpref.report.contrast import Contrast
from fedpref.report.locked_test import LockedTest
from fedpref.report.result import Comparison


def comparison_summary(
    result: Comparison, test: LockedTest | None, contrast: Contrast | None
) -> dict[str, Any]:
    """Return the arms and effects at the selected round, the locked test and the contrast.

    Numbers are shares, differences of shares, bytes and seconds, as in the files that they are
    from; `locked_test` and `contrast` are null if there are none.
    """
    at = result.selected_round
    return {
        "kind": "summary",
        **result.model_dump(
            mode="json", include={"run", "synthetic", "digest", "seeds", "selected_round", "notes"}
        ),
        "arms": {
            name: {
                **result.arms[name].model_dump(
                    mode="json", include={"exposure", "bytes", "seconds", "strategy"}
                ),
                **result.arms[name].rounds[at].model_dump(mode="json", exclude={"by_seed"}),
            }
            for name in result.arm_names
        },
        "effects": [
            effect.model_dump(mode="json", exclude_unset=True)
            for effect in result.effects
            if effect.round == at
        ],
        "weights": list(result.weights),
        "trace": list(result.trace),
        "locked_test": None if test is None else test.model_dump(mode="json"),
        "contrast": None if contrast is None else contrast.model_dump(mode="json"),
    }
