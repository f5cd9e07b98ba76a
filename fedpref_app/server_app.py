"""The Flower ServerApp: `main` and `federate` are the whole algorithm; no torch on this side."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedpref.adapter_state import initial_state
from fedpref.config import RunConfig, load_config
from fedpref.federation.alone import each_alone
from fedpref.federation.checkpoint import RunDirectory
from fedpref.federation.cohort import Cohort, join, known_to_coordinator
from fedpref.federation.effect import measure_effect
from fedpref.federation.handshake import Agreement, agree
from fedpref.federation.progress import say
from fedpref.federation.rounds import Rounds
from fedpref.federation.spool import Spool
from fedpref.federation.strategies import LOCAL, StrategyMemory, make_strategy, ready_strategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation of the run config; any failure raises, so that Flower sees it."""
    config = load_config(context.run_config)
    if config.effect:  # of runs that are over
        measure_effect(grid, config)
        return
    make_strategy(config)  # what is wrong with it shows before a site is asked anything
    run = RunDirectory.open(config)
    say(f"run {run.path}\n{config.tree()}\n└── digest {config.digest}")

    done = len(run.records())
    if done <= config.rounds:
        cohort = join(
            grid, config, adapter_hash=run.adapter_hash(done - 1), root_hash=run.adapter_hash(0)
        )
        agreement = agree(cohort.handshakes, known_to_coordinator(config))
        if not config.resume:
            ready_strategy(config, agreement)  # what it lacks shows before anything is written
        agreement = run.begin(agreement)
        if config.strategy == LOCAL:
            each_alone(federate, grid, config, run, cohort, agreement)
        else:
            federate(grid, config, run, cohort, agreement)
    run.finish()
    say(f"complete: {run.path / 'summary.json'}")


def federate(
    grid: Grid, config: RunConfig, run: RunDirectory, cohort: Cohort, agreement: Agreement
) -> None:
    """Run the rounds that are still open.

    Round 0 averages the sites' SFT roots; its adapter is the fixed reference of the DPO rounds.
    """
    spec = agreement.spec
    strategy = ready_strategy(config, agreement)
    rounds = Rounds(grid, config, cohort, agreement, strategy)
    memory = StrategyMemory(run.path / "strategy", strategy, config.strategy)
    done = len(run.records())
    memory.recall(done - 1)
    adapter = run.adapter(done - 1, spec) if done else initial_state(spec, config.seed)
    for t in run.open_rounds():
        saved = run.load_training(t, spec)
        if saved is None:
            root = run.adapter(0, spec) if t else None
            adapter, training = rounds.train(t, adapter, root, Spool(run.spool_folder, t))
            memory.keep(t)
            run.save_training(t, adapter, spec, training)
        else:
            adapter, training = saved
            memory.recall(t)
        run.close(rounds.evaluate(t, adapter, training))
