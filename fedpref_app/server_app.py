"""The Flower ServerApp: `main` is the whole algorithm; no torch on this side."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedpref.adapter_state import initial_state
from fedpref.config import load_config
from fedpref.federation.checkpoint import RunDirectory
from fedpref.federation.cohort import join, known_to_coordinator
from fedpref.federation.handshake import agree
from fedpref.federation.progress import say
from fedpref.federation.rounds import Rounds
from fedpref.federation.spool import Spool
from fedpref.federation.strategies import STRATEGIES

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation that the run config describes; any failure raises, so that Flower sees it.

    Round 0 averages the sites' SFT roots; its adapter is the fixed reference of the DPO rounds.
    """
    config = load_config(context.run_config)
    run = RunDirectory.open(config)
    say(f"run {run.path}\n{config.tree()}\n└── digest {config.digest}")

    done = len(run.records())
    if done > config.rounds:
        run.finish()
        say("nothing is left to do")
        return
    cohort = join(
        grid, config, adapter_hash=run.adapter_hash(done - 1), root_hash=run.adapter_hash(0)
    )
    agreement = run.agree(agree(cohort.handshakes, known_to_coordinator(config)))

    spec = agreement.spec
    rounds = Rounds(grid, config, cohort, agreement, STRATEGIES[config.strategy]())
    adapter = run.adapter(done - 1, spec) if done else initial_state(spec, config.seed)
    for t in run.open_rounds():
        saved = run.load_training(t, spec)
        if saved is None:
            root = run.adapter(0, spec) if t else None
            adapter, training = rounds.train(t, adapter, root, Spool(run.spool_folder, t))
            run.save_training(t, adapter, spec, training)
        else:
            adapter, training = saved
        run.close(rounds.evaluate(t, adapter, training))
    run.finish()
    say(f"complete: {run.path / 'summary.json'}")
