"""The Local arm: every site is a federation of its own, all of them side by side.

One site's average is its own adapter and its root is its own, so that the very code of a federation
is what a site without one would do. Each goes through its rounds at its own pace.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from flwr.serverapp import Grid

from fedpref.config import RunConfig
from fedpref.errors import FedPrefError, RoundError, raise_all
from fedpref.federation.checkpoint import RunDirectory
from fedpref.federation.cohort import Cohort
from fedpref.federation.handshake import Agreement

Federate = Callable[[Grid, RunConfig, RunDirectory, Cohort, Agreement], None]


def each_alone(
    federate: Federate,
    grid: Grid,
    config: RunConfig,
    run: RunDirectory,
    cohort: Cohort,
    agreement: Agreement,
) -> None:
    """Run `federate` for each site by itself and close the run's rounds with all sites together.

    Raises the errors of all sites that could not finish; the others' rounds are kept for a resume.
    """
    # One site is its own quorum; of the run's sites, all are needed.
    own = config.model_copy(update={"quorum": 0, "min_sites": 0})
    runs = {site: run.of_site(site) for site in cohort.members}

    def one(site: str) -> FedPrefError | None:
        part = replace(agreement, sites={site: agreement.sites[site]})
        try:
            federate(grid, own, runs[site], cohort.only(site), runs[site].agree(part))
        except FedPrefError as error:
            return RoundError(f"training alone failed: {error}", site=site)
        return None

    # Threads wait for replies, so that one a site costs nothing.
    with ThreadPoolExecutor(max_workers=len(runs), thread_name_prefix="site") as pool:
        raise_all([error for error in pool.map(one, runs) if error is not None])
    absent = sorted(agreement.sites.keys() - runs.keys())
    if absent:
        raise RoundError(
            f"{', '.join(absent)} did not join",
            why="the rounds of a run hold all sites that it began with",
            fix="bring them back and resume the run; the others' rounds are kept",
        )
    run.close_all(list(runs.values()))
