"""``vime generate``: tokens in, tokens and log-probs out, through the router of a running fleet."""

import argparse
import json
import sys

from vime_adapters.cli.keys import add_key, use_key
from vime_adapters.cli.status import status_of
from vime_adapters.cli.where import add_where, existing
from vime_core import Code, PlanRefused, Problem, parse


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    add_where(parser)
    add_key(parser)
    parser.add_argument("tokens", nargs="+", type=int, metavar="ID", help="token ids of the prompt")
    parser.add_argument("--model", help="name of the model in the plan (default: the only one)")
    parser.add_argument("--max-tokens", type=int, default=16, help="most tokens to sample (default: 16)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 takes the likeliest token (default)")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="S", help="seconds to wait (default: 600)")
    parser.add_argument("--format", choices=["table", "json"], default="table", help="how to print the answer")


def run(options: argparse.Namespace) -> int:
    """Send one prompt. Returns 0 with an answer, 1 when the fleet would not give one."""
    from vime_adapters.vllm.generate import REPEATS, Sampling, generate
    from vime_adapters.vllm.keys import engine_key
    from vime_adapters.wire import VimeHttpError, Wire

    use_key(options)
    state = existing(options)
    found = status_of(state)
    urls = {r.model: r.url for r in parse(state.plan_text() or "").routers}
    urls |= {r["model"]: r["url"] for r in found.get("routers", ())}  # a router may have moved to another port
    if (options.model is None and len(urls) != 1) or (options.model is not None and options.model not in urls):
        print(f"name one of the models with --model: {', '.join(urls)}", file=sys.stderr)
        return 2
    url = urls[options.model] if options.model else next(iter(urls.values()))
    sampling = Sampling(max_tokens=options.max_tokens, temperature=options.temperature)

    def ended() -> bool:
        return status_of(state)["state"] in ("failed", "stopped")

    try:
        with Wire(url, options.timeout, api_key=engine_key) as wire:
            answer = generate(
                wire,
                options.tokens,
                sampling,
                deadline=options.timeout,
                attempts=None,
                repeats=REPEATS,
                partial=False,
                given_up=ended,
            )
    except VimeHttpError as error:
        print(error, file=sys.stderr)
        if ended():
            print(f"{state.path.name}: {status_of(state)['why']}", file=sys.stderr)
        return 1
    except ValueError as error:  # a number that JSON cannot hold
        raise PlanRefused((Problem(Code.VALUE, "--temperature", str(error), "a finite number"),)) from None
    logprobs = answer.logprobs or ()
    if options.format == "json":
        found = {"token_ids": answer.token_ids, "logprobs": logprobs, "finish_reason": answer.finish_reason}
        print(json.dumps(found))
    else:
        print("tokens   ", " ".join(f"{t:>7}" for t in answer.token_ids))
        print("log-probs", " ".join(f"{p:>7.3f}" for p in logprobs))
        print("ended by ", answer.finish_reason)
    return 0
