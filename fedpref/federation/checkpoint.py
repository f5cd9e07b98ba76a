"""`runs/<id>/`: what a run leaves, written so that it can be resumed after any round.

config.json      effective configuration, its digest, fedpref's version
agreement.json   what the sites agreed on in the handshake, their names and pair counts
adapters/round-<t>/   the global adapter after round t, in PEFT's format
strategy/        what the strategy keeps from round to round, if it does
rounds.jsonl     one record a closed round: trained, adapter saved, evaluated
summary.json     written at the end; `complete` is true
open/            the round that is not closed yet; gone afterwards
sites/<site>/    agreement, adapters and rounds of one site, where every site trains alone
"""

import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedpref import __version__
from fedpref.adapter_state import (
    AdapterSpec,
    AdapterState,
    save_adapter,
    state_digest,
)
from fedpref.config import RunConfig
from fedpref.errors import ConfigError, FedPrefError, ResumeError, raise_all
from fedpref.federation.handshake import Agreement
from fedpref.federation.progress import say
from fedpref.federation.report import score_line, side_by_side
from fedpref.files import atomic_write, read_jsonl, write_jsonl
from fedpref.residual import load_served, spec_of
from fedpref.write_once import write_once

Record = dict[str, Any]


class RunDirectory:
    """One run's directory; every method leaves it in a state from which the run can go on."""

    def __init__(self, path: Path, config: RunConfig) -> None:
        self.path = path
        self.config = config

    @classmethod
    def open(cls, config: RunConfig) -> "RunDirectory":
        """Return the directory to resume, or a new one, of which nothing is written yet.

        Raises ResumeError naming every key that differs from the run to resume, and ConfigError if
        a new run's directory already holds a run.
        """
        if config.resume:
            run = cls(Path(config.resume).absolute(), config)
            run._check_same_config()
            return run
        run_id = config.run_id or time.strftime("%Y%m%d-%H%M%S-") + config.digest[:8]
        run = cls(Path(config.runs_dir).absolute() / run_id, config)
        if (run.path / "config.json").exists():
            raise run._exists()
        return run

    def of_site(self, site: str) -> "RunDirectory":
        """Return the directory of one site's own rounds, where sites train alone."""
        return RunDirectory(self.path / "sites" / site, self.config)

    @property
    def spool_folder(self) -> Path:
        """Where the replies of the open round lie."""
        return self.path / "open"

    def records(self) -> list[Record]:
        """Return the records of the closed rounds, in order."""
        path = self.path / "rounds.jsonl"
        return [row for _, row in read_jsonl(path)] if path.exists() else []

    def open_rounds(self) -> Iterator[int]:
        """Yield the rounds that are still to be closed, up to the configured last one."""
        yield from range(len(self.records()), self.config.rounds + 1)

    def begin(self, agreement: Agreement) -> Agreement:
        """Record the configuration, of a new run, and what the sites agreed on.

        Returns and raises what `agree` does; ConfigError if another process has begun this run
        since it was opened. A run that no site has joined leaves nothing.
        """
        if not self.config.resume:
            record = {
                "config": self.config.to_flat(),
                "digest": self.config.digest,
                "fedpref": __version__,
                "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            }
            if not write_once(self.path / "config.json", _json(record).encode()):
                raise self._exists()
        return self.agree(agreement)

    def agree(self, agreement: Agreement) -> Agreement:
        """Record what the sites agreed on; return it with all sites that the run began with.

        A resumed run must find the same. Sites may be missing now (the quorum decides about that),
        but none may be new or changed: ResumeError names every difference.
        """
        path = self.path / "agreement.json"
        found: Record = json.loads(json.dumps(agreement.to_dict()))
        if not path.exists():
            self._write_json("agreement.json", found)
            return agreement
        before: Record = json.loads(path.read_text(encoding="utf-8"))
        problems: list[FedPrefError] = [
            ResumeError(
                f"{name} was {_short(before[part].get(name))} when the run started, "
                f"is {_short(found[part].get(name))} now",
                fix="restore it, or start a new run",
                file=self.path,
                key=name,
            )
            for part in ("common", "versions")
            for name in sorted(before[part].keys() | found[part].keys())
            # The federation only names where a site keeps its state; it can be sent again.
            if before[part].get(name) != found[part].get(name) and name != "federation"
        ]
        for site, pairs in found["sites"].items():
            was = before["sites"].get(site)
            if was != pairs:
                what = "was not part of the run" if was is None else f"had {was} pairs"
                problems.append(
                    ResumeError(
                        f"the site {what} when it started, has {pairs} now",
                        fix="restore the site's pairs, or start a new run",
                        site=site,
                        file=self.path,
                    )
                )
        raise_all(problems)
        return replace(agreement, sites=before["sites"], synthetic=before["synthetic"])

    def adapter(self, round_: int, spec: AdapterSpec) -> AdapterState:
        """Return the global adapter after a round whose training is recorded."""
        return load_served(self._adapter_folder(round_), spec)

    def adapter_hash(self, round_: int) -> str:
        """Return the hash of the adapter after a closed round, "" if that round is not closed."""
        records = self.records()
        return str(records[round_]["adapter"]) if 0 <= round_ < len(records) else ""

    def save_training(
        self, round_: int, state: AdapterState, spec: AdapterSpec, record: Record
    ) -> None:
        """Save the adapter of the open round, and what its training was like."""
        # The record first: an adapter without its record is one that must be trained again.
        self._write_json("open/training.json", {**record, "round": round_})
        save_adapter(
            self._adapter_folder(round_), state, spec_of(state, spec), self.config.model.path
        )

    def load_training(self, round_: int, spec: AdapterSpec) -> tuple[AdapterState, Record] | None:
        """Return the adapter and the training record of a round that only lacks its evaluation."""
        path = self.path / "open" / "training.json"
        if not path.exists() or not self._adapter_folder(round_).exists():
            return None
        record: Record = json.loads(path.read_text(encoding="utf-8"))
        if record["round"] != round_:
            return None
        state = self.adapter(round_, spec)
        return (state, record) if state_digest(state) == record["adapter"] else None

    def close(self, record: Record) -> None:
        """Append the record of the round and forget what was kept while it was open."""
        write_jsonl(self.path / "rounds.jsonl", [*self.records(), record])
        shutil.rmtree(self.path / "open", ignore_errors=True)

    def close_all(self, alone: Sequence["RunDirectory"]) -> None:
        """Write the rounds of sites that trained alone, round by round together, as this run's."""
        rounds = [
            side_by_side(records) for records in zip(*(run.records() for run in alone), strict=True)
        ]
        write_jsonl(self.path / "rounds.jsonl", rounds)
        for record in rounds:
            say(f"all sites, {score_line(record)}")

    def finish(self) -> Record:
        """Write and return `summary.json`: the run is complete."""
        records = self.records()
        last = records[-1]["round"]
        agreement: Record = json.loads((self.path / "agreement.json").read_text(encoding="utf-8"))
        summary: Record = {
            "complete": True,
            "run": self.path.name,
            "federation": self.config.federation,
            "digest": self.config.digest,
            "strategy": self.config.strategy,
            "synthetic": agreement["synthetic"],
            "last_round": last,
            "adapter": f"adapters/round-{last}" if self._adapter_folder(last).exists() else None,
            "adapter_hash": records[-1]["adapter"],
            "sites": agreement["sites"],
            "versions": agreement["versions"],
            "bytes": {
                way: sum(record["bytes"][way] for record in records) for way in ("down", "up")
            },
            "seconds": sum(record["seconds"]["total"] for record in records),
            "rounds": records,
        }
        self._write_json("summary.json", summary)
        return summary

    def _adapter_folder(self, round_: int) -> Path:
        return self.path / "adapters" / f"round-{round_}"

    def _write_json(self, name: str, value: Mapping[str, Any]) -> None:
        atomic_write(self.path / name, _json(value))

    def _exists(self) -> ConfigError:
        return ConfigError(
            f"the run {self.path.name!r} exists already",
            file=self.path,
            fix="set resume to that directory to go on with it, or choose another run-id",
            key="run-id",
        )

    def _check_same_config(self) -> None:
        path = self.path / "config.json"
        try:
            before: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["config"]
        except (OSError, ValueError, KeyError):
            raise ResumeError(
                "the directory holds no run",
                why="config.json is missing or malformed",
                fix="set resume to a run directory, such as runs/<id>; a run that sites had not "
                "joined yet is started again",
                file=self.path,
                key="resume",
            ) from None
        now = self.config.numeric()
        raise_all(
            [
                ResumeError(
                    f"was {before.get(key)!r} when the run started, is {value!r} now",
                    fix="set it back, or start a new run",
                    file=self.path,
                    key=key,
                )
                for key, value in now.items()
                if before.get(key) != value
            ]
        )


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _short(value: object) -> str:
    return "absent" if value is None else str(value)[:12]
