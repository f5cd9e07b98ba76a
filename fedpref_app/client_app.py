"""The Flower ClientApp: thin handlers around `fedpref.federation.site_worker` and `effect_site`."""

from collections.abc import Callable

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedpref.config import RunConfig, load_config
from fedpref.federation.edge import coded_errors_only
from fedpref.federation.effect_site import answer_effect
from fedpref.federation.site_place import SitePlace, label, locate, partitions_of
from fedpref.federation.site_worker import SiteWorker

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Answer the handshake."""
    return _answer(message, context, SiteWorker.query)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the named adapter on the site's pairs."""
    return _answer(message, context, SiteWorker.train)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the named adapter on the site's development reports."""
    return _answer(message, context, SiteWorker.evaluate)


@app.query("effect")
def effect(message: Message, context: Context) -> Message:
    """Send totals of draws for the effect between finished runs, if there are patients enough."""
    return _coded(message, context, lambda config, place: answer_effect(message, config, place))


def _answer(
    message: Message, context: Context, handle: Callable[[SiteWorker, Message], Message]
) -> Message:
    return _coded(message, context, lambda config, place: handle(_worker(config, place), message))


def _coded(
    message: Message, context: Context, answer: Callable[[RunConfig, SitePlace], Message]
) -> Message:
    def at_its_place() -> Message:
        config = load_config(context.run_config)
        return answer(config, locate(config, context.node_config))

    return coded_errors_only(
        message,
        label(context.node_config),
        at_its_place,
        partitions=partitions_of(context.node_config),
    )


def _worker(config: RunConfig, place: SitePlace) -> SiteWorker:
    from fedpref.federation.site_work import LocalSite  # noqa: PLC0415  (imports torch)

    return SiteWorker(
        LocalSite(config, place.path),
        config,
        partition=place.partition,
        partitions=place.partitions,
    )
