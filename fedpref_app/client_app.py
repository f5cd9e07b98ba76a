"""The Flower ClientApp: three thin handlers around `fedpref.federation.site_worker`."""

from collections.abc import Callable

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedpref.config import load_config
from fedpref.federation.edge import coded_errors_only
from fedpref.federation.site_place import label, locate, partitions_of
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


def _answer(
    message: Message, context: Context, handle: Callable[[SiteWorker, Message], Message]
) -> Message:
    return coded_errors_only(
        message,
        label(context.node_config),
        lambda: handle(_worker(context), message),
        partitions=partitions_of(context.node_config),
    )


def _worker(context: Context) -> SiteWorker:
    from fedpref.federation.site_work import LocalSite  # noqa: PLC0415  (imports torch)

    config = load_config(context.run_config)
    place = locate(config, context.node_config)
    return SiteWorker(
        LocalSite(config, place.path),
        config,
        partition=place.partition,
        partitions=place.partitions,
    )
