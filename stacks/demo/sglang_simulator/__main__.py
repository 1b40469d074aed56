"""`python3 -m sglang_simulator --model-path NAME [SGLang's flags] [--sim-…]`."""

from __future__ import annotations

import sys
import time

import uvicorn

from .app import make_app
from .options import Options, parse


def _starting(options: Options) -> None:
    """What a real server says and takes before it listens: the first half of its start."""
    print("Load weight begin.", file=sys.stderr, flush=True)
    time.sleep(options.sim_startup / 2)
    if options.fault[0] == "start-crash":
        sys.exit("torch.OutOfMemoryError: CUDA out of memory. (a simulated fault)")
    print("Load weight end. Capture cuda graph begin.", file=sys.stderr, flush=True)


def main() -> None:
    """Serve until stopped."""
    options = parse(sys.argv[1:])
    _starting(options)
    uvicorn.run(
        make_app(options),
        host=options.host,
        port=options.port,
        access_log=False,
        log_level="info",
        timeout_graceful_shutdown=1,
    )


main()
