"""New weights from a trainer into the engines of a running fleet, by the ways that its plan says.

    sender = WeightSender(fleet)
    sender.send("step-7", manifest, tensors)

Every engine is paused, made ready, given the tensors in buckets, told the version, and resumed: five calls to each of
its urls and one for each bucket. Nothing half-updated ever serves. An engine at which anything goes wrong is out of
service from then on and is started again; others are not held up by it, unless they are ranks of one group with it.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from attrs import frozen, mutable
from safetensors import safe_open
from safetensors.torch import save_file

from vime_adapters.carriers.gloo import Group
from vime_adapters.carriers.segments import Segment
from vime_adapters.orders import NotDone, Orders, Sync
from vime_adapters.vllm.generate import Sampling
from vime_adapters.vllm.http import EngineClient
from vime_adapters.vllm.keys import engine_key
from vime_adapters.wire import VimeHttpError
from vime_core.lifecycle import events
from vime_core.lifecycle.report import EngineStatus
from vime_core.lifecycle.states import EngineState
from vime_core.lifecycle.wishes import Restart
from vime_core.plan import Transport, WeightMember, WeightSync
from vime_core.units import EngineId

BUCKET = 512 << 20
"""Bytes of tensors that one call is about, unless one tensor has more."""

PATIENCE = 15.0
"""Seconds that a sync waits for engines that are suspected to have stopped."""

Tensors = Iterable[tuple[str, torch.Tensor]]
"""Whole tensors under a Hugging Face checkpoint's names, each once, in any order."""

Manifest = Mapping[str, tuple[int, ...]]
"""The shape of every tensor that is going to come, by name."""


class WrongTensors(ValueError):  # noqa: N818 - says what is wrong, like PlanRefused
    """What a trainer has to send is not what the engines' model is made of."""


@frozen
class Probe:
    """A prompt whose next token, chosen greedily, and its log-probability a trainer has computed with new weights.

    ``tolerance`` is how far an engine's may be from it: 1e-3 in float32, some hundredths in bfloat16.
    """

    prompt: tuple[int, ...]
    token: int
    log_prob: float
    tolerance: float = 1e-3


@frozen
class Given:
    """What came of one sync: who holds the version, for whom it went wrong, with the reason, and who took no part.

    Who took no part (``left_out``, with what it did instead) gets no requests until another sync reaches it. ``bytes``
    of tensors were sent once, in ``buckets``; ``seconds`` is the whole of it, the engines' pause included.
    """

    version: str
    engines: tuple[EngineId, ...]
    failed: Mapping[EngineId, str]
    left_out: Mapping[EngineId, str]
    bytes: int
    buckets: int
    calls: int
    seconds: float


@mutable
class _Engine:
    """One engine while it is given weights: all its APIs, and what went wrong first."""

    id: EngineId
    member: WeightMember
    clients: tuple[EngineClient, ...]
    wrong: str | None = None
    calls: int = 0


def expected(folder: Path) -> Manifest:
    """Return the shapes of the tensors in a checkpoint, from the files' headers. Raises FileNotFoundError for none."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"{folder}: no *.safetensors")
    found: dict[str, tuple[int, ...]] = {}
    for file in files:
        with safe_open(file, "pt") as opened:
            found.update((name, tuple(opened.get_slice(name).get_shape())) for name in opened.keys())  # noqa: SIM118
    return found


def check(manifest: Manifest, wanted: Manifest) -> None:
    """Raise WrongTensors, naming some, when a name is missing, unknown, or of another shape."""
    faults = [f"{name} is missing" for name in wanted if name not in manifest]
    for name, shape in manifest.items():
        if name not in wanted:
            faults.append(f"{name} is not in the checkpoint")
        elif tuple(shape) != tuple(wanted[name]):
            faults.append(f"{name} is {tuple(shape)} and not {tuple(wanted[name])}")
    if faults:
        more = f", and {len(faults) - 4} more" if len(faults) > 4 else ""
        raise WrongTensors("; ".join(faults[:4]) + more)


class WeightSender:
    """The trainer's end of one model's weight sync. Only the trainer rank that holds whole tensors has one.

    ``model`` is named where the plan syncs several. ``checkpoint`` is a folder whose tensors every send must match;
    ``folder`` is where the transport "disk" leaves them, one folder for each version, seen by every engine. Raises
    ValueError when the plan syncs no such model.
    """

    def __init__(
        self,
        fleet: Orders,
        *,
        model: str | None = None,
        checkpoint: Path | None = None,
        folder: Path | None = None,
        bucket: int = BUCKET,
        timeout: float | None = None,
    ) -> None:
        self._fleet = fleet
        self._model = model
        self._folder = folder
        self._bucket = bucket
        self._timeout = self._sync().timeout if timeout is None else timeout
        self._wanted = expected(checkpoint) if checkpoint is not None else None
        self._group: Group | None = None
        self._joined: object = None

    def __enter__(self) -> "WeightSender":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave the group. May be called twice."""
        self._group = self._joined = None

    def send(
        self, version: str, manifest: Manifest, tensors: Tensors, *, probe: Probe | None = None, pause: str = "wait"
    ) -> Given:
        """Give every engine that can take them these weights, and return what came of it.

        ``pause`` says what becomes of requests under way: "wait" lets them end, "abort" returns them as they are,
        "keep" goes on with them under the new weights. Raises WrongTensors before any engine is touched when names or
        shapes are not the checkpoint's, and NotDone when no engine could take part or none holds the version.
        """
        if self._wanted is not None:
            check(manifest, self._wanted)
        began = time.monotonic()
        members = {member.engine: member for member in self._sync().engines}
        status = self._fleet.wait_for(lambda now: not any(_wavers(e) for e in now.engines if e.id in members), PATIENCE)
        states = {engine.id: engine.state.value for engine in status.engines}
        with self._fleet.sync(version, members) as sync, contextlib.ExitStack() as open_:
            urls = sum(len(sync.urls[name]) for name in sync.engines)
            pool = open_.enter_context(ThreadPoolExecutor(urls))  # a group waits for all of them at once
            engines = [
                _Engine(name, members[name], tuple(open_.enter_context(self._client(url)) for url in sync.urls[name]))
                for name in sync.engines
            ]
            try:
                size, buckets = self._give(engines, version, manifest, tensors, pause, probe, pool)
            except BaseException:
                self.close()  # nobody knows how far the others in the group came
                raise
            finally:
                self._report(sync, engines)
        failed = {engine.id: engine.wrong for engine in engines if engine.wrong is not None}
        if failed:
            self.close()
            self._fleet.order(events.Wished(tuple(failed), Restart()))
        if len(failed) == len(engines):
            raise NotDone(f"weights {version}", failed, self._fleet.status())
        return Given(
            version,
            tuple(engine.id for engine in engines if engine.wrong is None),
            failed,
            {name: states.get(name, "gone") for name in members if name not in {engine.id for engine in engines}},
            size,
            buckets,
            max(engine.calls for engine in engines),
            time.monotonic() - began,
        )

    def _report(self, sync: Sync, engines: Sequence[_Engine]) -> None:
        """Say of every engine whether it holds the version: what was not finished counts as failed."""
        for engine in engines:
            if engine.wrong is None and engine.calls:
                sync.done(engine.id)
            else:
                sync.failed(engine.id)

    def _give(
        self,
        engines: Sequence[_Engine],
        version: str,
        manifest: Manifest,
        tensors: Tensors,
        pause: str,
        probe: Probe | None,
        pool: ThreadPoolExecutor,
    ) -> tuple[int, int]:
        """Take the engines through the whole of it; return bytes and buckets."""

        def each(do: Callable[[EngineClient], object], some: Iterable[_Engine] = engines) -> None:
            self._end(self._begin(some, do, pool))

        for engine in engines:
            if engine.member.transport is Transport.USER:
                engine.wrong = (
                    "its weight_transfer_config names a backend of the user's, which this sender does not know"
                )
            elif engine.member.transport is Transport.IPC and not self._here(engine.id):
                engine.wrong = "it opens handles of trainer ranks on its own host, and this sender is on another"
        by_disk = [engine for engine in engines if engine.member.transport is Transport.DISK]
        streamed = [engine for engine in engines if engine not in by_disk]
        try:
            each(lambda client: client.pause(pause, timeout=self._timeout))  # type: ignore[arg-type]  # refused there
            self._join([engine for engine in streamed if engine.member.rank_offset is not None], pool)
            each(lambda client: client.start_weight_update(timeout=self._timeout), streamed)
            size = count = 0
            saved: dict[str, torch.Tensor] = {}
            for bucket in self._buckets(manifest, tensors):
                size += sum(tensor.nbytes for _, tensor in bucket)
                count += 1
                self._bucket_to(streamed, bucket, pool)
                saved.update(bucket if by_disk else ())
            each(lambda client: client.finish_weight_update(version, timeout=self._timeout), streamed)
            if by_disk:
                path = self._save(version, saved)
                each(lambda client: self._reload(client, path, version), by_disk)
            each(lambda client: client.reset_prefix_cache(timeout=self._timeout))
        except BaseException as error:
            for engine in engines:
                engine.wrong = engine.wrong or f"the trainer stopped: {error}"
            raise
        each(lambda client: client.resume(timeout=self._timeout))
        if probe is not None:
            each(lambda client: _probed(client, probe))
        return size, count

    def _bucket_to(
        self, engines: Sequence[_Engine], bucket: Sequence[tuple[str, torch.Tensor]], pool: ThreadPoolExecutor
    ) -> None:
        """Give a bucket to those that are in the group, and to those on this host."""
        update: dict[str, Any] = {
            "names": [name for name, _ in bucket],
            "dtype_names": [str(tensor.dtype).removeprefix("torch.") for _, tensor in bucket],
            "shapes": [list(tensor.shape) for _, tensor in bucket],
        }
        there = [engine for engine in engines if engine.member.rank_offset is not None and engine.wrong is None]
        if there and self._group is not None:
            calls = self._begin(there, lambda client: client.update_weights(update, timeout=self._timeout), pool)
            try:
                for _, tensor in bucket:
                    self._group.broadcast(tensor.detach().contiguous())
            except RuntimeError as error:
                _blame(there, f"the trainer's group broke: {error}")
            self._end(calls)
            if any(engine.wrong for engine in there):
                _blame(there, "another engine of its group failed")
        here = [engine for engine in engines if engine.member.transport is Transport.IPC and engine.wrong is None]
        if here:
            with Segment([tensor for _, tensor in bucket]) as segment:
                told = {**update, "ipc_handles": [{"cpu": list(handle)} for handle in segment.handles]}
                self._end(self._begin(here, lambda client: client.update_weights(told, timeout=self._timeout), pool))

    def _join(self, engines: Sequence[_Engine], pool: ThreadPoolExecutor) -> None:
        """Meet those that take part in a group, unless it is the same processes as the last time.

        Ranks are dealt out anew, in the plan's order: of an engine that takes no part nobody waits for any.
        """
        there = [engine for engine in engines if engine.wrong is None]
        lives = {
            status.id: tuple(process.pid for process in status.processes) for status in self._fleet.status().engines
        }
        joined = [(engine.id, lives.get(engine.id)) for engine in there]
        if not there or (self._group is not None and self._joined == joined):
            return
        self.close()
        sync, rank, offsets = self._sync(), 1, {}
        for engine in there:
            offsets[engine.id] = rank
            rank += engine.member.span
        meeting = {"master_address": sync.address, "master_port": int(sync.port), "world_size": rank}
        calls = [
            (engine, pool.submit(client.init_weight_transfer, {**meeting, "rank_offset": offsets[engine.id]}))
            for engine in there
            for client in engine.clients
        ]
        try:
            self._group = Group(sync.address, int(sync.port), 0, rank, sync.address, self._timeout)
            self._joined = joined
        except RuntimeError as error:
            _blame(there, f"no group at {sync.address}:{sync.port}: {error}")
        self._end(calls)
        if any(engine.wrong for engine in there):
            _blame(there, "another engine of its group failed")

    def _begin(
        self, engines: Iterable[_Engine], do: Callable[[EngineClient], object], pool: ThreadPoolExecutor
    ) -> list[tuple[_Engine, "Future[object]"]]:
        """Begin a call to every url of engines at which nothing went wrong yet."""
        calls = []
        for engine in engines:
            if engine.wrong is None:
                engine.calls += 1
                calls += [(engine, pool.submit(do, client)) for client in engine.clients]
        return calls

    def _end(self, calls: Iterable[tuple[_Engine, "Future[Any]"]]) -> None:
        """Wait for calls, and note what went wrong first at each engine."""
        for engine, call in calls:
            try:
                call.result()
            except (VimeHttpError, WrongTensors) as error:
                engine.wrong = engine.wrong or str(error)

    def _buckets(self, manifest: Manifest, tensors: Tensors) -> Iterator[list[tuple[str, torch.Tensor]]]:
        """Yield the tensors in buckets. Raises WrongTensors when they are not what the manifest announced."""
        bucket: list[tuple[str, torch.Tensor]] = []
        left, size = dict(manifest), 0
        for name, tensor in tensors:
            if left.pop(name, None) != tuple(tensor.shape):
                for _ in tensors:  # a trainer of several ranks sends them in step: none must be left waiting
                    pass
                raise WrongTensors(f"{name} of shape {tuple(tensor.shape)} was not announced so, or came before")
            if bucket and size + tensor.nbytes > self._bucket:
                yield bucket
                bucket, size = [], 0
            bucket.append((name, tensor))
            size += tensor.nbytes
        if left:
            raise WrongTensors(f"{len(left)} tensors did not come: {', '.join(list(left)[:4])}")
        if bucket:
            yield bucket

    def _save(self, version: str, tensors: Mapping[str, torch.Tensor]) -> Path:
        """Write a version for the engines that reload from a folder; the folder is there once it is whole."""
        if self._folder is None:
            raise ValueError("engines reload their weights from a folder: say which, WeightSender(..., folder=...)")
        whole, part = self._folder / version, self._folder / f".{version}.part"
        part.mkdir(parents=True, exist_ok=True)
        save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, part / "model.safetensors")
        part.rename(whole)
        return whole

    def _reload(self, client: EngineClient, path: Path, version: str) -> None:
        client.collective_rpc("reload_weights", kwargs={"weights_path": str(path)}, timeout=self._timeout)
        client.label_weights(version, timeout=self._timeout)

    def _sync(self) -> WeightSync:
        syncs = [sync for sync in self._fleet.plan.weight_sync if self._model in (None, sync.model)]
        if len(syncs) != 1:
            known = ", ".join(sync.model for sync in self._fleet.plan.weight_sync) or "none"
            raise ValueError(f"model {self._model}: the plan syncs {known}")
        return syncs[0]

    def _here(self, name: EngineId) -> bool:
        """Whether all of an engine runs on the sender's host."""
        engine = next(engine for engine in self._fleet.plan.engines if engine.id == name)
        return {process.address for process in engine.processes} == {self._sync().address}

    def _client(self, url: str) -> EngineClient:
        return EngineClient(url, self._timeout, api_key=engine_key)


def _wavers(engine: EngineStatus) -> bool:
    """Whether an engine may be well again in a moment, or gone: a sync that begins now would leave it out."""
    return engine.state is EngineState.SUSPECT


def _blame(engines: Iterable[_Engine], why: str) -> None:
    for engine in engines:
        engine.wrong = engine.wrong or why


def _probed(client: EngineClient, probe: Probe) -> None:
    """Raise WrongTensors when an engine does not continue a prompt as the trainer would."""
    answer = client.generate(probe.prompt, Sampling(max_tokens=1, temperature=0.0, ignore_eos=True, seed=0))
    token, log_prob = answer.token_ids[0], (answer.logprobs or (float("nan"),))[0]
    if not (token == probe.token and abs(log_prob - probe.log_prob) <= probe.tolerance):
        found = f"token {token} at {log_prob:.4f} after the probe's prompt"
        raise WrongTensors(f"{found}; the trainer computes {probe.token} at {probe.log_prob:.4f}")
