#!/usr/bin/env python3
"""Serves a GGUF model with llama.cpp's own HTTP server, and prints its address when it is ready.

    serve_llamacpp.py model.gguf --port 0 --threads 1
    {"listen":"127.0.0.1:40123"}

The server is llama.cpp's (through the xllamacpp package): OpenAI-compatible, with /metrics, /slots and
/health. It runs until it is ended, or until its standard input closes when --until-stdin-closes is given.
"""

import argparse
import json
import signal
import sys

import xllamacpp


def parameters(args: argparse.Namespace) -> xllamacpp.CommonParams:
    params = xllamacpp.CommonParams()
    params.model.path = args.model
    params.model_alias = [args.name]
    params.hostnames = ["127.0.0.1"]
    params.port = args.port
    params.n_parallel = args.slots
    # llama.cpp divides the context between its slots.
    params.n_ctx = args.context * args.slots
    # llama.cpp's own default is 8 GiB.
    params.cache_ram_mib = args.prompt_cache_mib
    params.endpoint_metrics = True
    params.endpoint_slots = True
    params.cpuparams.n_threads = args.threads
    params.cpuparams_batch.n_threads = args.threads
    return params


def main() -> int:
    parser = argparse.ArgumentParser(description="Serves a GGUF model with llama.cpp's own HTTP server.")
    parser.add_argument("model", help="GGUF file")
    parser.add_argument("--name", default="tiny", help="model name that requests ask for (default tiny)")
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1; 0 takes a free one (default)")
    parser.add_argument("--threads", type=int, default=1, help="compute threads (default 1)")
    parser.add_argument("--slots", type=int, default=4, help="requests served at once (default 4)")
    parser.add_argument("--context", type=int, default=8192, help="context tokens of each slot (default 8192)")
    parser.add_argument(
        "--prompt-cache-mib",
        type=int,
        default=0,
        help="memory for prompts whose slots were given away, MiB; without it a pod holds one prompt a slot (default 0)",
    )
    parser.add_argument("--until-stdin-closes", action="store_true", help="end when standard input closes")
    args = parser.parse_args()

    server = xllamacpp.Server(parameters(args))
    address = server.listening_address.removeprefix("http://")
    print(json.dumps({"listen": address}, separators=(",", ":")), flush=True)
    if args.until_stdin_closes:
        sys.stdin.buffer.read()
    else:
        signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main())
