"""A stand-in for vLLM's NIXL connector: prefill hands prompts over at its side channel, decode fetches them there.

It behaves as the connector of vLLM 0.32 was seen to: an engine has a new id in each life; a peer that is gone, or is
not the one whose blocks were promised, fails the request; a listener whose port is taken dies of it, and its engine
waits for it for ever.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from typing import Any


class SideChannel:
    """The connector of one engine: what it ``asked`` peers for and ``found`` there, in prompt tokens."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.engine_id = uuid.uuid4().hex
        self.asked = self.found = self.transfers = 0
        self._kept: dict[str, list[int]] = {}
        self._lock = threading.Lock()
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError:
            sys.stdout.write("Exception in thread nixl_handshake_listener:\n")
            sys.stdout.write(f"zmq.error.ZMQError: Address already in use (addr='tcp://{host}:{port}')\n")
            sys.stdout.flush()
            while True:
                time.sleep(60)
        listener.listen(64)
        threading.Thread(target=self._serve, args=(listener,), daemon=True).start()

    @classmethod
    def of_environment(cls) -> SideChannel | None:
        """Return the side channel that the environment asks for, if any."""
        port = os.environ.get("VLLM_NIXL_SIDE_CHANNEL_PORT")
        return cls(os.environ["VLLM_NIXL_SIDE_CHANNEL_HOST"], int(port)) if port else None

    def offer(self, prompt: Sequence[int]) -> dict[str, Any]:
        """Keep a prompt for a peer, and return how it finds it."""
        name = uuid.uuid4().hex
        self._kept[name] = list(prompt)
        return {
            "do_remote_prefill": True,
            "remote_block_ids": [[0]],
            "remote_engine_id": self.engine_id,
            "remote_request_id": name,
            "remote_host": self.host,
            "remote_port": self.port,
        }

    def admit(self, prompt: Sequence[int], params: dict[str, Any]) -> list[int]:
        """Return the prompt as it came: from a peer where one is named. Raises OSError where it has it no more."""
        with self._lock:
            self.asked += len(prompt)
        if not params.get("remote_block_ids"):
            return list(prompt)
        with (
            socket.create_connection((params["remote_host"], params["remote_port"]), 5.0) as wire,
            wire.makefile() as told,
        ):
            wire.sendall(params["remote_request_id"].encode() + b"\n")
            answer = json.loads(told.readline() or "{}")
        if answer.get("engine_id") != params["remote_engine_id"] or answer.get("prompt") is None:
            raise OSError("the peer has another id, or the blocks no more")
        with self._lock:
            self.found += len(prompt)
            self.transfers += 1
        return list(answer["prompt"])

    def metrics(self) -> str:
        """Tell what came from peers."""
        labels = '{engine="0",model_name="m"}'
        return (
            f"vllm:external_prefix_cache_queries_total{labels} {self.asked}.0\n"
            f"vllm:external_prefix_cache_hits_total{labels} {self.found}.0\n"
            f"vllm:nixl_num_failed_transfers_total{labels} 0.0\n"
            f"vllm:nixl_bytes_transferred_count{labels} {self.transfers}.0\n"
        )

    def _serve(self, listener: socket.socket) -> None:
        while True:
            peer, _ = listener.accept()
            threading.Thread(target=self._give, args=(peer,), daemon=True).start()

    def _give(self, peer: socket.socket) -> None:
        with peer, peer.makefile() as heard:
            name = heard.readline().strip()
            prompt = self._kept.pop(name, None)
            peer.sendall(json.dumps({"engine_id": self.engine_id, "prompt": prompt}).encode() + b"\n")
